"""Keep an index in a folder and search it with FAISS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finesight.search.engines import INDEX_ENGINES, IndexEngine

if TYPE_CHECKING:
    from finesight.search.faiss_index import FaissIndex


@INDEX_ENGINES.decorator("faiss")
class FaissEngine(IndexEngine):
    """A folder of plain files, or a run that has such a folder."""

    new_forms = ("a folder",)
    forms = ("an index folder", "a run")

    @classmethod
    def matches(cls, uri: str) -> bool:
        return "://" not in uri

    @classmethod
    def index_class(cls) -> type[FaissIndex]:
        from finesight.search.faiss_index import FaissIndex

        return FaissIndex
