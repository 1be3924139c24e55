"""Features and attention of many images, extracted once from the decoded cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finesight.console import track
from finesight.data.cache import DecodedCache
from finesight.encoder import Encoder
from finesight.nn.pooling_config import PoolingName

BATCH = 64


@dataclass(frozen=True)
class Extracted:
    """In the order of the indices asked for."""

    features: dict[PoolingName, NDArray[np.float32]]  # (N, C) each
    attention: NDArray[np.float32]  # (N, H, W)


def extract(
    encoder: Encoder,
    cache: DecodedCache,
    indices: NDArray[np.int64],
    poolings: Sequence[PoolingName],
    *,
    progress: bool = True,
) -> Extracted:
    """Embed ``indices`` of the cache under each pooling with one forward pass."""
    features: dict[PoolingName, list[NDArray[np.float32]]] = {name: [] for name in poolings}
    attention: list[NDArray[np.float32]] = []
    pieces = [indices[start : start + BATCH] for start in range(0, len(indices), BATCH)]
    for piece in track(pieces, len(pieces), "embedding", show=progress):
        encoded = encoder.encode(encoder.view(*cache.batch(piece)), poolings)
        attention.append(encoded.attention.numpy())
        for name, values in encoded.features.items():
            features[name].append(values.numpy())
    return Extracted({name: np.concatenate(parts) for name, parts in features.items()}, np.concatenate(attention))


def object_masks(
    cache: DecodedCache, indices: NDArray[np.int64], resolution: int
) -> Iterator[NDArray[np.bool_] | None]:
    """Where the object is in the centre crop that the encoder sees."""
    for i in indices:
        mask = cache.mask(int(i))
        yield None if mask is None else _centre(mask, resolution)


def _centre(mask: NDArray[np.bool_], resolution: int) -> NDArray[np.bool_]:
    """The rows and columns ``centre_view`` takes."""
    top, left = (round((side - resolution) / 2) for side in mask.shape)
    return mask[top : top + resolution, left : left + resolution]
