"""The hits of a search: a tuple that shows its pictures in a notebook and is a table for other tools."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

import numpy as np
from PIL import Image

from finesight.data.places import is_place
from finesight.features.types import View
from finesight.io.console import format_count
from finesight.io.frames import arrow_table, data_frame
from finesight.plots.inline import SIDE, Tile, picture_rows, read_picture
from finesight.search.base import Hit
from finesight.search.image_files import item_file

SHOWN = 24  # pictures in a notebook


class Hits(tuple[Hit, ...]):
    """Hits of a search, best first: a tuple of `Hit`. In a notebook it shows the query and the pictures.

    Paths of hits are relative to ``root``, the folder of the index. ``query`` is the view of the picture that was
    searched for, where it was a picture; ``by`` is the pooling whose features were compared.
    """

    root: str
    query: View | None
    by: str

    def __new__(cls, hits: Iterable[Hit] = (), *, root: str = "", query: View | None = None, by: str = "") -> Hits:
        """Make hits."""
        made = super().__new__(cls, hits)
        made.root, made.query, made.by = root, query, by
        return made

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> Hit: ...
    @overload
    def __getitem__(self, key: slice, /) -> Hits: ...
    def __getitem__(self, key: Any, /) -> Any:
        found = super().__getitem__(key)
        return Hits(found, root=self.root, query=self.query, by=self.by) if isinstance(key, slice) else found

    def __getnewargs_ex__(self) -> tuple[tuple[tuple[Hit, ...]], dict[str, Any]]:
        return (tuple(self),), {"root": self.root, "query": self.query, "by": self.by}

    def picture(self, i: int, side: int = SIDE) -> Image.Image | None:
        """Return the upright picture of hit i, perhaps smaller but with ``side`` pixels or more; None if it is gone."""
        path = self[i].path
        file = os.path.join(self.root, path) if is_place(self.root) else item_file(self.root, path)
        return read_picture(file, side)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``: rank (from 1), path, score, id, width and height, best first.

        Raises ``FineSightError`` if pandas is not installed.
        """
        return data_frame(self._columns())

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table`` with the columns of ``to_pandas``."""
        return arrow_table(self._columns())

    def _columns(self) -> dict[str, Any]:
        return {
            "rank": np.arange(1, len(self) + 1),
            "path": [hit.path for hit in self],
            "score": np.array([hit.score for hit in self], np.float64),
            "id": np.array([hit.id for hit in self], np.int64),
            "width": np.array([hit.width for hit in self], np.int64),
            "height": np.array([hit.height for hit in self], np.int64),
        }

    def _repr_html_(self) -> str:
        tiles = [] if self.query is None else [Tile(self.query.pixels, "query", "what the network sees of it")]
        shown = min(len(self), SHOWN)
        tiles += [Tile(self.picture(i), f"{self[i].score:.3f}", self[i].path) for i in range(shown)]
        words = format_count(len(self), "hit") + (f", by {self.by}" if self.by else "")
        more = f" The first {shown} are shown." if shown < len(self) else ""
        return picture_rows(f"{words}. The number is the cosine of the two features, 1 at most.{more}", [tiles])
