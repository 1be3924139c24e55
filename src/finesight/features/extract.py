"""Extract features and masks of many images from the decoded cache, with one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.preprocess import center_crop
from finesight.features.wide import WIDE, Features, WideRows, concatenate
from finesight.io.parallel import bounded_map
from finesight.io.progress import track
from finesight.nn.distributed import gather_objects, world
from finesight.nn.poolings import find_pooling

BATCH = 64


@dataclass(frozen=True)
class Extracted:
    """Features by pooling and masks by name, in the order of the indices that were given."""

    features: dict[str, Features]  # (N, D) each
    masks: dict[str, NDArray[np.float32]]  # (N, H, W) each
    attention: NDArray[np.float32]  # (N, H, W): one of the masks

    def only(self, name: str) -> Extracted:
        """Return what ``name`` alone would have given: its attention is the mask it used, else channel energy."""
        mask = find_pooling(name).shown_mask
        return Extracted({name: self.features[name]}, {mask: self.masks[mask]}, self.masks[mask])


def extract(
    encoder: Encoder,
    cache: DecodedCache,
    indices: NDArray[np.int64],
    poolings: Sequence[str],
    *,
    progress: bool = True,
    batch_size: int = BATCH,
) -> Extracted:
    """Embed ``indices`` of the cache under each pooling.

    Features of more than ``WIDE`` numbers come as ``WideRows``, others as float32 arrays. A pooling that needs
    annotated objects is a ``FineSightError`` where the data has none.
    """
    oracles = [name for name in poolings if find_pooling(name).needs_objects]
    if oracles and not has_objects(cache.source):
        raise FineSightError(
            f"Pooling {oracles[0]!r} looks at the annotated object, and {cache.source.root} has neither object masks "
            "nor boxes. Leave it out, or give a data set that has them (CUB-200-2011, the drawn look-alikes)."
        )
    encoder.prepare_for(len(indices), poolings, progress=progress)
    features: dict[str, Features] = {}
    masks: dict[str, NDArray[np.float32]] = {}
    batches = [slice(start, start + batch_size) for start in range(0, len(indices), batch_size)]
    read = bounded_map(lambda rows: encoder.cached_views(cache, indices[rows]), batches, workers=1, ahead=2)
    for rows, views in track(read, len(batches), "embedding", show=progress):
        objects = _objects(cache, indices[rows], encoder.config.resolution) if oracles else None
        output = encoder.encode(views, poolings, objects)
        if not masks:  # the first batch shows how large the arrays must be
            for name, batch in output.features.items():
                size = len(indices), batch.shape[1]
                features[name] = WideRows.empty(*size) if batch.shape[1] > WIDE else np.empty(size, np.float32)
            shape = len(indices), *output.attention.shape[1:]
            masks = {name: np.empty(shape, np.float32) for name in output.masks}
        for name, batch in output.features.items():
            features[name][rows] = batch.numpy()
        for name, batch in output.masks.items():
            masks[name][rows] = batch.numpy()
    return Extracted(features, masks, masks[encoder.pooler.shown_mask])


def extract_together(
    encoder: Encoder,
    cache: DecodedCache,
    indices: NDArray[np.int64],
    poolings: Sequence[str],
    *,
    progress: bool = True,
) -> Extracted:
    """Return what ``extract`` does, on every rank, where each rank embeds every so-many-th image and no other.

    All ranks must call it, with the same cache and the same indices.
    """
    rank, processes = world()
    if processes == 1:
        return extract(encoder, cache, indices, poolings, progress=progress)
    shown = rank == 0 and progress
    own = indices[rank::processes]
    part = extract(encoder, cache, own, poolings, progress=shown) if len(own) else None
    parts = [found for found in gather_objects(part) if found is not None]  # where images are few, not of every rank
    count, step = len(indices), len(parts)
    places = np.argsort(np.concatenate([np.arange(first, count, step) for first in range(step)]))

    features = {name: concatenate(*(one.features[name] for one in parts))[places] for name in parts[0].features}
    masks = {name: np.concatenate([one.masks[name] for one in parts])[places] for name in parts[0].masks}
    return Extracted(features, masks, masks[encoder.pooler.shown_mask])


def has_objects(source: ImageSource) -> bool:
    """Return whether it is known where the objects are."""
    return source.masks is not None or source.boxes is not None


def object_masks(
    cache: DecodedCache, indices: NDArray[np.int64], resolution: int
) -> Iterator[NDArray[np.bool_] | None]:
    """Yield where the object is in the view of each image, (R, R), or None where that is unknown."""
    for i in indices:
        mask = cache.mask(int(i))
        yield None if mask is None else center_crop(mask, resolution)


def _objects(cache: DecodedCache, indices: NDArray[np.int64], resolution: int) -> torch.Tensor:
    """Return object masks (N, R, R); an image whose object is unknown has it nowhere."""
    nowhere = np.zeros((resolution, resolution), dtype=bool)
    masks = [nowhere if mask is None else mask for mask in object_masks(cache, indices, resolution)]
    return torch.from_numpy(np.stack(masks))
