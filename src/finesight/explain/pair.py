"""Two images of choice: why they are alike, as a figure and as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finesight.errors import FineSightError
from finesight.explain.contributions import Similarity, open_view, similarity
from finesight.explain.panels import alike
from finesight.features.encoder import Encoder


def explain_pair(
    encoder: Encoder, files: tuple[Path, Path], root: Path, by: str | None
) -> tuple[dict[str, Any], bytes]:
    """The numbers and the figure; files are as given or relative to ``root``."""
    first, second = (_found(file, root) for file in files)
    views = open_view(encoder, first), open_view(encoder, second)
    found = similarity(encoder, *views, by)
    png = alike(found, (views[0].pixels, views[1].pixels), (_name(first), _name(second)))
    return _facts(found, first, second), png


def _found(file: Path, root: Path) -> Path:
    """As given, or below the images' folder."""
    for place in (file.expanduser(), root / file):
        if place.is_file():
            return place
    raise FineSightError(f"--pair: there is no file {file}.")


def _name(file: Path) -> str:
    return f"{file.absolute().parent.name}/{file.stem}"


def _facts(found: Similarity, query: Path, hit: Path) -> dict[str, Any]:
    """For scripts: the score, and the maps and shares that sum to it."""
    shares = ("k", "share", "query_share", "hit_share", "matched")
    return {
        "query": str(query),
        "hit": str(hit),
        "by": found.by,
        "score": found.score,
        "query_map": found.query_map.tolist(),
        "hit_map": found.hit_map.tolist(),
        "projections": [{name: getattr(part, name) for name in shares} for part in found.projections],
    }
