"""The folder of a saved encoder, as far as it can be read without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from finesight.errors import FineSightError

CONFIG, WEIGHTS = "encoder.json", "encoder.safetensors"


def encoder_folder(run: str | Path) -> Path:
    """Return the encoder folder of a run, or the folder itself if it is one."""
    run = Path(run)
    return run / "encoder" if not (run / CONFIG).exists() and (run / "encoder" / CONFIG).exists() else run


def fingerprint(run: str | Path) -> str:
    """Return a digest of an encoder's configuration and weights: two that differ make different features.

    A file that cannot be read is a ``FineSightError``.
    """
    folder = encoder_folder(run)
    digest = hashlib.blake2b(digest_size=16)
    try:
        content = json.loads((folder / CONFIG).read_text())
        digest.update(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
        with open(folder / WEIGHTS, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    except (OSError, ValueError) as error:
        raise FineSightError(f"The encoder in {folder} cannot be read: {error}") from error
    return digest.hexdigest()
