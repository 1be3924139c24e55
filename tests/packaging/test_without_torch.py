"""finesight-onnx in a new environment that has no torch: index, search, serve, group, and say what is missing.

The environment is made by ``python -m venv`` and pip, so the test needs a package index; it is skipped without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from finesight.export.onnx import export_onnx
from finesight.features.embedder import TorchEmbedder
from finesight.search.build import open_or_create, update_index
from finesight.search.engines import open_index
from indexes import small_encoder
from serving import drawn, form
from wheels import INSTALL_SECONDS, build_wheel, plain_environment

pytestmark = pytest.mark.slow
ABSENT = ("torch", "timm", "lightning", "safetensors", "matplotlib", "pyarrow", "onnx", "torchvision", "cv2")
LIMIT = 300.0  # only for what hangs
ELSEWHERE = os.environ.get("FINESIGHT_TEST_PYTHON", sys.executable)  # another Python to try it with


@dataclass(frozen=True)
class Lean:
    """The environment, and a folder to work in that is far from the source tree."""

    bin: Path
    folder: Path

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.bin / "python", "-c", code)

    def finesight(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self._run(self.bin / "finesight", *words)

    def json(self, *words: str | Path) -> dict[str, object]:
        done = self.finesight(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def environment(self) -> dict[str, str]:
        return plain_environment(FINESIGHT_CACHE=str(self.folder / "cache"), OMP_NUM_THREADS="1")

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment(),
            timeout=LIMIT,
            check=False,
        )


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Lean:
    folder = tmp_path_factory.mktemp("lean")
    wheel = build_wheel("finesight-onnx", folder)
    subprocess.run([ELSEWHERE, "-m", "venv", str(folder / "venv")], check=True, env=plain_environment())
    command = [str(folder / "venv" / "bin" / "pip"), "install", "--quiet", "--no-compile", "--retries", "1", str(wheel)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=plain_environment(), timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode and ("No matching distribution" in done.stderr or "Connection" in done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return Lean(folder / "venv" / "bin", folder)


@dataclass(frozen=True)
class Birds:
    """Pictures, the run of an encoder, its exported file, and an index of the pictures that torch made."""

    images: Path
    run: Path
    model: Path
    index: Path


@pytest.fixture(scope="module")
def pictures(lean: Lean) -> Birds:
    images = lean.folder / "images"
    images.mkdir()
    for number in range(9):
        (images / f"bird-{number}.png").write_bytes(drawn(size=(40 + 4 * number, 44), seed=number))
    (images / "twice.png").write_bytes((images / "bird-3.png").read_bytes())
    run = small_encoder(lean.folder / "run")
    model = lean.folder / "model.onnx"
    export_onnx(run, model, progress=False)
    embedder = TorchEmbedder.load(run, exact=True)
    with contextlib.closing(open_or_create(lean.folder / "by-torch", embedder, run, images)) as index:
        update_index(index, embedder, images, workers=1)
    return Birds(images, run, model, lean.folder / "by-torch")


@pytest.fixture(scope="module")
def index(lean: Lean, pictures: Birds) -> Path:
    """An index that the lean environment made."""
    said = lean.json("index", pictures.model, pictures.images, "--index", "by-onnx", "--quiet")
    assert said["added"] == 10
    return lean.folder / "by-onnx"


def test_the_environment_has_no_torch(lean: Lean) -> None:
    for name in ABSENT:
        done = lean.python(f"import {name}")
        assert "ModuleNotFoundError" in done.stderr, name
    where = lean.python("import finesight; print(finesight.__file__)").stdout.strip()
    assert Path(where).is_relative_to(lean.folder)  # not the source tree
    assert lean.finesight("--version").stdout.startswith("finesight ")


def test_its_index_is_the_one_that_torch_makes(index: Path, pictures: Birds) -> None:
    with contextlib.closing(open_index(index)) as found, contextlib.closing(open_index(pictures.index)) as expected:
        assert found.meta.model_copy(update={"run": ""}) == expected.meta.model_copy(update={"run": ""})
        ids = np.sort(expected.list_items().ids)
        assert (np.sort(found.list_items().ids) == ids).all()
        for space in expected.meta.spaces:
            np.testing.assert_allclose(found.vectors(ids, space), expected.vectors(ids, space), atol=1e-5)
        for mine, other in zip(found.items(ids.tolist()), expected.items(ids.tolist()), strict=True):
            assert mine is not None
            assert other is not None
            assert (mine.path, mine.bytes, mine.width, mine.height) == (
                other.path,
                other.bytes,
                other.width,
                other.height,
            )
            np.testing.assert_allclose(mine.mask, other.mask, atol=1e-5)


def test_searching(lean: Lean, index: Path, pictures: Birds) -> None:
    query = pictures.images / "bird-3.png"
    hits = lean.json("search", index, query, "-k", "10")["results"][0]["hits"]  # type: ignore[index]
    assert {hits[0]["path"], hits[1]["path"]} == {"bird-3.png", "twice.png"}
    assert hits[0]["score"] == pytest.approx(1, abs=1e-5)
    # an index that torch made, by the exported file
    same = lean.json("search", pictures.index, query, "-k", "10", "--model", pictures.model)["results"][0]["hits"]  # type: ignore[index]
    assert [hit["score"] for hit in same] == pytest.approx([hit["score"] for hit in hits], abs=1e-5)
    code = f"import finesight; print(finesight.search_images({str(index)!r}, {str(query)!r}, k=1)[0].score)"
    assert float(lean.python(code).stdout) == pytest.approx(1, abs=1e-5)


def test_groups_and_duplicates(lean: Lean, index: Path) -> None:
    assert len(lean.json("clusters", index, "--count", "3", "-o", "groups")["clusters"]) == 3  # type: ignore[arg-type]
    assert (lean.folder / "groups" / "clusters.html").exists()
    lean.json("clusters", index, "--method", "hdbscan")
    groups = lean.json("duplicates", index, "--threshold", "1")["groups"]
    assert [{item["path"] for item in group["items"]} for group in groups] == [{"bird-3.png", "twice.png"}]  # type: ignore[attr-defined,index]


@pytest.fixture
def server(lean: Lean, index: Path, pictures: Birds) -> Iterator[str]:
    said = lean.folder / "said.txt"
    with said.open("wb") as out:
        words = ["serve", str(index), "--port", "0", "--update", str(pictures.images)]
        process = subprocess.Popen(
            [str(lean.bin / "finesight"), *words], stdout=out, cwd=lean.folder, env=lean.environment()
        )
    try:
        deadline = time.monotonic() + LIMIT
        while "FineSight is at " not in said.read_text() or not said.read_text().endswith("\n"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield said.read_text().split("FineSight is at ")[1].split()[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0


def test_serving_and_the_page(server: str) -> None:
    with httpx.Client(base_url=server, timeout=LIMIT) as web:
        assert "<title>" in web.get("/").text
        for file in ("app.js", "style.css", "icon.svg", "docs", "docs/swagger-ui-bundle.js"):  # of the wheels
            assert web.get(f"/{file}").status_code == 200, file
        health = web.get("/api/health").json()
        assert health["items"] == 10
        found = web.post("/api/search", files=form(drawn(size=(52, 44), seed=3))).json()
        assert found["hits"][0]["score"] == pytest.approx(1, abs=1e-4)
        item = found["hits"][0]["id"]
        assert web.get(f"/api/items/{item}/thumb").headers["content-type"] == "image/jpeg"
        assert web.get(f"/api/attention/{item}").json()["mask"]
        assert web.get("/api/clusters", params={"method": "hdbscan"}).status_code == 200
        assert 'engine="onnx"' in web.get("/metrics").text
        assert web.get("/healthz").json() == {"status": "ok"}
        apart = web.get("/api/explain", params={"query": item, "hit": item})
        assert apart.status_code == 422
        assert "torch" in apart.json()["detail"]


def test_doctor(lean: Lean) -> None:
    said = lean.json("doctor")
    assert said["broken"] == []
    assert said["software"]["torch"].startswith("not installed")  # type: ignore[index]
    assert "finesight-onnx" in said["software"]["finesight"]  # type: ignore[index]
    assert "finesight-onnx[milvus]" in said["extras"]["milvus"]  # type: ignore[index]


@pytest.mark.parametrize("words", [("train", "--data", "images", "--out", "new"), ("methods",), ("up", "images")])
def test_commands_that_need_torch_say_what_to_install(lean: Lean, pictures: Birds, words: tuple[str, ...]) -> None:
    done = lean.finesight(*words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "needs torch, which is not installed" in done.stderr
    assert "pip install finesight" in done.stderr


def test_a_run_without_an_exported_file_says_how_to_make_one(lean: Lean, pictures: Birds) -> None:
    done = lean.finesight("index", pictures.run, pictures.images)
    assert done.returncode == 2
    assert f"finesight export {pictures.run}" in done.stderr
    done = lean.finesight("index", "nothing", pictures.images)
    assert done.returncode == 2
    assert "nothing is no folder" in done.stderr
    done = lean.finesight("search", pictures.index, pictures.images / "bird-1.png")
    assert done.returncode == 2
    assert "There is no model.onnx" in done.stderr
    assert lean.finesight("--help").returncode == 0
