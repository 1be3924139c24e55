"""The Milvus server of the tests here: one for all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from milvus_servers import MilvusProcess


@pytest.fixture(scope="session")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusProcess]:
    pytest.importorskip("milvus", reason="the server of the package milvus is for Linux on x86-64")
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    folder = tmp_path_factory.mktemp("milvus")
    server = MilvusProcess(folder)
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)
