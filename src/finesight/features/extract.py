"""Features and masks of many images, extracted once from the decoded cache."""

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
from finesight.features.wide import WIDE, Features, WideRows
from finesight.io.progress import track
from finesight.nn.pooling import mask_kind
from finesight.nn.pooling_config import ORACLES, AnyPooling, MaskName

BATCH = 64


@dataclass(frozen=True)
class Extracted:
    """In the order of the indices asked for."""

    features: dict[AnyPooling, Features]  # (N, C) each
    masks: dict[MaskName, NDArray[np.float32]]  # (N, H, W) each
    attention: NDArray[np.float32]  # (N, H, W): one of the masks

    def only(self, name: AnyPooling) -> Extracted:
        """What ``name`` alone would have given: its attention is the mask it used, channel energy if it used none."""
        kind = shown_mask(name)
        return Extracted({name: self.features[name]}, {kind: self.masks[kind]}, self.masks[kind])


def shown_mask(name: AnyPooling) -> MaskName:
    """The mask that stands for a pooling in pictures: channel energy for one that weighs nothing."""
    return mask_kind(name) or "energy"


def extract(
    encoder: Encoder,
    cache: DecodedCache,
    indices: NDArray[np.int64],
    poolings: Sequence[AnyPooling],
    *,
    progress: bool = True,
) -> Extracted:
    """Embed ``indices`` of the cache under each pooling with one forward pass.

    Features of more than ``WIDE`` numbers come as ``WideRows``, others as float32 arrays.
    """
    oracles = [name for name in poolings if name in ORACLES]
    if oracles and not has_objects(cache.source):
        raise FineSightError(
            f"Pooling {oracles[0]!r} looks at the annotated object, and {cache.source.root} has neither object masks "
            "nor boxes. Leave it out, or give a data set that has them (CUB-200-2011, the drawn look-alikes)."
        )
    features: dict[AnyPooling, Features] = {}
    masks: dict[MaskName, NDArray[np.float32]] = {}
    starts = range(0, len(indices), BATCH)
    for start in track(starts, len(starts), "embedding", show=progress):
        piece = indices[start : start + BATCH]
        objects = _objects(cache, piece, encoder.config.resolution) if oracles else None
        encoded = encoder.encode(encoder.view(*cache.batch(piece)), poolings, objects)
        if not masks:  # the first shows how much room there must be
            features = {name: _room(len(indices), batch.numpy()) for name, batch in encoded.features.items()}
            masks = {
                kind: np.empty((len(indices), *batch.shape[1:]), np.float32) for kind, batch in encoded.masks.items()
            }
        for name, batch in encoded.features.items():
            features[name][start : start + BATCH] = batch.numpy()
        for kind, batch in encoded.masks.items():
            masks[kind][start : start + BATCH] = batch.numpy()
    return Extracted(features, masks, masks.get("rationale", masks["energy"]))


def _room(count: int, batch: NDArray[np.float32]) -> Features:
    width = batch.shape[1]
    return WideRows.empty(count, width) if width > WIDE else np.empty((count, width), np.float32)


def has_objects(source: ImageSource) -> bool:
    """Is it known where the objects are?"""
    return source.masks is not None or source.boxes is not None


def object_masks(
    cache: DecodedCache, indices: NDArray[np.int64], resolution: int
) -> Iterator[NDArray[np.bool_] | None]:
    """Where the object is in the center crop that the encoder sees."""
    for i in indices:
        mask = cache.mask(int(i))
        yield None if mask is None else _center(mask, resolution)


def _objects(cache: DecodedCache, indices: NDArray[np.int64], resolution: int) -> torch.Tensor:
    """(N, R, R); an image whose object is unknown has it nowhere."""
    nowhere = np.zeros((resolution, resolution), dtype=bool)
    masks = [nowhere if mask is None else mask for mask in object_masks(cache, indices, resolution)]
    return torch.from_numpy(np.stack(masks))


def _center(mask: NDArray[np.bool_], resolution: int) -> NDArray[np.bool_]:
    """The rows and columns ``center_view`` takes."""
    top, left = (round((side - resolution) / 2) for side in mask.shape)
    return mask[top : top + resolution, left : left + resolution]
