"""Results on disk: one JSON per row and seed, and beside it what each query gave."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.evaluation.retrieval import RetrievalScores
from finesight.io.atomic import write_atomic

Results = dict[str, dict[int, dict[str, Any]]]  # system -> seed -> result

REQUIRED = (
    "dataset",
    "classes",
    "method",
    "seed",
    "profile",
    "settings",
    "retrieval",
    "linear",
    "localization",
    "seconds",
    "peak_memory_mb",
    "command",
    "commit",
)


@dataclass(frozen=True)
class ResultFiles:
    """Where the results of one profile lie."""

    folder: Path

    def file(self, system: str, seed: int) -> Path:
        return self.folder / f"{system}-seed{seed}.json"

    def queries(self, system: str, seed: int) -> Path:
        return self.folder / "queries" / f"{system}-seed{seed}.npz"

    def write(self, system: str, seed: int, result: dict[str, Any], queries: RetrievalScores) -> None:
        """Queries first: a result that is there is whole."""
        packed = io.BytesIO()
        np.savez_compressed(packed, hit1=queries.hit1, hit5=queries.hit5, ap=queries.ap.astype(np.float32))
        write_atomic(self.queries(system, seed), packed.getvalue())
        write_atomic(self.file(system, seed), (json.dumps(result, indent=2) + "\n").encode())

    def read(self) -> Results:
        """Of every file in the folder."""
        found: Results = {}
        for file in sorted(self.folder.glob("*-seed*.json")):
            result = _read(file)
            found.setdefault(result["method"], {})[result["seed"]] = result
        return found

    def per_query(self, system: str, seed: int) -> dict[str, NDArray[np.float64]]:
        """hit1, hit5 and ap of every query, in the order of the test images."""
        file = self.queries(system, seed)
        try:
            with np.load(file) as arrays:
                return {name: arrays[name].astype(np.float64) for name in ("hit1", "hit5", "ap")}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            again = f"Delete {self.file(system, seed).name} to run it again."
            raise FineSightError(f"The queries {file} cannot be read: {error}. {again}") from error


def read_json(file: Path, what: str = "") -> dict[str, Any]:
    """A JSON object that was ``put``, or an error that names the file; ``what`` comes before its name."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FineSightError(f"{what}{file} cannot be read: {error}. Delete it to run it again.") from error
    if not isinstance(found, dict):
        raise FineSightError(f"{what}{file} is no JSON object. Delete it to run it again.")
    return found


def _read(file: Path) -> dict[str, Any]:
    result = read_json(file, "The result ")
    if missing := [key for key in REQUIRED if key not in result]:
        raise FineSightError(f"The result {file} lacks {', '.join(missing)}. Delete it to run it again.")
    if file.name != f"{result['method']}-seed{result['seed']}.json":
        raise FineSightError(
            f"The result {file} is that of {result['method']!r}, seed {result['seed']!r}. Give it back its name."
        )
    return result
