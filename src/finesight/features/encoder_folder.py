"""The folder of a saved encoder, as far as it can be read without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from finesight.errors import FineSightError
from finesight.io.console import console

CONFIG, WEIGHTS = "encoder.json", "encoder.safetensors"
CHECKSUM = "weights_checksum"  # in encoder.json
NEVER_TRAINED = ("frozen", "untrained")  # what an encoder's method is called where no training made it


def is_model_file(run: str | Path) -> bool:
    """Return whether ``run`` is named as a file of ``finesight export``; runs and encoders are folders."""
    return Path(run).suffix.lower() == ".onnx" and not Path(run).is_dir()


def encoder_folder(run: str | Path) -> Path:
    """Return the encoder folder of a run, or the folder itself if it is one."""
    run = Path(run)
    return run / "encoder" if not (run / CONFIG).exists() and (run / "encoder" / CONFIG).exists() else run


def fingerprint(run: str | Path) -> str:
    """Return a digest of an encoder's configuration and weights: two that differ make different features.

    A file that cannot be read is a ``FineSightError``.
    """
    folder = encoder_folder(run)
    try:
        content = json.loads((folder / CONFIG).read_text())
        if not isinstance(content, dict):
            raise ValueError(f"{CONFIG} is no table of settings")
        content.pop(CHECKSUM, None)  # encoders of earlier versions have none, and are the same encoders
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return _digest(folder / WEIGHTS, text.encode())
    except (OSError, ValueError, RecursionError) as error:
        raise FineSightError(f"The encoder in {folder} cannot be read: {error}") from error


def weights_checksum(folder: Path) -> str:
    """Return the checksum of an encoder's weights, which ``encoder.json`` keeps. Raises ``OSError``."""
    return _digest(folder / WEIGHTS)


def _digest(file: Path, first: bytes = b"") -> str:
    digest = hashlib.blake2b(first, digest_size=16)
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def warn_of_random_weights(run: str | Path) -> None:
    """Print a warning if the encoder of a folder has random weights that no training changed."""
    try:
        content = json.loads((encoder_folder(run) / CONFIG).read_text())
        method, weights = content["method"], content["backbone"]["weights"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # whoever loads it says what is wrong
    warn_of_random(method, weights)


def warn_of_random(method: str, weights: str) -> None:
    """Print a warning if ``method`` leaves random ``weights`` as they are."""
    if weights == "random" and method in NEVER_TRAINED:
        console.print(
            "[bold yellow]random weights: this network has learned nothing, and what it finds similar means nothing. "
            "Use --weights imagenet, --weights FILE, or a method that trains.[/]"
        )
