"""Features and masks of many images, extracted once from the decoded cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from finesight.console import track
from finesight.data.cache import DecodedCache
from finesight.data.sources import ImageSource
from finesight.encoder import Encoder
from finesight.errors import FineSightError
from finesight.nn.pooling import mask_kind
from finesight.nn.pooling_config import ORACLES, AnyPooling, MaskName

BATCH = 64
WIDE = 16_384  # columns; features with more are kept in 16 bits
BLOCK_BYTES = 64 * 2**20  # of a wide matrix, the part held in float64 at a time
TOP = 15  # the largest number of a row is kept below 2¹⁵; 16 bits end just below 2¹⁶


@dataclass(frozen=True, eq=False)
class WideRows:
    """Features (N, D) too wide to hold in float32, read in float32 where they are looked at.

    A row is kept in 16 bits, divided by the power of two that brings its largest number into [2¹⁴, 2¹⁵): nothing
    overflows, and numbers down to 2⁻²⁸ of the largest keep 11 bits. CUB's 11,788 images of 65,536 numbers take 1.5 GB
    so, where float32 takes 3.1. Rows, or rows and columns, are chosen as those of an array are, and nothing is copied;
    ``tensor``, ``np.asarray`` and iteration then give numbers.
    """

    values: NDArray[np.float16] | NDArray[np.float32]  # (M, D)
    rows: NDArray[np.int64]  # (N,) which of them
    scale: NDArray[np.float64]  # (N,) and times what

    @classmethod
    def empty(cls, count: int, width: int) -> Self:
        """Room for as many, to be assigned to by rows."""
        return cls(np.empty((count, width), np.float16), np.arange(count), np.ones(count))

    @classmethod
    def of(cls, features: Features) -> WideRows:
        """An array as it is, without a copy."""
        if isinstance(features, WideRows):
            return features
        return cls(features, np.arange(len(features)), np.ones(len(features)))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.values.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> WideRows:
        """The same numbers, fewer of them; columns are a slice."""
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        rows = rows if isinstance(rows, slice) else np.asarray(rows)
        return WideRows(self.values[:, columns], self.rows[rows], self.scale[rows])

    def __setitem__(self, rows: slice, features: NDArray[np.float32]) -> None:
        given = torch.from_numpy(features).double()
        _, exponent = np.frexp(given.abs().amax(1).numpy())
        self.scale[rows] = np.ldexp(1.0, np.clip(exponent - TOP, -149, 113))  # as float32 can hold
        self.values[self.rows[rows]] = (given / torch.from_numpy(self.scale[rows])[:, None]).half().numpy()

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(self), BATCH):
            yield from np.asarray(self[start : start + BATCH])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All of it in float32, for those who have the room."""
        if copy is False:
            raise ValueError("wide features are given as numbers by a copy only")
        numbers = self.tensor(torch.float64 if dtype == np.float64 else torch.float32).numpy()
        return numbers if dtype is None else numbers.astype(dtype, copy=False)

    def tensor(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(N, D), new."""
        return torch.from_numpy(self.values[self.rows]).to(dtype).mul_(torch.from_numpy(self.scale).to(dtype)[:, None])

    def times(self, factors: NDArray[np.float64]) -> WideRows:
        """Each row by its own factor, without touching the numbers."""
        return WideRows(self.values, self.rows, self.scale * factors)


Features = NDArray[np.float32] | WideRows


def joined(first: Features, second: Features) -> Features:
    """One below the other."""
    if isinstance(first, WideRows) and isinstance(second, WideRows):
        rows = np.concatenate([first.rows, len(first.values) + second.rows])
        scale = np.concatenate([first.scale, second.scale])
        return WideRows(np.concatenate([first.values, second.values]), rows, scale)
    return np.concatenate([first, second])


def row_lengths(features: Features) -> NDArray[np.float64]:
    """(N,); not finite where a number of the row is not, as squares of float32 cannot overflow float64."""
    step = max(1, BLOCK_BYTES // (8 * max(1, features.shape[1])))
    lengths = np.empty(len(features))
    for start in range(0, len(features), step):
        block = np.asarray(features[start : start + step], np.float64)
        lengths[start : start + step] = np.linalg.norm(block, axis=1)
    return lengths


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
    """Where the object is in the centre crop that the encoder sees."""
    for i in indices:
        mask = cache.mask(int(i))
        yield None if mask is None else _centre(mask, resolution)


def _objects(cache: DecodedCache, indices: NDArray[np.int64], resolution: int) -> torch.Tensor:
    """(N, R, R); an image whose object is unknown has it nowhere."""
    nowhere = np.zeros((resolution, resolution), dtype=bool)
    masks = [nowhere if mask is None else mask for mask in object_masks(cache, indices, resolution)]
    return torch.from_numpy(np.stack(masks))


def _centre(mask: NDArray[np.bool_], resolution: int) -> NDArray[np.bool_]:
    """The rows and columns ``centre_view`` takes."""
    top, left = (round((side - resolution) / 2) for side in mask.shape)
    return mask[top : top + resolution, left : left + resolution]
