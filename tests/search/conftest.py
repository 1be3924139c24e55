"""The Milvus server of the tests here, one at a time on a machine: two of them do not start beside each other."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from milvus_servers import MilvusProcess


@pytest.fixture(scope="module")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusProcess]:
    pytest.importorskip("milvus", reason="the server of the package milvus is for Linux on x86-64")
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    folder = tmp_path_factory.mktemp("milvus")
    with Path(tempfile.gettempdir(), "finesight-milvus-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        server = MilvusProcess(folder)
        yield server
        server.kill()
    shutil.rmtree(folder, ignore_errors=True)
