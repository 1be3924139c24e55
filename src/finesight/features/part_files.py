"""Parquet files with the columns key, path and feature: written whole, by whatever machine has the features."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from finesight.features.types import Floats
from finesight.io.atomic import atomic_path


def part_name(keys: Sequence[bytes]) -> str:
    """Return the name of the part with these keys: the same whoever writes it, and however often."""
    return f"part-{hashlib.blake2b(b' '.join(keys), digest_size=16).hexdigest()}.parquet"


def printable(path: str) -> str:
    """Return a path as it is written: bytes that are not UTF-8 are shown by their numbers."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def write_part(file: Path, keys: Sequence[bytes], paths: Sequence[str], features: Floats) -> None:
    """Write a part; it is there as a whole, on the disk, or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.array(np.ascontiguousarray(features, np.float32).ravel())
    vectors = pa.FixedSizeListArray.from_arrays(values, features.shape[1])
    table = pa.table({"key": pa.array(keys, pa.binary()), "path": list(paths), "feature": vectors})
    with atomic_path(file, sync=True) as scratch:
        pq.write_table(table, scratch)
