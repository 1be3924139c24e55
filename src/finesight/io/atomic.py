"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def put(file: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes it and whenever this process is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(content)
        os.replace(scratch, file)
    finally:
        scratch.unlink(missing_ok=True)
