"""Where an index is, to the index: a folder, a run that has one, a Milvus server or a Milvus Lite file."""

from __future__ import annotations

from pathlib import Path

from finesight.errors import FineSightError
from finesight.search.base import Index, IndexMeta

INDEX = "index"  # of a run: the folder its index is in


def is_milvus(where: str | Path) -> bool:
    """``milvus://host:port/collection``, ``milvuss://…`` by TLS, or a file that ends in ``.db``."""
    return str(where).startswith(("milvus://", "milvuss://")) or str(where).endswith(".db")


def open_index(where: str | Path) -> Index:
    """An index that is there already."""
    if is_milvus(where):
        from finesight.search.milvus_index import MilvusIndex

        return MilvusIndex.open(str(where))
    from finesight.search.faiss_index import FaissIndex

    return FaissIndex(index_folder(where))


def create_index(where: str | Path, meta: IndexMeta, encoder: Path) -> Index:
    """A new and empty one, which keeps the encoder in the folder ``encoder``."""
    if is_milvus(where):
        from finesight.search.milvus_index import MilvusIndex

        return MilvusIndex.create(str(where), meta, encoder)
    from finesight.search.faiss_index import FaissIndex

    return FaissIndex.create(where, meta, encoder)


def index_exists(where: str | Path) -> bool:
    """Whether ``open_index`` would find one."""
    if is_milvus(where):
        from finesight.search.milvus_index import MilvusIndex

        return MilvusIndex.exists(str(where))
    from finesight.search.index_folder import META

    return (Path(where).expanduser() / META).exists()


def index_folder(where: str | Path) -> Path:
    """The folder itself, or the one of the run that ``where`` is."""
    from finesight.search.index_folder import META

    folder = Path(where).expanduser()
    for place in (folder, folder / INDEX):
        if (place / META).exists():
            return place
    if not folder.exists():
        raise FineSightError(f"There is no index {folder}: nothing is there. Make one with `finesight index`.")
    if (folder / "encoder").exists() or (folder / "config.yaml").exists():
        raise FineSightError(f"The run {folder} has no index yet. Make one with `finesight index {folder} FOLDER`.")
    raise FineSightError(f"There is no index in {folder}. Make one with `finesight index RUN FOLDER --index {folder}`.")
