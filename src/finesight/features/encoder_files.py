"""Write an encoder's configuration and weights to a folder, and read them. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from finesight.errors import FineSightError
from finesight.features.encoder_config import EncoderConfig, read_config
from finesight.features.encoder_folder import CHECKSUM, CONFIG, WEIGHTS, weights_checksum
from finesight.io.atomic import atomic_path
from finesight.io.tensors import save_tensors


def write_encoder(folder: Path, config: EncoderConfig, state: Mapping[str, Tensor]) -> None:
    """Write a folder with JSON and safetensors; it replaces an older one when it is complete."""
    with atomic_path(folder, replace_folder=True) as scratch:
        scratch.mkdir()
        content = config.model_dump(mode="json")
        save_tensors(state, scratch / WEIGHTS)
        content[CHECKSUM] = weights_checksum(scratch)
        (scratch / CONFIG).write_text(json.dumps(content, indent=2) + "\n")


def read_encoder(folder: Path) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """Return the configuration and the weights. A missing or damaged encoder is a ``FineSightError``."""
    if not (folder / CONFIG).exists():
        raise FineSightError(
            f"The run in {folder} has not finished: it has no encoder yet. Run its `finesight train` command again."
            if (folder / "config.yaml").exists()
            else f"{folder} holds no encoder: give the folder of a finished run."
        )
    try:
        config, checksum = read_config(folder / CONFIG)
        if checksum not in (None, weights_checksum(folder)):
            raise ValueError(f"{WEIGHTS} is not what was written. Copy it anew, or train again")
        return config, load_file(folder / WEIGHTS)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise FineSightError(f"The encoder in {folder} is damaged or of another version: {error}") from error
