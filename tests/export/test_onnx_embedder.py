"""Searching by an ONNX file: the same answers as by torch, where there is no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest

from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.export.onnx import describe
from finesight.features.embedder import OnnxEmbedder, TorchEmbedder
from finesight.features.onnx_runtime import output_names, output_of
from finesight.features.preprocess import picture_view
from finesight.features.types import Box
from finesight.nn.poolings import POOLINGS, Pooling
from finesight.search.base import Index
from finesight.search.build import open_or_create, update_index
from finesight.search.engines import open_index
from finesight.search.open_embedder import open_embedder, open_indexing_embedder, open_onnx_embedder
from finesight.search.searcher import Searcher
from networks import ExportedRun, small_encoder
from processes import environment

BOX: Box = (0.2, 0.1, 0.45, 0.6)
WITHOUT_TORCH = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "timm", "lightning", "onnx", "onnxscript", "safetensors"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Absent())
import typer
import finesight.cli.main
from finesight.cli.search import search

app = typer.Typer()
app.command()(search)
app()
"""


@pytest.fixture(scope="module")
def where(lcr: Path, exported: ExportedRun, birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the test birds with the exported file beside it."""
    folder = tmp_path_factory.mktemp("searched") / "index"
    embedder, source = TorchEmbedder.load(lcr), open_source(birds).split("test")
    with closing(open_or_create(folder, embedder, lcr, source.root)) as index:
        update_index(index, embedder, source)
    shutil.copy(exported.file, folder / "model.onnx")
    return folder


@pytest.fixture
def index(where: Path) -> Iterator[Index]:
    with closing(open_index(where)) as index:
        yield index


def test_it_sees_what_torch_sees(lcr: Path, exported: ExportedRun, birds: Path) -> None:
    files = sorted(birds.glob("train/*/*.png"))[:4]
    embedders = TorchEmbedder.load(lcr), OnnxEmbedder(exported.file)
    said = [(embedder.fingerprint, embedder.spaces, embedder.framing) for embedder in embedders]
    assert said[0] == said[1]
    for regions in (None, [BOX] * 4, [None, BOX, None, (0.5, 0.5, 0.5, 0.5)]):
        views = [picture_view(file, 32, region) for file, region in zip(files, regions or [None] * 4, strict=True)]
        for wanted, got in zip(*(embedder.encode(views, regions) for embedder in embedders), strict=True):
            assert wanted.features.keys() == got.features.keys()
            for space, vector in wanted.features.items():
                assert vector.dtype == got.features[space].dtype == np.float32
                np.testing.assert_allclose(vector, got.features[space], atol=1e-5)
                assert np.linalg.norm(got.features[space]) == pytest.approx(1, abs=1e-5)
            np.testing.assert_allclose(wanted.mask, got.mask, atol=1e-4)


def test_search_without_torch_finds_the_same(where: Path, birds: Path) -> None:
    """In a process where importing torch fails."""
    query = sorted(birds.glob("train/*/*.png"))[5]
    args = [where, query, "--engine", "onnx", "-k", 8, "--json", "--box", "0.2,0.1,0.45,0.6", "--by", "average"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, args)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["results"]
    with closing(open_index(where)) as index:
        searcher = Searcher(index, open_embedder("torch", index))
        wanted = searcher.by_picture(query, len(index), by="average", box=BOX).hits
    scores = {str(hit.id): hit.score for hit in wanted}
    assert len(found["hits"]) == len({hit["id"] for hit in found["hits"]}) == 8
    for hit, best in zip(found["hits"], wanted, strict=False):  # images of the same score may change places
        assert hit["score"] == pytest.approx(scores[hit["id"]], abs=1e-4)
        assert hit["score"] == pytest.approx(best.score, abs=1e-4)


def test_the_block_does_block() -> None:
    code = WITHOUT_TORCH.partition("import typer")[0] + "import torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert "torch is not here" in done.stderr


def test_the_file_is_found_beside_the_index_or_given(index: Index, where: Path, exported: ExportedRun) -> None:
    assert open_onnx_embedder(index).model == where / "model.onnx"
    assert open_onnx_embedder(index, exported.file).model == exported.file
    assert open_onnx_embedder(index, where).model == where / "model.onnx"


def test_without_a_file_the_error_says_how_to_make_one(where: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(where, tmp_path / "index", ignore=shutil.ignore_patterns("model.onnx")))
    with closing(open_index(bare)) as index, pytest.raises(FineSightError, match=r"finesight export .*--model"):
        open_onnx_embedder(index)


def test_another_encoders_file_is_refused(index: Index, exported: ExportedRun, tmp_path: Path) -> None:
    model = onnx.load(str(exported.file))
    describe(model, small_encoder("average", None).config, "f" * 32, "fp32")
    other = tmp_path / "other.onnx"
    onnx.save(model, str(other))
    with pytest.raises(FineSightError, match="made by another encoder"):
        open_embedder("onnx", index, other)


def test_files_that_are_none_of_ours(exported: ExportedRun, tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match="no file"):
        OnnxEmbedder(tmp_path / "nothing.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(exported.file.read_bytes()[:5000])
    with pytest.raises(FineSightError, match="cannot be run by onnxruntime"):
        OnnxEmbedder(broken)
    model = onnx.load(str(exported.file))
    for text, words in (
        (None, "not made by"),
        ("{", "damaged"),
        ('{"format": 9}', "format 9"),
        ('{"format": 1}', "damag"),
    ):
        del model.metadata_props[:]
        if text is not None:
            onnx.helper.set_model_props(model, {"finesight": text})
        onnx.save(model, str(broken))
        with pytest.raises(FineSightError, match=words):
            OnnxEmbedder(broken)


def test_a_missing_runtime_is_named(exported: ExportedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FineSightError, match=r"'onnxruntime'.*pip install finesight\[export\]"):
        OnnxEmbedder(exported.file)


@pytest.mark.parametrize("pooling", POOLINGS.values(), ids=POOLINGS)
def test_every_space_of_an_index_has_an_output(pooling: Pooling) -> None:
    outputs = [output_of(space, pooling) for space in pooling.spaces]
    assert len(set(outputs)) == len(outputs)
    assert set(outputs) <= set(output_names(pooling))


@pytest.mark.parametrize("name", ["index", "gallery.db"], ids=["folder", "Milvus Lite"])
def test_an_index_of_the_file_is_the_one_of_the_run(
    name: str, lcr: Path, exported: ExportedRun, birds: Path, tmp_path: Path
) -> None:
    source = open_source(birds).split("test")
    with closing(open_or_create(tmp_path / f"torch-{name}", TorchEmbedder.load(lcr), lcr, source.root)) as by_torch:
        update_index(by_torch, TorchEmbedder.load(lcr, exact=True), source)
        embedder = open_indexing_embedder(exported.file)
        with closing(open_or_create(tmp_path / name, embedder, exported.file, source.root)) as index:
            update_index(index, embedder, source)
            assert index.meta.model_copy(update={"run": ""}) == by_torch.meta.model_copy(update={"run": ""})
            ids = np.sort(by_torch.list_items().ids)
            for space in index.meta.spaces:
                np.testing.assert_allclose(index.vectors(ids, space), by_torch.vectors(ids, space), atol=1e-5)
            # either brings the other's index up to date, and queries find the file by themselves
            assert update_index(index, TorchEmbedder.load(lcr), source).is_empty
            assert update_index(by_torch, embedder, source).is_empty
            assert isinstance(open_embedder(None, index), OnnxEmbedder)
            assert isinstance(open_embedder("torch", index, lcr), TorchEmbedder)
            assert isinstance(open_embedder(None, by_torch), TorchEmbedder)


def test_a_folder_index_keeps_its_file(exported: ExportedRun, unlabeled: Path, tmp_path: Path) -> None:
    model = Path(shutil.copy(exported.file, tmp_path / "mine.onnx"))
    embedder = OnnxEmbedder(model)
    open_or_create(tmp_path / "index", embedder, model, unlabeled).close()
    model.unlink()
    assert open_onnx_embedder(open_index(tmp_path / "index")).model == tmp_path / "index" / "model.onnx"


def test_eight_bits_make_no_index(exported: ExportedRun) -> None:
    with pytest.raises(FineSightError, match="in 8 bits"):
        open_indexing_embedder(exported.int8)
    with pytest.raises(FineSightError, match="There is no file"):
        open_indexing_embedder(exported.folder / "none.onnx")
