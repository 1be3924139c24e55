"""Stores on this machine, and images as tar and Parquet files.

S3 (moto) and Google Cloud Storage (gcp-storage-emulator) are servers that others wrote. The web server and the small
hub, which answers what ``huggingface_hub`` asks of a dataset, are here.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from milvus_servers import free_ports
from processes import TIMEOUT

BUCKET = "birds"
DATASET = "finesight/birds"


@contextmanager
def _program(words: Sequence[str], port: int, path: str, **env: str) -> Iterator[str]:
    """Run a server until it is not needed any more; yield its address once it answers."""
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **env})
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                urllib.request.urlopen(f"{url}{path}", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, f"{words} ended"
                assert time.monotonic() < deadline, f"{words} did not start"
                time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait()


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start the server; yield the variables that lead clients to it."""
    (port,) = free_ports(1)
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _program(words, port, "/moto-api/") as url:
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextmanager
def gs_server() -> Iterator[dict[str, str]]:
    """Start the server with a bucket; yield the variables that lead clients to it."""
    (port,) = free_ports(1)
    words = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", str(port)]
    with _program([*words, "--in-memory", "--default-bucket", BUCKET], port, "/storage/v1/b?project=tests") as url:
        yield {"STORAGE_EMULATOR_HOST": url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


class _Files(BaseHTTPRequestHandler):
    """The files of a folder, whole or in part."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_file(self, name: str) -> None:
        file = self.folder / urllib.parse.unquote(name).lstrip("/")
        if not file.is_file():
            return self.answer(b"no such file", 404)
        content, marks = file.read_bytes(), {"Accept_Ranges": "bytes", "ETag": f'"{file.stat().st_mtime_ns}"'}
        if part := re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", "")):
            first, last = int(part[1]), min(int(part[2] or len(content)), len(content) - 1)
            return self.answer(
                content[first : last + 1], 206, Content_Range=f"bytes {first}-{last}/{len(content)}", **marks
            )
        return self.answer(content, **marks)

    def do_GET(self) -> None:
        self.send_file(self.path.partition("?")[0])

    do_HEAD = do_GET


class _Hub(_Files):
    """A dataset of a hub: what is in it, its files, and commits that add and remove small ones."""

    def do_GET(self) -> None:
        path, _, query = urllib.parse.unquote(self.path).partition("?")
        api = f"/api/datasets/{DATASET}"
        if path.startswith(f"/datasets/{DATASET}/resolve/main/"):
            self.send_file(path.partition("/main/")[2])
        elif path.startswith(f"{api}/tree/main"):
            self.answer(self._about(path.removeprefix(f"{api}/tree/main"), "recursive=true" in query.lower()))
        elif path in (api, f"{api}/revision/main"):
            self.answer(json.dumps({"id": DATASET, "sha": "0" * 40, "private": False}).encode())
        else:
            self.answer(b"{}", 404, **{"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self._body().decode()
        if path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self.answer(json.dumps({"files": files}).encode())
        elif path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                self._change(line["key"], line["value"])
            place = f"http://127.0.0.1/datasets/{DATASET}/commit/{'0' * 40}"
            self.answer(json.dumps({"success": True, "commitUrl": place, "commitOid": "0" * 40}).encode())
        else:
            self._tell(body)

    def _body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _change(self, kind: str, facts: dict[str, str]) -> None:
        file = self.folder / facts.get("path", "")
        if kind == "file":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(base64.b64decode(facts["content"]))
        elif kind == "deletedFile":
            file.unlink()
        elif kind == "deletedFolder":
            shutil.rmtree(file)

    def _tell(self, body: str) -> None:
        """Say what it knows of some paths."""
        try:
            wanted = json.loads(body)["paths"]
        except ValueError:
            wanted = urllib.parse.parse_qs(body)["paths"]
        known = [one for one in json.loads(self._about("")) if one["path"] in wanted]
        self.answer(json.dumps(known).encode())

    def _about(self, below: str, recursive: bool = True) -> bytes:
        found: list[dict[str, object]] = []
        folder = self.folder / below.strip("/")
        for file in sorted(folder.rglob("*") if recursive else folder.glob("*")):
            facts = {"path": file.relative_to(self.folder).as_posix(), "oid": f"{file.stat().st_mtime_ns:040x}"}
            found.append({**facts, "type": "file" if file.is_file() else "directory", "size": file.stat().st_size})
        return json.dumps(found).encode()


@contextmanager
def _serving(handler: type[_Files], folder: Path, certificate: Path | None = None) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"folder": folder}))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def web_server(folder: Path, certificate: Path | None = None) -> Iterator[str]:
    """Serve the files of a folder; yield the address."""
    with _serving(_Files, folder, certificate) as url:
        yield url


@contextmanager
def hub_server(folder: Path) -> Iterator[dict[str, str]]:
    """Serve a folder as the dataset ``DATASET``; yield the variables that lead clients to it."""
    with _serving(_Hub, folder) as url:
        yield {"HF_ENDPOINT": url}


def write_certificate(file: Path) -> None:
    """Write a key and a certificate for this machine that it signed itself."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    day, now = datetime.timedelta(1), datetime.datetime.now(datetime.UTC)
    about = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = about.add_extension(here, False).add_extension(x509.BasicConstraints(True, None), True)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate = signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    file.write_bytes(secret + certificate)


def fill_bucket(folder: Path, scheme: str = "s3") -> None:
    """Copy a folder into the bucket, under its own name."""
    import fsspec

    store = fsspec.filesystem(scheme)
    if scheme == "s3" and not store.exists(BUCKET):
        store.mkdir(BUCKET)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            store.put_file(str(file), f"{BUCKET}/{folder.name}/{file.relative_to(folder).as_posix()}")


def write_tar(file: Path, samples: Sequence[tuple[str, bytes, str]]) -> None:
    """Write name, image and label of each sample as WebDataset does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for name, image, label in samples:
            for suffix, content in (("png", image), ("cls", label.encode())):
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_parquet(file: Path, samples: Sequence[tuple[str, bytes, str]]) -> None:
    """Write the samples as Hugging Face does, a few rows in a group."""
    file.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": image, "path": f"{name}.png"} for name, image, _ in samples]
    table = pa.table({"image": images, "label": [label for *_, label in samples]})
    pq.write_table(table, file, row_group_size=5)


def samples_of(folder: Path) -> list[tuple[str, bytes, str]]:
    """Name, bytes and class of the images in class folders."""
    files = sorted(folder.glob("*/*.png"))
    return [(f"{number:05d}", file.read_bytes(), file.parent.name) for number, file in enumerate(files)]
