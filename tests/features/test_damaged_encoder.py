"""Encoders that are not what was written, or ask for the impossible, are refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finesight.errors import FineSightError
from finesight.features.embedder import OnnxEmbedder
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import fingerprint
from indexes import small_encoder

TRIES = 150


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return small_encoder(tmp_path / "run")


def change(run: Path, **values: Any) -> None:
    """Change settings by hand, without the checksum, as an earlier version has written them."""
    file = run / "encoder" / "encoder.json"
    content = json.loads(file.read_text())
    content.pop("weights_checksum", None)
    for name, value in values.items():
        table, _, key = name.rpartition("__")
        (content[table] if table else content)[key] = value
    file.write_text(json.dumps(content))


def test_every_altered_byte_is_found(run: Path) -> None:
    file, random = run / "encoder" / "encoder.safetensors", np.random.default_rng(0)
    whole = file.read_bytes()
    for _ in range(TRIES):
        altered = bytearray(whole)
        altered[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        file.write_bytes(altered)
        with pytest.raises(FineSightError, match=r"encoder\.safetensors is not what was written"):
            Encoder.load(run)
    file.write_bytes(whole)
    Encoder.load(run)


def test_an_encoder_without_checksum_still_loads_and_is_the_same(run: Path) -> None:
    before, known = Encoder.load(run), fingerprint(run)
    change(run)
    assert fingerprint(run) == known, "indexes of it stay valid"
    for one, other in zip(Encoder.load(run).parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "values",
    [
        {"resolution": -5},
        {"resolution": 0},
        {"resolution": 10**9},
        {"rationale__projections": 10**9},
        {"rationale__projections": 0},
        {"crop_pct": 0},
        {"crop_pct": float("nan")},
        {"mean": [float("inf")] * 3},
        {"backbone__name": "no_such_network"},
        {"backbone__name": "../../etc/passwd"},
        {"backbone__freeze": 10**9},
        {"pooling": "no-such-pooling"},
        {"format": 99},
        {"method": {"a": 1}},
    ],
    ids=str,
)
def test_impossible_settings(run: Path, values: dict[str, Any]) -> None:
    change(run, **values)
    with pytest.raises(FineSightError) as error:
        Encoder.load(run)
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "5", "{", "[" * 100_000, '{"a":' * 50_000], ids=lambda text: text[:8]
)
def test_settings_that_are_none(run: Path, text: str) -> None:
    (run / "encoder" / "encoder.json").write_text(text)
    for read in (Encoder.load, fingerprint):
        with pytest.raises(FineSightError):
            read(run)


# --- ONNX -------------------------------------------------------------------------------------------------------------


def model(file: Path, metadata: str | None) -> Path:
    """A graph of one node, with what ``finesight export`` writes beside it."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    value = [helper.make_tensor_value_info(name, kind, [1]) for name in ("images", "feature")]
    graph = helper.make_graph([helper.make_node("Identity", ["images"], ["feature"])], "g", value[:1], value[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if metadata is not None:
        helper.set_model_props(made, {"finesight": metadata})
    file.write_bytes(made.SerializeToString())
    return file


ENCODER = {"resolution": 32, "pooling": "average"}


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "[]",
        "5",
        "{",
        "[" * 100_000,
        {"format": 7},
        {"format": 1},
        {"format": 1, "fingerprint": "f", "encoder": 5},
        {"format": 1, "fingerprint": "f", "encoder": {**ENCODER, "resolution": -5}},
        {"format": 1, "fingerprint": "f", "encoder": {**ENCODER, "resolution": 10**9}},
        {"format": 1, "fingerprint": "f", "encoder": {**ENCODER, "resolution": 1e400}},
        {"format": 1, "fingerprint": "f", "encoder": {**ENCODER, "crop_pct": 0}},
        {"format": 1, "fingerprint": "f", "encoder": {**ENCODER, "interpolation": ["x"]}},
        {"format": 1, "fingerprint": "f", "encoder": {**ENCODER, "pooling": "none-such"}},
        {"format": 1, "fingerprint": "f", "encoder": ENCODER},  # whose graph has not the outputs
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_an_onnx_file_says_about_itself(tmp_path: Path, metadata: Any) -> None:
    text = metadata if metadata is None or isinstance(metadata, str) else json.dumps(metadata)
    with pytest.raises(FineSightError):
        OnnxEmbedder(model(tmp_path / "model.onnx", text))


@pytest.mark.parametrize(
    "content", [b"", b"ONNX", b"\x08" * 5000, bytes(5000)], ids=["empty", "text", "eights", "zeros"]
)
def test_what_is_no_onnx_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(FineSightError):
        OnnxEmbedder(tmp_path / "model.onnx")
