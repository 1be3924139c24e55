"""Keep an index in a folder and search it with FAISS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finesight.search.engines import INDEX_ENGINES, IndexEngine

if TYPE_CHECKING:
    from finesight.search.base import IndexMeta
    from finesight.search.faiss_index import FaissIndex


@INDEX_ENGINES.decorator("faiss")
class FaissEngine(IndexEngine):
    """A folder of plain files; see ``finesight.search.faiss_index``."""

    new_forms = ("a folder",)
    forms = ("an index folder", "a run")

    @classmethod
    def matches(cls, uri: str) -> bool:
        return "://" not in uri

    @classmethod
    def exists(cls, uri: str) -> bool:
        from finesight.search.faiss_index import META

        return (Path(uri).expanduser() / META).exists()

    @classmethod
    def open(cls, uri: str) -> FaissIndex:
        from finesight.search.faiss_index import FaissIndex, find_index_folder

        return FaissIndex(find_index_folder(uri))

    @classmethod
    def create(cls, uri: str, meta: IndexMeta, encoder: Path) -> FaissIndex:
        from finesight.search.faiss_index import FaissIndex

        return FaissIndex.create(Path(uri).expanduser(), meta, encoder)
