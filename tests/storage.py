"""A real S3 server on this machine (moto), and images as tar and Parquet files."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from processes import TIMEOUT

BUCKET = "birds"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start the server; yield the variables that lead clients to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, "the S3 server ended"
                assert time.monotonic() < deadline, "the S3 server did not start"
                time.sleep(0.05)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.terminate()
        server.wait()


def fill_bucket(folder: Path) -> None:
    """Copy a folder into the bucket, under its own name."""
    import s3fs

    store = s3fs.S3FileSystem()
    if not store.exists(BUCKET):
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


def set_variables(variables: dict[str, str]) -> dict[str, str | None]:
    """Set environment variables, and return what they were."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    return before
