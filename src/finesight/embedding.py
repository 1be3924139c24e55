"""Features of a folder as a file other programs read."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import cache_side, open_cache, write_skipped
from finesight.data.sources import open_source
from finesight.encoder import Encoder
from finesight.errors import FineSightError
from finesight.evaluation.features import extract
from finesight.nn.pooling_config import PoolingName

SUFFIXES = (".npz", ".parquet", ".csv")


def check_output(out: Path) -> None:
    """Before hours of work, not after."""
    if out.suffix.lower() not in SUFFIXES:
        raise FineSightError(f"{out} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}.")
    if not out.absolute().parent.is_dir():
        raise FineSightError(f"The folder {out.absolute().parent} does not exist.")


def embed_images(
    encoder: Encoder,
    images: str | Path,
    out: Path,
    *,
    pooling: PoolingName | None = None,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> tuple[int, int]:
    """Write one feature per readable image, in the source's order, paths beside them. -> (written, skipped)"""
    check_output(out)
    cache = open_cache(
        open_source(images),
        cache_side(encoder.config.resolution),
        cache_dir=cache_dir,
        workers=workers,
        progress=progress,
    )
    name = pooling or encoder.config.pooling
    features = extract(encoder, cache, np.arange(len(cache)), (name,), progress=progress).features[name]
    write_features(cache.source.paths, features, out)
    if cache.skipped:
        write_skipped(cache.skipped, out.with_name(f"{out.stem}.skipped.csv"))
    return len(features), len(cache.skipped)


def write_features(paths: NDArray[np.str_], features: NDArray[np.float32], out: Path) -> None:
    """``paths`` and ``features`` in the format of the suffix, put into place in one move."""
    scratch = out.with_name(f".{out.name}.tmp{out.suffix}")
    try:
        if out.suffix.lower() == ".npz":
            with scratch.open("wb") as stream:  # given a name, NumPy may add to it
                np.savez(stream, paths=paths, features=features)
        elif out.suffix.lower() == ".parquet":
            _write_parquet(paths, features, scratch)
        else:
            _write_csv(paths, features, scratch)
        os.replace(scratch, out)
    finally:
        scratch.unlink(missing_ok=True)


def _write_parquet(paths: NDArray[np.str_], features: NDArray[np.float32], file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = features.shape[1]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width)
    # its text is UTF-8: a name that is not has its odd bytes written out, as \xe9
    names = [os.fsencode(path).decode("utf-8", "backslashreplace") for path in paths.tolist()]
    pq.write_table(pa.table({"path": pa.array(names, pa.string()), "feature": vectors}), file)


def _write_csv(paths: NDArray[np.str_], features: NDArray[np.float32], file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", *(f"f{i}" for i in range(features.shape[1]))])
        for path, row in zip(paths, features, strict=True):
            writer.writerow([path, *(np.format_float_positional(v, trim="-") for v in row)])
