"""The Milvus server of the tests here."""

from milvus_servers import milvus_server

__all__ = ["milvus_server"]
