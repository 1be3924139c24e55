"""Keep the decoded cache below a size: ``FINESIGHT_CACHE_GB``. Without that variable it grows as the disk lets it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from finesight.errors import FineSightError
from finesight.io.lock import locked

VARIABLE = "FINESIGHT_CACHE_GB"
BYTES_MARGIN = 1.5  # pictures are longer than wide: side * side * 3 is the least they need


def budget() -> float | None:
    """Return how many bytes all decoded images may take; None for any number."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise FineSightError(f"{VARIABLE}={text!r} must be a number of gigabytes above 0.")
    return value * 1e9


def images_within(side: int) -> int | None:
    """Return how many images of this side fit into the budget at a time; None without a budget."""
    allowed = budget()
    return None if allowed is None else max(1, int(allowed / _bytes_of(1, side)))


def make_room(cache: Path, images: int, side: int, needed: Collection[Path] = ()) -> None:
    """Remove shards that were not used for longest, of any size of images, until ``images`` more fit.

    ``needed`` shards stay. Raises ``FineSightError`` if they do not fit then.
    """
    allowed = budget()
    if allowed is None or not cache.is_dir():
        return
    shards = [shard for shard in cache.glob("v1-side*/*") if shard.is_dir() and not shard.name.startswith(".")]
    sizes = {shard: _size(shard) for shard in shards}
    more, used = _bytes_of(images, side), float(sum(sizes.values()))
    for shard in sorted(set(shards) - set(needed), key=_last_use):
        if used + more <= allowed:
            return
        with locked(shard.parent / "lock"):
            shutil.rmtree(shard, ignore_errors=True)
        used -= sizes[shard]
    if used + more > allowed:
        raise FineSightError(
            f"{images:,} more decoded images need about {more / 1e9:,.1f} GB, and {VARIABLE} allows "
            f"{allowed / 1e9:,.1f} GB, of which these images use {used / 1e9:,.1f}: raise it, or divide the images "
            "over machines (--cache-shards)."
        )


def mark_used(shards: Collection[Path]) -> None:
    """Remember that shards were used now."""
    if budget() is None:
        return
    for shard in shards:
        os.utime(shard)


def _bytes_of(images: int, side: int) -> float:
    return images * side * side * 3 * BYTES_MARGIN


def _size(shard: Path) -> int:
    try:
        return sum(file.stat().st_size for file in shard.iterdir())
    except OSError:  # removed meanwhile
        return 0


def _last_use(shard: Path) -> float:
    try:
        return shard.stat().st_mtime
    except OSError:
        return 0.0
