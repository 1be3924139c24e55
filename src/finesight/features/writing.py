"""Write the features of a folder as a file that other programs read."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import NoneReadable, open_cache, write_skipped
from finesight.data.cache_budget import images_within
from finesight.data.sources import open_source
from finesight.data.store import default_cache_dir
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.features.wide import Features, concatenate
from finesight.io.atomic import WriteError, atomic_path, require_writable
from finesight.io.table import open_table, write_rows

BLOCK_BYTES = 64 * 2**20  # of the features made ready for a file at a time
NUMBER_BYTES = {".npz": 4, ".parquet": 4, ".csv": 8}  # that a number takes in a file, at least


def check_output(out: Path) -> None:
    """Raise ``FineSightError`` if ``out`` cannot be written; called before the features are made."""
    if out.suffix.lower() not in WRITERS:
        *first, last = WRITERS
        raise FineSightError(f"{out} must end in {', '.join(first)} or {last}.")
    if not out.absolute().parent.is_dir():
        raise FineSightError(f"The folder {out.absolute().parent} does not exist.")
    require_writable(out)


def embed_images(
    encoder: Encoder,
    images: str | Path,
    out: Path,
    *,
    pooling: str | None = None,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> tuple[int, int]:
    """Write the feature of each readable image with its path, in order; return how many, and how many were skipped."""
    check_output(out)
    scale, source, name = encoder.config.framing.scale, open_source(images), pooling or encoder.config.pooling
    require_writable(out, len(source) * encoder.feature_width(name) * NUMBER_BYTES[out.suffix.lower()])
    paths: list[NDArray[np.str_]] = []
    parts: list[Features] = []
    skipped = list(source.skipped)
    size = images_within(scale.side) or len(source)  # a decoded image is needed once: a small cache takes turns
    for start in range(0, len(source), size):
        part = replace(source.select(np.arange(start, min(start + size, len(source)))), skipped=())
        try:
            cache = open_cache(part, scale, cache_dir=cache_dir, workers=workers, progress=progress)
        except NoneReadable as error:
            if size == len(source):
                raise
            skipped += error.skipped
            continue
        parts.append(extract(encoder, cache, np.arange(len(cache)), (name,), progress=progress).features[name])
        paths.append(cache.source.paths)
        skipped += cache.skipped
    if not parts:
        raise FineSightError(f"none of the {len(source):,} images of {images} can be read, the first: {skipped[0][1]}.")
    features, names = concatenate(*parts), np.concatenate(paths)
    try:
        write_features(names, features, out)
    except WriteError as error:
        raise _kept_elsewhere(names, features, out, cache_dir or default_cache_dir(), error) from error
    if skipped:
        write_skipped(skipped, out.with_name(f"{out.stem}.skipped.csv"))
    return len(features), len(skipped)


def _kept_elsewhere(
    paths: NDArray[np.str_], features: Features, out: Path, folder: Path, error: WriteError
) -> FineSightError:
    """Write features whose own place failed them into the cache folder, and return the error that says so."""
    for place in (folder, Path(tempfile.gettempdir())):
        file = place / f"embedded-{os.getpid()}-{out.name}"
        with suppress(WriteError):
            write_features(paths, features, file)
            return FineSightError(f"{error} The features are kept in {file}: move that file when there is room.")
    return FineSightError(f"{error} Run the command again then, or with another --out: the images stay decoded.")


def write_features(paths: NDArray[np.str_], features: Features, out: Path, block_bytes: int = BLOCK_BYTES) -> None:
    """Write ``paths`` and ``features`` in the format of the suffix, always as float32.

    Wide features, which are kept in 16 bits with a scale for each row, are widened a part at a time: CUB's at 65,536
    numbers take 3.1 GB as npz.
    """
    with atomic_path(out) as scratch:
        WRITERS[out.suffix.lower()](paths, features, scratch, block_bytes)


def _blocks(
    paths: NDArray[np.str_], features: Features, block_bytes: int
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    if len(paths) != len(features):
        raise ValueError(f"{len(paths)} paths but {len(features)} features")
    step = max(1, block_bytes // (4 * max(1, features.shape[1])))
    for start in range(0, len(features), step):
        rows = slice(start, start + step)
        yield rows, np.ascontiguousarray(features[rows], dtype=np.float32)


def _write_npz(paths: NDArray[np.str_], features: Features, file: Path, block_bytes: int) -> None:
    """Write what ``np.savez`` does, without holding all of it in memory."""
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": features.shape}
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("paths.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array(stream, paths, allow_pickle=False)
        with archive.open("features.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for _, block in _blocks(paths, features, block_bytes):
                stream.write(block.data)


def _write_parquet(paths: NDArray[np.str_], features: Features, file: Path, block_bytes: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = features.shape[1]
    # parquet's text is UTF-8: other bytes of a name are written out, as \xe9
    names = [os.fsencode(path).decode("utf-8", "backslashreplace") for path in paths.tolist()]
    schema = pa.schema({"path": pa.string(), "feature": pa.list_(pa.float32(), width)})
    with pq.ParquetWriter(file, schema) as writer:
        for rows, block in _blocks(paths, features, block_bytes):
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), width)
            writer.write_table(pa.table({"path": pa.array(names[rows], pa.string()), "feature": vectors}, schema))


def _write_csv(paths: NDArray[np.str_], features: Features, file: Path, block_bytes: int) -> None:
    lines = (
        [str(path), *(np.format_float_positional(value, trim="-") for value in row)]
        for rows, block in _blocks(paths, features, block_bytes)
        for path, row in zip(paths[rows], block, strict=True)
    )
    with open_table(file) as stream:
        write_rows(stream, ["path", *(f"f{i}" for i in range(features.shape[1]))], lines)


WRITERS = {".npz": _write_npz, ".parquet": _write_parquet, ".csv": _write_csv}
