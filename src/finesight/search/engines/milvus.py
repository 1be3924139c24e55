"""Keep an index in a collection of a Milvus server, or in a Milvus Lite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finesight.search.engines import INDEX_ENGINES, IndexEngine

if TYPE_CHECKING:
    from finesight.search.milvus_index import MilvusIndex


@INDEX_ENGINES.decorator("milvus")
class MilvusEngine(IndexEngine):
    """``milvus://host:port/collection``, ``milvuss://…`` with TLS, or a file whose name ends in ``.db``."""

    new_forms = forms = ("milvus://host:port/collection", "FILE.db")

    @classmethod
    def matches(cls, uri: str) -> bool:
        return uri.startswith(("milvus://", "milvuss://")) or ("://" not in uri and uri.endswith(".db"))

    @classmethod
    def index_class(cls) -> type[MilvusIndex]:
        from finesight.search.milvus_index import MilvusIndex

        return MilvusIndex
