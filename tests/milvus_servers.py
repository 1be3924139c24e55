"""A real Milvus server of the package ``milvus``, and a wire to it that can be cut."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

USER = "root:Milvus"  # that every new server has


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, all of them different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def write_etcd_settings(file: Path, clients: int, peers: int) -> Path:
    """Let etcd listen at these ports."""
    client, peer = (f"http://127.0.0.1:{port}" for port in (clients, peers))
    lines = [f"listen-client-urls: {client}", f"advertise-client-urls: {client}", f"listen-peer-urls: {peer}"]
    lines += [f"initial-advertise-peer-urls: {peer}", f"initial-cluster: default={peer}"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, ""]))
    return file


class MilvusProcess:
    """A standalone server that wants user and password. It takes seven seconds to start, and 450 MB of disk.

    The etcd inside it listens at ports 2379 and 2380 whatever the settings of Milvus say, so that a second server could
    not start: it gets settings of its own.
    """

    def __init__(self, folder: Path) -> None:
        import milvus

        self._server: Any = milvus.MilvusServer(milvus.MilvusServerConfig(data_dir=str(folder)))
        keys = [key for key in self._server.config_keys if key.endswith("_port")]
        ports = free_ports(len(keys) + 3)
        self._server.config.update(**dict(zip(keys, ports[3:], strict=True)))
        self._server.config.set("authorization_enabled", True)
        self._server.config.set("common.session.ttl", 5)  # for so long a server that was killed is taken for alive
        self._server.webservice_port = ports[0]
        self._folder = folder
        self._env = {"ETCD_CONFIG_PATH": str(write_etcd_settings(folder / "etcd.yaml", *ports[1:3]))}
        with mock.patch.dict(os.environ, self._env):
            self._server.start()
        self.port: int = self._server.listen_port

    def start(self) -> None:
        """Start it again at the same port, which the package would not: old connections still keep it for a minute."""
        program = self._folder / "bin" / "milvus"
        env = {"DEPLOY_MODE": "STANDALONE", "METRICS_PORT": str(self._server.webservice_port)}
        env |= {"MILVUS_RUN_DIR": str(self._folder / "run"), "LD_LIBRARY_PATH": str(program.parent)}
        self._server.server_proc = subprocess.Popen(
            [program, "run", "standalone"],
            env={**os.environ, **self._env, **env},
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._server.wait_started()

    def kill(self) -> None:
        """As a power cut would: it has no time to write anything."""
        self._server.server_proc.kill()
        self._server.server_proc.wait()
        self._server.stop()

    def uri(self, name: str, user: str = USER, port: int | None = None) -> str:
        return f"milvus://{user + '@' if user else ''}127.0.0.1:{port or self.port}/{name}"

    def client(self) -> Any:
        from pymilvus import MilvusClient

        return MilvusClient(f"http://127.0.0.1:{self.port}", token=USER)


@contextmanager
def running_milvus(folder: Path) -> Iterator[MilvusProcess]:
    """Run a server for as long as it is needed, and remove what it leaves."""
    server = MilvusProcess(folder)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusProcess]:
    """A server of its own for a file of tests."""
    pytest.importorskip("milvus", reason="the server of the package milvus is for Linux on x86-64")
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    with running_milvus(tmp_path_factory.mktemp("milvus")) as server:
        yield server


class Wire:
    """A port that leads to another one, until it is cut."""

    def __init__(self, port: int, *, answers: bool = False) -> None:
        """``answers`` counts what the server sends, not what is sent to it."""
        self._to, self._ends, self._answers = port, set[socket.socket](), answers
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._bytes = 0  # that were counted
        self._cut_at, self._mend_after, self._hold_at = float("inf"), float("inf"), float("inf")
        self.holds = threading.Event()  # whether it lets nothing pass any more
        threading.Thread(target=self._listen, daemon=True).start()

    def cut_after(self, count: int, mend_after: float = float("inf")) -> None:
        """Cut it after so many more bytes, and mend it so many seconds later."""
        self._cut_at, self._mend_after = self._bytes + count, mend_after

    def hold_after(self, count: int) -> None:
        """Let nothing pass after so many more bytes; no end is told."""
        self._hold_at = self._bytes + count

    @property
    def is_due(self) -> bool:
        """Whether it will still be cut."""
        return self._cut_at < float("inf")

    def cut(self) -> None:
        self._cut_at = float("inf")
        self._whole.clear()
        if self._mend_after < float("inf"):
            threading.Timer(self._mend_after, self.mend).start()
        for end in list(self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _listen(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            if not self._whole.is_set():
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._to))
            self._ends |= {near, far}
            for source, target, counts in ((near, far, not self._answers), (far, near, self._answers)):
                threading.Thread(target=self._pump, args=(source, target, counts), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := source.recv(16_384):
                if counts:
                    self._bytes += len(data)
                    if self._bytes >= self._cut_at:
                        self.cut()
                    if self._bytes >= self._hold_at:
                        self.holds.set()
                if self.holds.is_set():
                    return
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._ends.discard(end)
