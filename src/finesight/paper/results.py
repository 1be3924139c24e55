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
from finesight.evaluation.metrics import RetrievalMetric, retrieval_metrics
from finesight.evaluation.retrieval import RetrievalScores
from finesight.io.atomic import write_atomic

REQUIRED_ARRAYS = ("hit1", "hit5", "ap")
ARRAYS = {"rank1": "hit1", "rank5": "hit5"}  # names of arrays in the files, where they differ from the metric's
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
        metrics = [(metric, queries.per_query[metric.key]) for metric in retrieval_metrics()]
        arrays: dict[str, Any] = {
            _array_name(m): values if m.binary else values.astype(np.float32) for m, values in metrics
        }
        np.savez_compressed(packed, **arrays)
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
        """Return the values of every query by the key of a metric, in the order of the test images.

        Metrics that the file was written without are left out, but rank-1, rank-5 and mAP must be there.
        """
        file = self.queries(system, seed)
        try:
            with np.load(file) as arrays:
                names = {m.key: _array_name(m) for m in retrieval_metrics()}
                return {
                    key: arrays[name].astype(np.float64)
                    for key, name in names.items()
                    if name in arrays or name in REQUIRED_ARRAYS
                }
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            again = f"Delete {self.file(system, seed).name} to run it again."
            raise FineSightError(f"The queries {file} cannot be read: {error}. {again}") from error


def _array_name(metric: RetrievalMetric) -> str:
    return ARRAYS.get(metric.key, metric.query_column)


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
