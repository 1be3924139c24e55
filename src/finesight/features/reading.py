"""Read features from a file, whoever made it: Parquet, Arrow, npz or CSV. Nothing here needs torch."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.io.frames import ARROW, PARQUET, arrow_table, data_frame, read_arrow_table
from finesight.io.table import read_table

FORMATS = (*PARQUET, *ARROW, ".npz", ".csv")
PATHS = ("path", "paths", "file", "filename", "file_name", "image", "image_path")
FEATURES = ("feature", "features", "embedding", "embeddings", "vector")
LABELS, SPLITS = ("label", "labels", "class"), ("split", "splits")


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features of images, row by row, with what the file says about each image."""

    file: Path
    paths: list[str]  # numbers of the rows where the file has none
    features: NDArray[np.float32]  # (N, D)
    labels: list[str] | None = None  # an empty text where an image has none
    splits: list[str] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``: path, feature (a list of fixed size), and label and split where known."""
        import pyarrow as pa

        flat = pa.array(np.ascontiguousarray(self.features).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(flat, self.features.shape[1])
        return arrow_table(self._columns(vectors))

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with the same columns; each feature is an array."""
        rows = np.empty(len(self), object)
        rows[:] = list(self.features)
        return data_frame(self._columns(rows))

    def _columns(self, vectors: Any) -> dict[str, Any]:
        known = {"path": self.paths, "feature": vectors, "label": self.labels, "split": self.splits}
        return {name: values for name, values in known.items() if values is not None}


def read_features(file: str | Path) -> FeatureTable:
    """Read what ``finesight embed`` wrote, or any Parquet or Arrow file with one column of lists of numbers.

    The columns are found by their names (path, feature or embedding, label, split) and, where there is only one column
    of lists of numbers, by what it holds. A file that cannot be used is a ``FineSightError``.
    """
    file = Path(file)
    kind = file.suffix.lower()
    if kind not in FORMATS:
        raise FineSightError(f"{file} is no file of features: its name must end in {', '.join(FORMATS)}.")
    try:
        columns = _read_npz(file) if kind == ".npz" else _read_csv(file) if kind == ".csv" else _read_arrow(file)
    except FineSightError:
        raise
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:  # Arrow's are ValueError or OSError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise FineSightError(f"{file} cannot be read as features: {reason}") from error
    features = columns["features"]
    if features.ndim != 2 or not features.size:
        raise FineSightError(f"{file} holds no features: they must be a table (images, numbers), not {features.shape}.")
    bad = np.flatnonzero(~np.isfinite(features).all(1))
    if len(bad):
        raise FineSightError(f"Features of {file} are not numbers, the first in row {int(bad[0])}.")
    paths = columns["paths"] or [str(row) for row in range(len(features))]
    for name in ("paths", "labels", "splits"):
        if columns[name] is not None and len(columns[name]) != len(features):
            raise FineSightError(f"{file} has {len(features):,} features but {len(columns[name]):,} {name}.")
    return FeatureTable(file, paths, features, columns["labels"], columns["splits"])


def _texts(values: Any) -> list[str] | None:
    return None if values is None else ["" if value is None else str(value) for value in values]


def _read_npz(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as data:
        found = {key: _first(data.files, names) for key, names in _KINDS.items()}
        if found["features"] is None:
            raise FineSightError(f"{file} has no array called features; it has: {', '.join(data.files)}.")
        read = {key: None if name is None else data[name] for key, name in found.items()}
    texts = {key: _texts(read[key]) for key in ("paths", "labels", "splits")}
    return {**texts, "features": np.asarray(read["features"], np.float32)}


def _read_csv(file: Path) -> dict[str, Any]:
    rows = read_table(file)
    names = list(rows[0]) if rows else []
    known = {key: _first(names, choices) for key, choices in _KINDS.items()}
    numbers = [name for name in names if name not in known.values()]
    values = np.array([[row[name] for name in numbers] for row in rows], np.float64).astype(np.float32)
    texts = {
        key: None if name is None else [row[name] for row in rows] for key, name in known.items() if key != "features"
    }
    return {**texts, "features": values}


def _read_arrow(file: Path) -> dict[str, Any]:
    table = read_arrow_table(file)
    known = {key: _first(table.column_names, names) for key, names in _KINDS.items()}
    name = known["features"]
    if name is None or not _is_vector(table.schema.field(name).type):
        lists = [field.name for field in table.schema if _is_vector(field.type)]
        if len(lists) != 1:
            there = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
            raise FineSightError(
                f"{file} must have one column of lists of numbers, called feature or embedding, and has: {there}."
            )
        name = lists[0]
    texts = {key: _texts(_cells(table, known[key])) for key in ("paths", "labels", "splits")}
    return {**texts, "features": _matrix(file, table.column(name))}


def _cells(table: Any, name: str | None) -> list[Any] | None:
    if name is None:
        return None
    import pyarrow as pa

    kind = table.schema.field(name).type
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (plain or pa.types.is_dictionary(kind) or pa.types.is_integer(kind)):
        return None  # pictures, for example
    cells: list[Any] = table.column(name).to_pylist()
    return cells


def _is_vector(kind: Any) -> bool:
    import pyarrow as pa

    lists = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))


def _matrix(file: Path, column: Any) -> NDArray[np.float32]:
    """Return lists of numbers that are all equally long as rows."""
    import pyarrow.compute as pc

    if not len(column):
        return np.zeros((0, 0), np.float32)
    if column.null_count:
        raise FineSightError(f"{file} has rows without a feature.")
    widths = {int(width) for width in pc.unique(pc.list_value_length(column)).to_pylist()}
    if len(widths) != 1:
        raise FineSightError(f"The features of {file} are not equally long: {min(widths)} to {max(widths)} numbers.")
    parts = [np.asarray(chunk.flatten(), np.float32) for chunk in column.chunks if len(chunk)]
    return np.ascontiguousarray(np.concatenate(parts).reshape(len(column), widths.pop()))


def _first(names: Any, wanted: tuple[str, ...]) -> str | None:
    lower = {str(name).lower(): str(name) for name in names}
    return next((lower[name] for name in wanted if name in lower), None)


_KINDS = {"paths": PATHS, "features": FEATURES, "labels": LABELS, "splits": SPLITS}
