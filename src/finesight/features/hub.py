"""Encoders on the Hugging Face hub, or in a folder as it would be there: the encoder's files and a model card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from finesight.errors import FineSightError, first_line
from finesight.features.encoder_folder import CONFIG, WEIGHTS
from finesight.features.model_card import model_card
from finesight.io.atomic import write_atomic
from finesight.nn.backbone_config import HUB_PREFIX
from finesight.nn.weight_hub import hub_folder

if TYPE_CHECKING:
    from finesight.features.encoder import Encoder

CARD = "README.md"


def save_pretrained(
    encoder: Encoder, folder: str | Path, name: str | None = None, run: str | Path | None = None
) -> None:
    """Write the encoder and its model card into a folder, as ``push_to_hub`` sends it."""
    folder = Path(folder)
    if folder.is_file():
        raise FineSightError(f"{folder} is a file: give a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG).exists():
        raise FineSightError(f"{folder} is not empty and holds no encoder: give a new folder.")
    encoder.save(folder)
    told = name or f"OWNER/{folder.absolute().name}"
    write_atomic(folder / CARD, model_card(encoder.config, None if run is None else Path(run), told))


def push_to_hub(
    encoder: Encoder,
    name: str,
    *,
    run: str | Path | None = None,
    private: bool = False,
    revision: str | None = None,
    message: str = "Upload a FineSight encoder",
) -> str:
    """Send the encoder and its card to the repository ``name`` and return its address. It is made if it is not there.

    Raises ``FineSightError`` if the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi

    if "/" not in name or name.startswith(HUB_PREFIX):
        raise FineSightError(f"A repository is OWNER/NAME, not {name!r}.")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "encoder"
        save_pretrained(encoder, folder, name, run)
        try:
            api = HfApi(library_name="finesight")
            address = str(api.create_repo(name, private=private, exist_ok=True))
            if revision is not None:
                api.create_branch(name, branch=revision, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, revision=revision)
        except Exception as error:  # whatever the hub's client raises, the user's way out is the same
            raise FineSightError(
                f"{name} could not be pushed ({first_line(error)}). Log in with `hf auth login`, and check the name."
            ) from error
    return address


def pretrained_folder(name: str | Path, revision: str | None = None, *, seconds: float = 10.0) -> Path:
    """Return the folder of an encoder: itself, or the local copy of a repository of the hub, brought up to date.

    Out of reach of the hub, the copy that is there is used. Raises ``FineSightError`` if there is none.
    """
    text = str(name).removeprefix(HUB_PREFIX)
    if Path(name).exists():
        if revision is not None:
            raise FineSightError(f"{name} is a folder here: it has no revision {revision!r}.")
        return Path(name)
    repository, _, commit = text.partition("@")
    if repository.count("/") != 1 or repository.startswith((".", "/", "~")):
        raise FineSightError(f"{name} is neither a folder nor a repository OWNER/NAME of the hub.")
    return hub_folder(repository, (CONFIG, WEIGHTS), revision or commit or None, seconds)
