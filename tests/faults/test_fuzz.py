"""Files from strangers: whatever is in them, a FineSight error or a result, soon and without much memory."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from finesight.errors import FineSightError
from finesight.features.embedder import OnnxEmbedder
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import fingerprint
from finesight.search.faiss_index import FaissIndex
from finesight.training.checkpoints import load_checkpoint, save_checkpoint
from finesight.training.config import build_config
from finesight.training.config_file import read_yaml
from fuzzing import fuzzed
from indexes import SPACES, filled_index, small_encoder, units
from tiny_onnx import FACTS, tiny_onnx

MOST_MEMORY = 2**30  # bytes that all of a test may add at most

Mutation = tuple[list[tuple[float, int]], float]
mutations = st.tuples(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=12),
    st.one_of(st.just(1.0), st.floats(0, 1)),  # the share that is kept
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=12), st.just("random")
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def mutated(content: bytes, mutation: Mutation) -> bytes:
    places, share = mutation
    changed = bytearray(content)
    for place, byte in places:
        changed[int(place * len(changed))] = byte
    return bytes(changed[: int(share * len(changed))] if share < 1 else changed)


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_MEMORY


def tolerated(read: Callable[[], Any]) -> None:
    with suppress(FineSightError):
        read()


# --- settings ---------------------------------------------------------------------------------------------------------

NAMES = ("data", "method", "epochs", "batch_size", "seed", "optim", "optim.lr", "views", "views.resolution", "backbone",
         "backbone.name", "rationale", "rationale.projections", "rationale.variant", "objective", "objective.dim",
         "focus", "validation.fraction", "max_steps", "test_pooling", "saliency.source", "")  # fmt: skip


@fuzzed
@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=10), values, max_size=5))
def test_settings(content: dict[str, Any]) -> None:
    tolerated(lambda: build_config({"data": "x", **content}, warn=False))


@fuzzed
@given(st.one_of(st.binary(max_size=200), values.map(lambda value: yaml.safe_dump(value).encode()), st.text(
    alphabet="&*[]{}:,-!?|>#'\"\n ab1.", max_size=80).map(str.encode)))  # fmt: skip
def test_a_settings_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    tolerated(lambda: build_config(read_yaml(file), warn=False))


# --- checkpoints ------------------------------------------------------------------------------------------------------


@fuzzed
@given(mutations)
def test_a_checkpoint(tmp_path: Path, mutation: Mutation) -> None:
    folder = tmp_path / "checkpoints"
    state = {
        "module": {"w": torch.arange(300.0), "steps": torch.tensor(1)},
        "optimizer": {"state": {}, "param_groups": []},
    }
    save_checkpoint(folder, 1, state)
    newest = save_checkpoint(folder, 2, state)
    newest.write_bytes(mutated(newest.read_bytes(), mutation))
    found = load_checkpoint(folder)
    assert found is not None
    assert torch.equal(found[1]["module"]["w"], torch.arange(300.0)), "whichever is used, its numbers are right"


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_encoder(tmp_path_factory.mktemp("fuzz") / "run") / "encoder"


@fuzzed
@given(st.sampled_from(["encoder.json", "encoder.safetensors"]), mutations)
def test_bytes_of_an_encoder(encoder: Path, tmp_path: Path, name: str, mutation: Mutation) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(encoder, folder, dirs_exist_ok=True)
    (folder / name).write_bytes(mutated((folder / name).read_bytes(), mutation))
    tolerated(lambda: Encoder.load(folder))


@fuzzed
@given(st.data())
def test_settings_of_an_encoder(encoder: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = json.loads((encoder / "encoder.json").read_text())
    del content["weights_checksum"]
    table = data.draw(st.sampled_from([content, content["backbone"], content["rationale"]]))
    table[data.draw(st.sampled_from(sorted(table)) | st.text(max_size=5))] = data.draw(values)
    folder = tmp_path / "encoder"
    shutil.copytree(encoder, folder, dirs_exist_ok=True)
    (folder / "encoder.json").write_text(json.dumps(content))
    tolerated(lambda: Encoder.load(folder))
    tolerated(lambda: fingerprint(folder))


# --- indexes ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "index"
    filled_index(folder, units(60)).close()
    return folder


def use(folder: Path) -> None:
    opened = FaissIndex.open(folder)
    try:
        listed = opened.list_items()
        opened.search(units(2), 3, SPACES[0])
        opened.items(listed.ids.tolist())
        list(opened.blocks(SPACES[1]))
        opened.facts()
        opened.find_damaged(everything=True)
    finally:
        opened.close()


@fuzzed
@given(st.sampled_from(["items.db", "index.json", f"vectors-0/{SPACES[0]}.f32"]), mutations)
def test_bytes_of_an_index(index: Path, tmp_path: Path, name: str, mutation: Mutation) -> None:
    folder = tmp_path / "index"
    shutil.copytree(index, folder, dirs_exist_ok=True)
    (folder / name).write_bytes(mutated((folder / name).read_bytes(), mutation))
    tolerated(lambda: use(folder))


@fuzzed
@given(st.data())
def test_settings_of_an_index(index: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "index"
    shutil.copytree(index, folder, dirs_exist_ok=True)
    content = json.loads((folder / "index.json").read_text())
    content[data.draw(st.sampled_from(sorted(content)) | st.text(max_size=5))] = data.draw(values)
    (folder / "index.json").write_text(json.dumps(content))
    tolerated(lambda: use(folder))


# --- ONNX -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> bytes:
    return tiny_onnx(json.dumps(FACTS))


@fuzzed
@given(mutations)
def test_bytes_of_an_onnx_file(model: bytes, tmp_path: Path, mutation: Mutation) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(model)
    OnnxEmbedder(file)
    file.write_bytes(mutated(model, mutation))
    tolerated(lambda: OnnxEmbedder(file))
