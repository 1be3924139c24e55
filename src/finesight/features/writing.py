"""Write the features of a folder as a file that other programs read."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import NoneReadable, open_cache, write_skipped
from finesight.data.cache_budget import images_within
from finesight.data.sources import ImageSource, open_source
from finesight.data.store import default_cache_dir
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.features.wide import Features, concatenate
from finesight.io.atomic import WriteError, atomic_path, require_writable
from finesight.io.frames import utf8
from finesight.io.table import open_table, write_rows

BLOCK_BYTES = 64 * 2**20  # of the features made ready for a file at a time
NUMBER_BYTES = {
    ".npz": 4,
    ".parquet": 4,
    ".arrow": 4,
    ".feather": 4,
    ".csv": 8,
}  # that a number takes in a file, at least


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
    labels: bool = False,
) -> tuple[int, int]:
    """Write the feature of each readable image with its path, in order; return how many, and how many were skipped.

    With ``labels`` the file also says label and split of each image, where ``images`` tells them.
    """
    check_output(out)
    scale, source, name = encoder.config.framing.scale, open_source(images), pooling or encoder.config.pooling
    require_writable(out, len(source) * encoder.feature_width(name) * NUMBER_BYTES[out.suffix.lower()])
    paths: list[NDArray[np.str_]] = []
    parts: list[Features] = []
    told: list[dict[str, list[str]]] = []
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
        told.append(_told(cache.source) if labels else {})
        skipped += cache.skipped
    if not parts:
        raise FineSightError(f"none of the {len(source):,} images of {images} can be read, the first: {skipped[0][1]}.")
    features, names = concatenate(*parts), np.concatenate(paths)
    more = {name: [text for part in told for text in part[name]] for name in told[0]}
    try:
        write_features(names, features, out, more=more)
    except WriteError as error:
        raise _kept_elsewhere(names, features, out, cache_dir or default_cache_dir(), error, more) from error
    if skipped:
        write_skipped(skipped, out.with_name(f"{out.stem}.skipped.csv"))
    return len(features), len(skipped)


def _told(source: ImageSource) -> dict[str, list[str]]:
    """Return what a source knows about its images, as texts."""
    known: dict[str, list[str]] = {}
    if source.labels is not None:
        known["label"] = [source.classes[label] if label >= 0 else "" for label in source.labels]
    if source.splits is not None:
        known["split"] = source.splits.tolist()
    return known


def _kept_elsewhere(
    paths: NDArray[np.str_],
    features: Features,
    out: Path,
    folder: Path,
    error: WriteError,
    more: Mapping[str, list[str]],
) -> FineSightError:
    """Write features whose own place failed them into the cache folder, and return the error that says so."""
    for place in (folder, Path(tempfile.gettempdir())):
        file = place / f"embedded-{os.getpid()}-{out.name}"
        with suppress(WriteError):
            write_features(paths, features, file, more=more)
            return FineSightError(f"{error} The features are kept in {file}: move that file when there is room.")
    return FineSightError(f"{error} Run the command again then, or with another --out: the images stay decoded.")


def write_features(
    paths: NDArray[np.str_],
    features: Features,
    out: Path,
    block_bytes: int = BLOCK_BYTES,
    more: Mapping[str, list[str]] | None = None,
) -> None:
    """Write ``paths`` and ``features`` in the format of the suffix, always as float32; ``more`` are columns of texts.

    Wide features, which are kept in 16 bits with a scale for each row, are widened a part at a time: CUB's at 65,536
    numbers take 3.1 GB as npz.
    """
    with atomic_path(out) as scratch:
        WRITERS[out.suffix.lower()](paths, features, scratch, block_bytes, more or {})


def _blocks(
    paths: NDArray[np.str_], features: Features, block_bytes: int
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    if len(paths) != len(features):
        raise ValueError(f"{len(paths)} paths but {len(features)} features")
    step = max(1, block_bytes // (4 * max(1, features.shape[1])))
    for start in range(0, len(features), step):
        rows = slice(start, start + step)
        yield rows, np.ascontiguousarray(features[rows], dtype=np.float32)


More = Mapping[str, list[str]]


def _write_npz(paths: NDArray[np.str_], features: Features, file: Path, block_bytes: int, more: More) -> None:
    """Write what ``np.savez`` does, without holding all of it in memory."""
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": features.shape}
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("paths.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array(stream, paths, allow_pickle=False)
        with archive.open("features.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for _, block in _blocks(paths, features, block_bytes):
                stream.write(block.data)
        for name, texts in more.items():
            with archive.open(f"{name}s.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.array(texts, np.str_), allow_pickle=False)


def _write_parquet(paths: NDArray[np.str_], features: Features, file: Path, block_bytes: int, more: More) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, _schema(features, more)) as writer:
        for table in _tables(paths, features, block_bytes, more):
            writer.write_table(table)


def _write_arrow(paths: NDArray[np.str_], features: Features, file: Path, block_bytes: int, more: More) -> None:
    """Write Arrow's file format, which is also the second version of Feather."""
    import pyarrow as pa

    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, _schema(features, more)) as writer:
        for table in _tables(paths, features, block_bytes, more):
            writer.write_table(table)


def _schema(features: Features, more: More) -> Any:
    import pyarrow as pa

    texts = dict.fromkeys(more, pa.string())
    return pa.schema({"path": pa.string(), "feature": pa.list_(pa.float32(), features.shape[1]), **texts})


def _tables(paths: NDArray[np.str_], features: Features, block_bytes: int, more: More) -> Iterator[Any]:
    import pyarrow as pa

    width, schema = features.shape[1], _schema(features, more)
    texts = {name: [utf8(text) for text in values] for name, values in {"path": paths.tolist(), **more}.items()}
    for rows, block in _blocks(paths, features, block_bytes):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), width)
        columns = {name: pa.array(values[rows], pa.string()) for name, values in texts.items()}
        yield pa.table({"path": columns.pop("path"), "feature": vectors, **columns}, schema)


def _write_csv(paths: NDArray[np.str_], features: Features, file: Path, block_bytes: int, more: More) -> None:
    lines = (
        [str(path), *texts, *(np.format_float_positional(value, trim="-") for value in row)]
        for rows, block in _blocks(paths, features, block_bytes)
        for path, row, *texts in zip(paths[rows], block, *(values[rows] for values in more.values()), strict=True)
    )
    with open_table(file) as stream:
        write_rows(stream, ["path", *more, *(f"f{i}" for i in range(features.shape[1]))], lines)


WRITERS = {
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".arrow": _write_arrow,
    ".feather": _write_arrow,
    ".csv": _write_csv,
}
