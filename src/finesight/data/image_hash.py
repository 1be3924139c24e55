"""Find images that are the same picture, byte for byte or to the eye."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NEAR = 4  # of 64 bits: another size, quality or brightness changes as many, another photo about 32
_SIDE = 32
_BLANK = 2.0  # gray levels of standard deviation: below it the hash would be one of noise
_ONES = np.array([bin(value).count("1") for value in range(1 << 16)], np.uint8)


def _lowest_waves() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the cosines of the DCT-II, (waves, pixels), and the 64 lowest pairs of them after the constant one."""
    waves = 12
    basis = np.cos(np.pi / _SIDE * np.outer(np.arange(waves), np.arange(_SIDE) + 0.5))
    basis[0] /= np.sqrt(2)
    pairs = sorted(((u, v) for u in range(waves) for v in range(waves)), key=lambda p: (p[0] + p[1], p))[1:65]
    down, across = np.array(pairs).T
    return basis, down, across


_BASIS, _DOWN, _ACROSS = _lowest_waves()
_MIRROR = np.where(_ACROSS % 2, -1.0, 1.0)  # waves that a mirrored picture has with the other sign


def content_hash(file: Path) -> bytes:
    """Return a hash of the bytes of a file, which is read piece by piece."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()


def perceptual_hash(image: Image.Image) -> int | None:
    """Return 64 bits: which low frequencies of the gray picture are stronger than their median.

    Size, compression, brightness and contrast hardly change them. A picture of one color has no hash (``None``):
    all such pictures would be alike.
    """
    return perceptual_hashes(image)[0]


def perceptual_hashes(image: Image.Image) -> tuple[int, int] | tuple[None, None]:
    """Return the perceptual hash of a picture, and that of its mirror image (left and right exchanged)."""
    gray = np.asarray(image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), np.float64)
    if gray.std() < _BLANK:
        return None, None
    waves = (_BASIS @ gray @ _BASIS.T)[_DOWN, _ACROSS]  # (32, 32) -> (64,)
    return _bits(waves), _bits(waves * _MIRROR)


def _bits(waves: NDArray[np.float64]) -> int:
    return int.from_bytes(np.packbits(waves > np.median(waves)).tobytes(), "big")


def group_duplicates(
    contents: Sequence[bytes | None],
    hashes: Sequence[int | None],
    distance: int = NEAR,
    mirrored: Sequence[int | None] | None = None,
) -> NDArray[np.int64]:
    """Return for each image the first image of its group: itself if it is like no earlier one.

    Images are in one group if their contents are equal, if their hashes are at most ``distance`` bits apart, or if a
    chain of such pairs connects them. With ``mirrored``, the hashes of the mirror images, a picture and its mirror
    image are a pair as well.
    """
    group = np.arange(len(contents))
    merge_groups(group, *_to_first(contents))
    every = [*hashes, *(mirrored or ())]
    whose = np.arange(len(every)) % max(1, len(hashes))
    one, two = _to_first(every)
    merge_groups(group, whose[one], whose[two])
    known = np.array([i for i, value in enumerate(every) if value is not None], np.int64)
    values = np.array([value for value in every if value is not None], np.uint64)
    distinct, first = np.unique(values, return_index=True)  # a hash that many share is compared once
    images = whose[known[first]]
    for a, b in near_pairs(distinct, distance):
        merge_groups(group, images[a], images[b])
    return group


def near_pairs(
    hashes: NDArray[np.uint64], distance: int = NEAR
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield all pairs at most ``distance`` bits apart, in portions, some more than once; not all are compared.

    Cut into ``distance + 1`` bands, two such hashes have at least one band in common (pigeonhole): only hashes
    with an equal band are compared. Sorted by a band they lie together, so step k compares each with its kth
    successor, for all bands' values at once.
    """
    edges = np.linspace(0, 64, distance + 2).astype(np.uint64)
    for low, high in pairwise(edges):
        mask = np.uint64((1 << int(high - low)) - 1)
        band = (hashes >> low) & mask
        order = np.argsort(band, kind="stable")
        band, values = band[order], hashes[order]
        left, step = np.arange(len(hashes)), 0
        while len(left):
            step += 1
            left = left[left + step < len(hashes)]
            left = left[band[left] == band[left + step]]
            near = left[count_bits(values[left] ^ values[left + step]) <= distance]
            if len(near):
                yield order[near], order[near + step]


def count_bits(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return how many bits of each value are set (``np.bitwise_count`` needs NumPy 2)."""
    quarters = np.ascontiguousarray(values).view(np.uint16).reshape(-1, 4)  # (N,) -> (N, 4)
    counts: NDArray[np.int64] = _ONES[quarters].sum(axis=1, dtype=np.int64)
    return counts


def _to_first(values: Sequence[bytes | None] | Sequence[int | None]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each image that has a value, and the first image with the same value."""
    first: dict[bytes | int, int] = {}
    pairs = [(i, first.setdefault(value, i)) for i, value in enumerate(values) if value is not None]
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def merge_groups(group: NDArray[np.int64], a: NDArray[np.int64], b: NDArray[np.int64]) -> None:
    """Merge the groups of a[i] and b[i], for each i, in place; the number of a group is its smallest member."""
    while True:
        low, high = np.minimum(group[a], group[b]), np.maximum(group[a], group[b])
        if (low == high).all():
            return
        np.minimum.at(group, high, low)
        while (group[group] != group).any():
            group[:] = group[group]
