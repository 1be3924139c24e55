"""What a trial on this machine found, kept in a JSON file of the cache folder so that it is tried once."""

from __future__ import annotations

import json
from typing import Any

from finesight.data.store import default_cache_dir
from finesight.io.atomic import write_atomic

ENGINES = "engines.json"  # how many times as fast as torch onnxruntime is, by network, batch, size and machine


class Remembered:
    """Numbers by key. A file that is missing, damaged or cannot be written costs a trial each time, nothing else."""

    def __init__(self, name: str) -> None:
        self.file = default_cache_dir() / name

    def read(self) -> dict[str, float]:
        """Return all that is known."""
        try:
            known: dict[str, Any] = json.loads(self.file.read_text())
            return {str(key): float(value) for key, value in known.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def keep(self, key: str, value: float) -> None:
        """Add one number, or replace it."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, json.dumps({**self.read(), key: round(value, 3)}, indent=1) + "\n")
        except OSError:
            pass
