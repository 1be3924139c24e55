"""The decoded cache: every image is decoded once and kept small; later it is memory-mapped."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.data.cache_budget import make_room, mark_used
from finesight.data.decode import read_mask
from finesight.data.geometry import Geometry, Scale, as_scale, read_resized
from finesight.data.geometry import cache_side as cache_side
from finesight.data.sources import ImageSource
from finesight.data.store import NO_SUM, SHARD_IMAGES, Entries, add_images, image_key, read_entries, remove_shard
from finesight.data.store import default_cache_dir as default_cache_dir  # there: it needs no torch
from finesight.data.store import write_skipped as write_skipped
from finesight.errors import FineSightError, SkipImage
from finesight.io.console import console


class NoneReadable(FineSightError):
    """None of the images of a source can be read; ``skipped`` says why."""

    def __init__(self, message: str, skipped: list[tuple[str, str]]) -> None:
        super().__init__(message)
        self.skipped = skipped


@dataclass(frozen=True, eq=False)
class DecodedCache:
    """The readable images of a source, in its order, resized to ``scale``.

    Index ``i`` means the same image here and in ``source``, the given source without what was skipped.
    """

    source: ImageSource
    skipped: list[tuple[str, str]]  # path, reason: while listing and while decoding
    scale: Scale
    entries: Entries = field(repr=False)
    rows: NDArray[np.int64] = field(repr=False)  # (N,) into entries
    maps: dict[int, NDArray[np.uint8]] = field(repr=False)  # shard -> its bytes
    _seen: NDArray[np.bool_] = field(repr=False)  # (N,) whether the pixels were compared with their checksum
    _again: dict[int, NDArray[np.uint8]] = field(repr=False, default_factory=dict)  # pixels that were decoded again

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def side(self) -> int:
        return self.scale.side

    @property
    def is_part(self) -> bool:
        """Whether pixels of some images are on other machines."""
        return bool((self.entries.shard[self.rows] < 0).any())

    @property
    def keys(self) -> NDArray[np.bytes_]:
        """(N,) keys of the images on disk; the key changes if the file does."""
        return self.entries.keys[self.rows]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(N, 2) height and width of every cached image."""
        return self.entries.sizes[self.rows].astype(np.int64)

    @property
    def short_side(self) -> int:
        """The short side of the files that were decoded, in pixels: their median."""
        return int(np.median(self.entries.originals[self.rows].min(1)))

    def image(self, i: int) -> NDArray[np.uint8]:
        """Return an image as (h, w, 3), a read-only view of the file on disk.

        Pixels that are not what was written are decoded again; ``FineSightError`` if the file has changed since.
        """
        row = self.rows[i]
        height, width = self.entries.sizes[row]
        start = self.entries.offsets[row]
        pixels = self.maps[int(self.entries.shard[row])]
        image = pixels[start : start + height * width * 3].reshape(height, width, 3)
        if not self._seen[i]:
            expected = self.entries.sums[row]
            if expected != NO_SUM and zlib.crc32(image.data) != expected:
                self._again[int(i)] = self._decode_again(int(i), expected)
            self._seen[i] = True
        return self._again.get(int(i), image) if self._again else image

    def _decode_again(self, i: int, expected: int) -> NDArray[np.uint8]:
        """Return the pixels of an image whose place in the cache is damaged, which is given up."""
        shard, file = self.entries.shards[int(self.entries.shard[self.rows[i]])], self.source.file(i)
        if not self._again:
            console.print(f"The decoded cache {shard} is damaged: its images are decoded again.", markup=False)
        remove_shard(shard)
        try:
            pixels, _ = read_resized(str(file), self.scale, self.source.trim)
        except SkipImage as skip:
            raise FineSightError(f"The decoded cache is damaged and {file} cannot be read: {skip}.") from None
        if zlib.crc32(np.ascontiguousarray(pixels).data) != expected:
            raise FineSightError(f"The decoded cache is damaged and {file} has changed since: run the command again.")
        return pixels

    def batch(self, indices: Sequence[int] | NDArray[np.integer] | Tensor) -> tuple[Tensor, Tensor]:
        """Return uint8 (N, 3, H, W), each image at the top left of a black canvas, and int64 (N, 2) sizes (h, w).

        The three numbers of a pixel lie beside each other in memory, as in the cache.
        """
        chosen = np.asarray(indices, np.int64)
        sizes = self.entries.sizes[self.rows[chosen]]
        height, width = sizes.max(axis=0, initial=0)
        canvas = np.zeros((len(chosen), height, width, 3), np.uint8)
        for slot, i, (h, w) in zip(canvas, chosen, sizes, strict=True):
            slot[:h, :w] = self.image(i)
        return torch.from_numpy(canvas).permute(0, 3, 1, 2), torch.from_numpy(sizes)

    def geometry(self, i: int) -> Geometry:
        """Return how an image lies in its original."""
        width, height = self.entries.originals[self.rows[i]].tolist()
        return Geometry.fit(width, height, self.scale, self.source.trim)

    def box(self, i: int) -> NDArray[np.float32] | None:
        """Return x, y, width, height of the object in cached pixels, or ``None`` if the source has no boxes."""
        return None if self.source.boxes is None else self.geometry(i).box(self.source.boxes[i])

    def mask(self, i: int) -> NDArray[np.bool_] | None:
        """Return (h, w), true where the object is, from its mask picture or its box; ``None`` if there is neither."""
        if self.source.masks is None:
            box = self.box(i)
            return None if box is None else self.geometry(i).fill_box(box)
        file = self.source.root / str(self.source.masks[i])
        try:
            return self.geometry(i).mask(read_mask(file))
        except SkipImage as skip:
            raise FineSightError(f"the object mask {file} cannot be used: {skip}") from None


def open_cache(
    source: ImageSource,
    scale: int | Scale,
    *,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
    shard_images: int = SHARD_IMAGES,
    callback: Callable[[int, int], None] | None = None,
) -> DecodedCache:
    """Decode what is not in the cache yet, then open all of it. Any number of processes may do so at once.

    ``scale`` is the size of a decoded image, a number its short side in pixels (see ``cache_side``). ``shard_images``
    are written at a time: a build that is killed loses at most so many. ``callback`` is told how many images of how
    many are decoded.
    """
    scale = as_scale(scale)
    folder = _folder(cache_dir, scale)
    keys, problems = _keys(source, scale)
    entries = read_entries(folder)
    present = np.array([i not in problems for i in range(len(source))], bool)
    found = entries.find(keys)
    missing = np.flatnonzero(present & (found < 0)).tolist()
    if missing:
        jobs = [(k, str(source.file(i)), source.trim) for k, i in zip(keys[missing].tolist(), missing, strict=True)]
        needed = {entries.shards[shard] for shard in np.unique(entries.shard[found[found >= 0]]).tolist()}
        make_room(folder.parent, len(missing), scale.side, needed)
        unreachable = add_images(folder, jobs, scale, workers, progress, shard_images, callback)
        entries = read_entries(folder)
        tried = zip(missing, jobs, strict=True)
        problems |= {i: unreachable[key] for i, (key, *_) in tried if key in unreachable}
    return _assemble(source, scale, entries, keys, problems)


def count_missing(source: ImageSource, scale: int | Scale, cache_dir: Path | None = None) -> int:
    """Return how many images of the source are still to be decoded."""
    scale = as_scale(scale)
    keys, problems = _keys(source, scale)
    unknown = read_entries(_folder(cache_dir, scale)).find(keys) < 0
    return int(unknown.sum()) - len(problems)


def _folder(cache_dir: Path | None, scale: Scale) -> Path:
    return Path(cache_dir or default_cache_dir()).absolute() / f"v1-side{scale}"


def _keys(source: ImageSource, scale: Scale) -> tuple[NDArray[np.bytes_], dict[int, str]]:
    """Return the key of each image, and by index why some have none."""
    keys, problems = np.zeros(len(source), "S16"), {}
    root = str(source.root)
    for i, path in enumerate(source.paths.tolist()):
        try:
            keys[i] = image_key(os.path.join(root, path), scale, source.trim)
        except SkipImage as skip:
            problems[i] = str(skip)
    return keys, problems


def _assemble(
    source: ImageSource, scale: Scale, entries: Entries, keys: NDArray[np.bytes_], problems: dict[int, str]
) -> DecodedCache:
    rows = entries.find(keys)
    for i in range(len(source)):
        if i in problems:
            rows[i] = -1
        elif rows[i] < 0:
            raise FineSightError("the decoded cache was damaged while it was opened; run the command again")
        elif entries.reasons[rows[i]]:
            problems[i] = str(entries.reasons[rows[i]])
            rows[i] = -1
    skipped = [(str(source.paths[i]), problems[i]) for i in sorted(problems)]
    kept = np.flatnonzero(rows >= 0)
    if not len(kept):
        raise NoneReadable(_none_readable(source, skipped), skipped)
    rows = rows[kept]
    shards = np.unique(entries.shard[rows]).tolist()
    mark_used([entries.shards[shard] for shard in shards])
    maps: dict[int, NDArray[np.uint8]] = {s: np.memmap(entries.shards[s] / "pixels.bin", np.uint8, "r") for s in shards}
    seen = np.zeros(len(rows), bool)
    return DecodedCache(source.select(kept), [*source.skipped, *skipped], scale, entries, rows, maps, seen)


def _none_readable(source: ImageSource, skipped: list[tuple[str, str]]) -> str:
    if not skipped:
        return f"{source.root} has no images to read here; give --data a folder that has some"
    reasons = Counter(reason for _, reason in skipped).most_common(3)
    found = "; ".join(f"{n:,} x {reason}" for reason, n in reasons)
    return (
        f"none of the {len(source):,} images of {source.root} can be read ({found}), the first being "
        f"{skipped[0][0]}; repair them or give --data another folder"
    )
