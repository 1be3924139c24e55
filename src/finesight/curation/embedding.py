"""Embed a source once: features are kept in a folder as they are made, and only new or changed images embedded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.features.on_ray import Embedded
from finesight.features.parts_folder import PART, Parts
from finesight.features.types import Floats
from finesight.features.wide import WIDE
from finesight.io.progress import progress_bar

NO_MASK = np.zeros((0, 0), np.float32)


def embed_cached(
    encoder: Encoder,
    cache: DecodedCache,
    *,
    store: Path | None = None,
    pooling: str | None = None,
    progress: bool = True,
) -> Floats:
    """Return the feature of every image of a cache, (N, D).

    With ``store`` they are kept in that folder, a part at a time: a run that is killed continues there, and a later
    one embeds what changed. Features of another encoder in it are a ``FineSightError``.
    """
    name = pooling or encoder.config.pooling
    if encoder.feature_width(name) > WIDE:
        raise FineSightError(f"Features of the pooling {name!r} are too wide to be compared here: give --pooling gem.")
    if store is None:
        return np.asarray(extract(encoder, cache, np.arange(len(cache)), (name,), progress=progress).features[name])
    parts = Parts(store, f"{encoder_digest(encoder)} {name}")
    missing = parts.missing(cache.keys)
    if len(missing):
        encoder.prepare_for(len(missing), (name,), progress=progress)
        parts.write(
            _embed(encoder, cache, missing, name, progress), name, cache.keys[missing], cache.source.paths[missing]
        )
    _, features = parts.read(cache.keys)
    return features


def encoder_digest(encoder: Encoder) -> str:
    """Return a digest of an encoder's settings and weights, also of one that was never saved."""
    digest = hashlib.blake2b(encoder.config.model_dump_json().encode(), digest_size=16)
    for module in filter(None, (encoder.backbone, encoder.branch)):
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _embed(
    encoder: Encoder, cache: DecodedCache, images: NDArray[np.int64], pooling: str, progress: bool
) -> Iterator[Embedded]:
    with progress_bar(progress) as bar:
        task = bar.add_task("embedding", total=len(images))
        step = PART // 8  # so that the bar moves
        for start in range(0, len(images), step):
            rows = images[start : start + step]
            features = np.asarray(extract(encoder, cache, rows, (pooling,), progress=False).features[pooling])
            bar.update(task, advance=len(rows))
            for number, feature in enumerate(features, start):
                yield Embedded(number, "", False, 0, 0, NO_MASK, {pooling: feature})
