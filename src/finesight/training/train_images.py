"""The images of a run: decoded, and divided into those that are trained on and those that are held out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache, cache_side, open_cache, write_skipped
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.io.console import console, format_count
from finesight.methods.base import find_method
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.parts import open_part
from finesight.training.progress import RunProgress
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import RunImages, path_hashes


def encoder_cache(
    config: TrainConfig, runtime: RuntimeConfig, source: ImageSource, images: NDArray[np.int64], *, show: bool = False
) -> DecodedCache:
    """Return these images of the source, resized as for the encoder."""
    return open_cache(
        source.select(images),
        config.encoder_framing.scale,
        cache_dir=runtime.cache_dir,
        workers=runtime.workers,
        progress=show,
    )


def open_images(
    config: TrainConfig,
    runtime: RuntimeConfig,
    run: RunFolder | None = None,
    progress: RunProgress | None = None,
    known: RunImages | None = None,
) -> DecodedCache:
    """Return the decoded train images; see ``prepare_data``."""
    source = open_source(config.data)
    if run is not None:
        console.print(source.describe())
    source = train_part(source, config, known)
    side, show = cache_side(config.views.resolution), runtime.progress and run is not None
    callback = None if progress is None else progress.tell_decoding
    if runtime.cache_shards > 1:
        cache = open_part(source, side, runtime, progress=show, callback=callback)
    else:
        where, workers = runtime.cache_dir, runtime.workers
        cache = open_cache(source, side, cache_dir=where, workers=workers, progress=show, callback=callback)
    if run is not None:
        write_skipped(cache.skipped, run.skipped)
        if cache.skipped:
            skipped = format_count(len(cache.skipped), "file was", "files were")
            console.print(f"{skipped} skipped; {run.skipped} says which and why.")
        if known is not None and (changes := known.changes(cache.source)):
            console.print(changes)
    return cache


def images_again(
    config: TrainConfig, runtime: RuntimeConfig, known: RunImages | None
) -> tuple[ImageSource, NDArray[np.int64]]:
    """Return the train images of a finished run and which of them are held out, as one process sees them alone.

    Of images that are decoded in parts, on several machines, none is decoded here.
    """
    if runtime.cache_shards > 1 and known is not None:
        source = train_part(open_source(config.data), config, known)
        hashes = path_hashes(source)
        return source, np.flatnonzero(np.isin(hashes, known.held_out))
    cache = open_images(config, runtime, known=known)
    return cache.source, split_images(cache, config, known)[1]


def prepare_data(
    config: TrainConfig,
    runtime: RuntimeConfig,
    run: RunFolder | None = None,
    progress: RunProgress | None = None,
    known: RunImages | None = None,
) -> tuple[DecodedCache, NDArray[np.int64], NDArray[np.int64]]:
    """Return the decoded train images, which of them are trained on, and which are held out for validation.

    With ``run``, what was found is printed and its skipped.csv written. ``known`` is what the run remembers of the
    images it began with: it decides what is held out.
    """
    cache = open_images(config, runtime, run, progress, known)
    root = cache.source.root
    images, held_out = split_images(cache, config, known)
    objective = find_method(config.method).find_objective()
    if objective is None:
        return cache, images, held_out
    if objective.labeled:
        if known is not None:
            unknown = sorted({*cache.source.classes} - {*known.classes})
            if unknown and run is not None:
                console.print(f"Not learned, since the run began without them: {', '.join(unknown)}.", markup=False)
            cache = known.relabel(cache)
        labels = cache.source.labels
        if labels is None or (labels < 0).all():
            raise FineSightError(
                f"Method {config.method!r} learns from labels and {root} has none. Give a folder with one "
                "sub-folder per class, or a list with a label column."
            )
        images = images[labels[images] >= 0]
    if len(images) < config.batch_size:
        again = " with --restart" if known is not None else ""
        raise FineSightError(
            f"{root} has {len(images)} readable images to train on ({len(cache.skipped)} skipped, "
            f"{len(held_out)} held out for validation), fewer than one batch of {config.batch_size}: "
            f"add images or lower --batch-size to {max(2, len(images))} or less{again}."
        )
    return cache, images, held_out


def train_part(source: ImageSource, config: TrainConfig, known: RunImages | None = None) -> ImageSource:
    """Return the images that a run may look at: of the train split, the first classes, or a random part."""
    if config.limit_classes is not None:
        source = source.first_classes(config.limit_classes)
    source = source.split("train")
    if config.limit_images is not None and config.limit_images < len(source):
        order = np.random.default_rng([config.seed, 1]).permutation(len(source))
        picked = np.sort(order[: config.limit_images])
        source = source.select(picked if known is None else known.limit(source, order, config.limit_images))
    return source


def split_images(
    cache: DecodedCache, config: TrainConfig, known: RunImages | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which images are trained on and which are held out: none without labels, in a known run the same again."""
    if known is not None:
        return known.split(cache)
    if cache.source.labels is None:
        return np.arange(len(cache)), np.arange(0)
    return hold_out(len(cache), config)


def hold_out(count: int, config: TrainConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose a random part for validation without using labels. Returns (kept, held out), both in order."""
    size = min(config.validation.max_images, round(count * config.validation.fraction))
    order = np.random.default_rng([config.seed, 2]).permutation(count)
    return np.sort(order[size:]), np.sort(order[:size])
