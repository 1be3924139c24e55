"""Results on disk: one JSON file for every result and seed, and beside it what each query gave."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.evaluation.metrics import RetrievalMetric, retrieval_metrics
from finesight.evaluation.retrieval import RetrievalScores
from finesight.io.atomic import write_atomic
from finesight.training.renamed import current_settings

Results = dict[str, dict[int, dict[str, Any]]]  # name -> seed -> result

REQUIRED_ARRAYS = ("hit1", "hit5", "ap")
ARRAYS = {"rank1": "hit1", "rank5": "hit5"}  # names of arrays in the files, where they differ from the metric's
REQUIRED = (
    *("dataset", "classes", "method", "seed", "profile", "settings", "retrieval", "linear", "localization"),
    *("seconds", "peak_memory_mb", "command", "commit"),
)


@dataclass(frozen=True)
class ResultStore:
    """The results of one experiment in a folder; each file is written whole or not at all."""

    folder: Path
    name_key: str = "method"  # the key under which a result has its name
    required: tuple[str, ...] = REQUIRED

    def file(self, name: str, seed: int) -> Path:
        return self.folder / f"{name}-seed{seed}.json"

    def queries(self, name: str, seed: int) -> Path:
        return self.folder / "queries" / f"{name}-seed{seed}.npz"

    def write(self, name: str, seed: int, result: Mapping[str, Any], queries: RetrievalScores | None = None) -> None:
        """Write the queries first: where there is a result, it is complete."""
        if queries is not None:
            write_queries(self.queries(name, seed), queries)
        write_atomic(self.file(name, seed), (json.dumps(result, indent=2) + "\n").encode())

    def read(self) -> Results:
        """Return every result; raise a ``FineSightError`` if a file is damaged, lacks a key or has another's name."""
        results: Results = {}
        for file in sorted(self.folder.glob("*-seed*.json")):
            result = read_json(file)
            if missing := [key for key in self.required if key not in result]:
                raise FineSightError(f"The result {file} lacks {', '.join(missing)}. Delete it to run it again.")
            name, seed = result[self.name_key], result["seed"]
            if file.name != f"{name}-seed{seed}.json":
                raise FineSightError(f"The result {file} is that of {name!r}, seed {seed!r}. Give it back its name.")
            results.setdefault(name, {})[seed] = result
        return results

    def per_query(self, name: str, seed: int) -> dict[str, NDArray[np.float64]]:
        """Return the values of every query by the key of a metric, in the order of the test images."""
        return read_queries(self.queries(name, seed), self.file(name, seed))


def write_queries(file: Path, queries: RetrievalScores) -> None:
    """Write what each query gave, compressed."""
    packed = io.BytesIO()
    metrics = [(metric, queries.per_query[metric.key]) for metric in retrieval_metrics()]
    arrays: dict[str, Any] = {
        _array_name(metric): values if metric.binary else values.astype(np.float32) for metric, values in metrics
    }
    np.savez_compressed(packed, **arrays)
    write_atomic(file, packed.getvalue())


def read_queries(file: Path, result: Path) -> dict[str, NDArray[np.float64]]:
    """Return the values of every query by the key of a metric; ``result`` is the file to delete if they are damaged.

    Metrics that the file was written without are left out, but rank-1, rank-5 and mAP must be there.
    """
    try:
        with np.load(file) as arrays:
            names = {metric.key: _array_name(metric) for metric in retrieval_metrics()}
            return {
                key: arrays[name].astype(np.float64)
                for key, name in names.items()
                if name in arrays or name in REQUIRED_ARRAYS
            }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        again = f"Delete {result.name} to run it again."
        raise FineSightError(f"The queries {file} cannot be read: {error}. {again}") from error


def _array_name(metric: RetrievalMetric) -> str:
    return ARRAYS.get(metric.key, metric.query_column)


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in ``file``, or raise an error that names the file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FineSightError(f"The result {file} cannot be read: {error}. Delete it to run it again.") from error
    if not isinstance(content, dict):
        raise FineSightError(f"The result {file} is no JSON object. Delete it to run it again.")
    return content


def settings_diff(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe every setting that differs. A setting that only one of them has belongs to another version."""
    before, now = (current_settings(settings)[0] for settings in (before, now))
    return [f"{key}: {before[key]} then, {now[key]} now" for key in before if key in now and before[key] != now[key]]


def require_same_settings(what: object, before: Mapping[str, Any], now: Mapping[str, Any], advice: str) -> None:
    """Raise a ``FineSightError`` unless ``what`` was made with the settings of ``now``.

    A table of which some rows were made with other settings would compare the settings.
    """
    if differences := settings_diff(before, now):
        lines = "\n".join(f"  {line}" for line in differences)
        raise FineSightError(f"{what} has other settings:\n{lines}\n{advice}")
