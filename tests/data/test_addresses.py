"""Images behind gs://, hf://, http:// and https://, at servers on this machine. S3 is in test_places.py.

A process of its own looks at each address: where a store is, is read when its package is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finesight.data.decode import read_image
from finesight.data.sources import open_source
from finesight.features.embedder import TorchEmbedder
from finesight.search.build import open_or_create, update_index
from finesight.search.engines import open_index
from indexes import small_encoder
from processes import TIMEOUT, environment
from storage import (
    BUCKET,
    DATASET,
    fill_bucket,
    gs_server,
    hub_server,
    samples_of,
    web_server,
    write_certificate,
    write_parquet,
    write_tar,
)

LOOK = """
import hashlib, json, sys
from finesight.data.decode import read_image
from finesight.data.sources import open_source
from finesight.errors import FineSightError
answers = []
for where in sys.argv[1:]:
    try:
        source = open_source(where)
        labels = [] if source.labels is None else [source.classes[label] for label in source.labels]
        pixels = [hashlib.sha256(read_image(source.file(i)).tobytes()).hexdigest() for i in range(len(source))]
        answers.append({"kind": source.kind, "labels": labels, "pixels": pixels, "skipped": source.skipped})
    except FineSightError as error:
        answers.append({"error": str(error)})
print(json.dumps(answers))
"""


THREE_MACHINES = """
import json, os, sys
from contextlib import closing
from pathlib import Path
import numpy as np
from finesight.search.engines import create_index, open_index
from indexes import batch, meta, units
where, folder = sys.argv[1], Path(sys.argv[2])
os.environ["FINESIGHT_CACHE"] = str(folder / "first")
with closing(create_index(where, meta(), folder / "encoder")) as index:
    index.add(batch([1, 2, 3], units(3)))
os.environ["FINESIGHT_CACHE"] = str(folder / "second")
with closing(open_index(where)) as index:
    index.remove(np.array([1]))
os.environ["FINESIGHT_CACHE"] = str(folder / "third")
with closing(open_index(where)) as index:
    print(json.dumps(index.list_items().ids.tolist()))
"""


def in_another_process(program: str, *words: str, **env: str) -> Any:
    """What a program prints as JSON."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment(PYTHONPATH=path, **env),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def looked_at(*addresses: str, **env: str) -> list[dict[str, Any]]:
    """What another process finds at the addresses."""
    answers: list[dict[str, Any]] = in_another_process(LOOK, *addresses, **env)
    return answers


@pytest.fixture(scope="module")
def here(class_folders: Path) -> tuple[list[str], list[str]]:
    """The labels and the pixels of the folder."""
    source = open_source(class_folders)
    assert source.labels is not None
    pixels = [hashlib.sha256(read_image(source.file(i)).tobytes()).hexdigest() for i in range(len(source))]
    return [source.classes[label] for label in source.labels], pixels


@pytest.fixture(scope="module")
def website(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar file, a Parquet file, single images with a list of them, and a certificate."""
    work = tmp_path_factory.mktemp("website")
    samples = samples_of(class_folders)
    write_tar(work / "birds.tar", samples)
    write_parquet(work / "birds.parquet", samples)
    lines = ["path,label"]
    for name, image, label in samples:
        (work / f"{name}.png").write_bytes(image)
        lines.append(f"{name}.png,{label}")
    (work / "list.csv").write_text("\n".join(lines))
    return work


def test_http(website: Path, here: tuple[list[str], list[str]]) -> None:
    with web_server(website) as url:
        *found, none, empty = looked_at(
            *(f"{url}/{name}" for name in ("birds.tar", "birds.parquet", "list.csv", "none.tar", "none.csv"))
        )
    for answer in found:
        assert (answer["labels"], answer["pixels"]) == here
    assert "no such file" in none["error"]
    assert "no such file" in empty["error"]


def test_https(website: Path, here: tuple[list[str], list[str]], tmp_path: Path) -> None:
    """A server whose certificate nobody knows is not trusted."""
    certificate = tmp_path / "certificate.pem"
    write_certificate(certificate)
    with web_server(website, certificate) as url:
        assert url.startswith("https://")
        (found,) = looked_at(f"{url}/birds.tar", SSL_CERT_FILE=str(certificate))
        refused, also = looked_at(f"{url}/list.csv", f"{url}/birds.parquet")
    assert (found["labels"], found["pixels"]) == here
    assert "certificate" in refused["error"].lower()
    assert "certificate" in also["error"].lower()


def test_a_dataset_of_a_hub(birds: Path, here: tuple[list[str], list[str]], tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet", samples_of(birds / split))
    (tmp_path / "README.md").write_text("Birds.")
    root = f"hf://datasets/{DATASET}"
    with hub_server(tmp_path) as variables:
        everything, train, none = looked_at(
            root, f"{root}/data/train-*.parquet", "hf://datasets/nobody/nothing", **variables
        )
    assert (train["labels"], train["pixels"]) == here
    assert len(everything["pixels"]) == 72
    assert set(here[1]) <= set(everything["pixels"])
    assert "cannot be read" in none["error"]


def test_an_index_of_a_hub(tmp_path: Path) -> None:
    """Three machines: one sends it, one changes it, one reads it. Of the first version nothing is left."""
    where, dataset = f"hf://datasets/{DATASET}/indexes/mine", tmp_path / "dataset"
    (tmp_path / "encoder").mkdir()
    dataset.mkdir()
    with hub_server(dataset) as variables:
        assert in_another_process(THREE_MACHINES, where, str(tmp_path), **variables, HF_TOKEN="hf_tests") == [2, 3]
    place = dataset / "indexes" / "mine"
    left = {file.relative_to(place).parts[0] for file in place.rglob("*") if file.is_file()}
    assert len(left) == 2, "the manifest and one version"


@pytest.fixture(scope="module")
def bucket(class_folders: Path, website: Path) -> Iterator[str]:
    """A bucket of Google Cloud Storage with class folders and a tar file."""
    with gs_server() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        fill_bucket(class_folders, "gs")
        yield f"gs://{BUCKET}"


def test_google_cloud_storage(bucket: str, class_folders: Path, here: tuple[list[str], list[str]]) -> None:
    found, none, foreign = looked_at(f"{bucket}/{class_folders.name}", f"{bucket}/none", "gs://another-bucket/birds")
    assert found["kind"] == "class folders"
    assert (found["labels"], found["pixels"]) == here
    assert "is empty" in none["error"]
    assert "gs://another-bucket/birds" in foreign["error"]


def test_an_index_in_google_cloud_storage(
    bucket: str, class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, where = small_encoder(tmp_path), f"{bucket}/indexes/mine"
    embedder = TorchEmbedder.load(run)
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "one"))
    index = open_or_create(where, embedder, run, class_folders)
    assert update_index(index, embedder, class_folders).added == 48
    index.close()
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "another"))  # a machine that has not seen it
    index = open_index(where)
    assert update_index(index, embedder, class_folders).kept == 48
    index.close()
