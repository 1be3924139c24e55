"""Findings as HTML for notebooks: pictures with what is wrong about each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finesight.io.console import format_count
from finesight.plots.inline import Tile, picture_rows, read_picture

if TYPE_CHECKING:
    from finesight.curation.findings import Cleaning

SHOWN = 12  # findings of each kind
GROUP = 4  # images of a group of copies


def cleaning_html(found: Cleaning) -> str:
    """Return suspected labels, groups of copies and outliers, the most certain first."""

    def tile(image: int, title: str, path: str) -> Tile:
        return Tile(read_picture(found.source.file(image)), title, path)

    suspects = [
        tile(one.image, f"{one.given} → {one.suggested}, {one.score:.0%}", one.path) for one in found.suspects[:SHOWN]
    ]
    copies = [
        [
            tile(copy.image, copy.kind if place else "first", copy.path)
            for place, copy in enumerate(group.images[:GROUP])
        ]
        for group in found.duplicates[: SHOWN // GROUP]
    ]
    outliers = [tile(far.image, "; ".join(far.why), far.path) for far in found.outliers[:SHOWN]]
    parts = [
        picture_rows(
            f"{format_count(len(found.suspects), 'label')} probably wrong, of {len(found.source):,} images. The name "
            "before the arrow is given, the one after it is suggested.",
            [suspects],
        ),
        picture_rows(f"{format_count(len(found.duplicates), 'group')} of copies.", copies),
        picture_rows(f"{format_count(len(found.outliers), 'outlier')}.", [outliers], " ".join(found.notes)),
    ]
    return "".join(parts)
