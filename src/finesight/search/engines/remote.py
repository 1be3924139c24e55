"""The engine for an index in an object store: a folder that is fetched, used here and sent back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finesight.search.engines import INDEX_ENGINES, IndexEngine

if TYPE_CHECKING:
    from finesight.search.remote_index import RemoteIndex


@INDEX_ENGINES.decorator("remote")
class RemoteEngine(IndexEngine):
    new_forms = ("s3://BUCKET/NAME (gs, hf)",)
    forms = ("s3://BUCKET/NAME (gs, hf, https)",)

    @classmethod
    def matches(cls, uri: str) -> bool:
        return uri.startswith(("s3://", "gs://", "hf://", "https://", "http://"))

    @classmethod
    def index_class(cls) -> type[RemoteIndex]:
        from finesight.search.remote_index import RemoteIndex

        return RemoteIndex
