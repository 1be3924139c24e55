"""A real Milvus server of the package ``milvus``, and a wire to it that can be cut."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

USER = "root:Milvus"  # that every new server has


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, all of them different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


class MilvusProcess:
    """A standalone server that wants user and password. It takes seven seconds to start, and 450 MB of disk."""

    def __init__(self, folder: Path) -> None:
        import milvus

        self._server: Any = milvus.MilvusServer(milvus.MilvusServerConfig(data_dir=str(folder)))
        keys = [key for key in self._server.config_keys if key.endswith("_port")]
        ports = free_ports(len(keys) + 1)
        self._server.config.update(**dict(zip(keys, ports[1:], strict=True)))
        self._server.config.set("authorization_enabled", True)
        self._server.config.set("common.session.ttl", 5)  # for so long a server that was killed is taken for alive
        self._server.webservice_port = ports[0]
        self._folder = folder
        self._server.start()
        self.port: int = self._server.listen_port

    def start(self) -> None:
        """Start it again at the same port, which the package would not: old connections still keep it for a minute."""
        program = self._folder / "bin" / "milvus"
        env = {"DEPLOY_MODE": "STANDALONE", "METRICS_PORT": str(self._server.webservice_port)}
        env |= {"MILVUS_RUN_DIR": str(self._folder / "run"), "LD_LIBRARY_PATH": str(program.parent)}
        self._server.server_proc = subprocess.Popen(
            [program, "run", "standalone"],
            env={**os.environ, **env},
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


class Wire:
    """A port that leads to another one, until it is cut."""

    def __init__(self, port: int) -> None:
        self._to, self._ends = port, set[socket.socket]()
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._bytes = 0  # that went to the server
        self._cut_at, self._mend_after = float("inf"), float("inf")
        threading.Thread(target=self._listen, daemon=True).start()

    def cut_after(self, count: int, mend_after: float = float("inf")) -> None:
        """Cut it after so many more bytes, and mend it so many seconds later."""
        self._cut_at, self._mend_after = self._bytes + count, mend_after

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
            for source, target, counts in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, target, counts), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := source.recv(16_384):
                if counts:
                    self._bytes += len(data)
                    if self._bytes >= self._cut_at:
                        self.cut()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._ends.discard(end)
