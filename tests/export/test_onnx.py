"""The file: what it computes, what it says about itself, and that a wrong one is not left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

import finesight
from finesight.api import frozen
from finesight.cli.export import export
from finesight.errors import FineSightError
from finesight.export.onnx import describe, export_onnx, trace, write_checked
from finesight.export.verify import check, cosine
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import fingerprint
from finesight.features.onnx_runtime import AXES, VECTOR_AXES
from finesight.nn.backbone_config import BackboneConfig
from finesight.rationale.config import VariantName
from networks import ExportedRun, small_encoder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(lcr: Path) -> Encoder:
    return finesight.load(lcr)


@pytest.fixture(scope="module")
def plain(exported: ExportedRun) -> Any:
    """The file as someone else would open it."""
    return onnxruntime.InferenceSession(str(exported.file), providers=["CPUExecutionProvider"])


def pixels(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


# --- what it computes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 32, 32), (5, 32, 32), (2, 41, 67), (1, 96, 48)])
def test_outputs_are_pytorchs_for_any_batch_and_size(encoder: Encoder, plain: Any, size: tuple[int, int, int]) -> None:
    images = pixels(*size)
    views = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - torch.tensor(encoder.config.mean).view(3, 1, 1)) / (
        torch.tensor(encoder.config.std).view(3, 1, 1)
    )
    feature, average, attention, responses = plain.run(None, {"images": images})
    np.testing.assert_allclose(feature, encoder.embed(views), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(average, encoder.embed(views, "average"), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(attention, encoder.attend(views), atol=1e-4)
    assert responses.shape == (len(images), 4, *attention.shape[1:])
    assert attention.min() >= 0
    assert attention.max() <= 1


def test_the_region_may_be_left_out_or_shared_by_the_batch(encoder: Encoder, plain: Any) -> None:
    images = pixels(3, 32, 40)
    assert [given.name for given in plain.get_inputs()] == ["images"]
    assert [given.name for given in plain.get_overridable_initializers()] == ["region"]
    part = np.zeros((1, 32, 40), np.float32)
    part[:, 3:20, 8:30] = 1
    alone = plain.run(None, {"images": images})
    for region in (np.ones((3, 32, 40), np.float32), np.ones((1, 1, 1), np.float32)):
        for a, b in zip(alone, plain.run(None, {"images": images, "region": region}), strict=True):
            np.testing.assert_array_equal(a, b)
    shared = plain.run(None, {"images": images, "region": part})
    each = plain.run(None, {"images": images, "region": np.repeat(part, 3, axis=0)})
    np.testing.assert_array_equal(shared[0], each[0])
    assert np.abs(shared[0] - alone[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("pooling", "variant"),
    [
        ("energy-gem", None),
        ("bilinear", "released"),
        ("attention-gem", None),
        ("class-token-and-average", None),
        ("rationale-gem-two-maps", "finesight"),
    ],
)
def test_other_poolings_and_variants(tmp_path: Path, pooling: str, variant: VariantName | None) -> None:
    small_encoder(pooling, variant).save(tmp_path / "encoder")
    report = export_onnx(tmp_path, tmp_path / "model.onnx", progress=False)
    assert {one.output for one in report.differences} >= {"feature", "average", "attention"}
    assert max(one.relative for one in report.differences) < 1e-4
    assert bool(report.warnings) == (variant == "released")


# --- what it says -----------------------------------------------------------------------------------------------------


def test_the_file_says_what_it_is(exported: ExportedRun, encoder: Encoder, lcr: Path) -> None:
    model = onnx.load(str(exported.file))
    onnx.checker.check_model(model, full_check=True)
    known = json.loads({entry.key: entry.value for entry in model.metadata_props}["finesight"])
    assert known["fingerprint"] == fingerprint(lcr)
    assert known["version"] == finesight.__version__
    assert known["precision"] == "fp32"
    assert known["encoder"] == encoder.config.model_dump(mode="json")
    assert known["preprocessing"]["centre_crop"] == 32
    assert model.opset_import[0].version >= 17
    for value in [*model.graph.input, *model.graph.output]:
        names = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        assert names == list(AXES.get(value.name, VECTOR_AXES))


def test_no_path_of_this_machine_is_in_the_file(exported: ExportedRun) -> None:
    source = str(Path(finesight.__file__).parent).encode()
    assert not any(source in file.read_bytes() for file in exported.folder.glob("*.onnx"))


def test_where_someone_keeps_weights_is_not_told(tmp_path: Path) -> None:
    config = small_encoder("average", None).config
    secret = config.model_copy(
        update={"backbone": config.backbone.model_copy(update={"weights": "/home/someone/w.safetensors"})}
    )
    model = onnx.ModelProto()
    describe(model, secret, "0" * 32, "fp32")
    assert b"w.safetensors" in model.SerializeToString()
    assert b"someone" not in model.SerializeToString()


# --- wrong ones -------------------------------------------------------------------------------------------------------


def scaled(exported: ExportedRun, factor: float) -> onnx.ModelProto:
    """The exported graph with other weights in its first convolution."""
    model = onnx.load(str(exported.file))
    first = next(node for node in model.graph.node if node.op_type == "Conv")
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == first.input[1])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))
    return model


@pytest.mark.parametrize("factor", [1.05, float("nan")])
def test_a_graph_that_computes_something_else_is_not_left_behind(
    exported: ExportedRun, encoder: Encoder, tmp_path: Path, factor: float
) -> None:
    out = tmp_path / "model.onnx"
    out.write_bytes(b"what was there before")
    with pytest.raises(FineSightError, match=r"differs from PyTorch: .* No file was written"):
        write_checked(encoder, scaled(exported, factor), out, "0" * 32, progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert out.read_bytes() == b"what was there before"


def test_the_stated_error_is_the_one_there_is(exported: ExportedRun, encoder: Encoder) -> None:
    """Every output has one, none is exactly nothing, and the check finds the same again."""
    printed = exported.printed
    assert printed["bytes"] == exported.file.stat().st_size
    assert list(printed["differences"]) == ["feature", "average", "attention", "responses"]
    assert all(0 <= one["relative"] < 1e-4 for one in printed["differences"].values())
    assert any(one["absolute"] > 0 for one in printed["differences"].values())
    for now in check(encoder, exported.file, list(printed["differences"]), progress=False):
        assert now.absolute == pytest.approx(printed["differences"][now.output]["absolute"], rel=0.5, abs=1e-6)
    assert sorted(file.name for file in exported.folder.iterdir()) == ["model.int8.onnx", "model.onnx"]


def test_cosine() -> None:
    a, b = np.array([3.0, 4.0]), np.array([4.0, -3.0])
    assert cosine(a, b) == 0
    assert cosine(a, 2 * a) == pytest.approx(1)
    assert cosine(0 * a, a) == 0
    assert cosine(0 * a, 0 * a) == 1


@pytest.mark.parametrize(
    ("name", "words"), [("model.pt", "must end in .onnx"), ("no/model.onnx", "no such folder"), ("d.onnx", "a folder")]
)
def test_a_bad_target_is_refused_before_the_work(lcr: Path, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "d.onnx").mkdir()
    with pytest.raises(FineSightError, match=words):
        export_onnx(lcr, tmp_path / name)


def test_responses_need_a_rationale(tmp_path: Path) -> None:
    small_encoder("average", None).save(tmp_path / "encoder")
    with pytest.raises(FineSightError, match="no rationale"):
        export_onnx(tmp_path, tmp_path / "model.onnx", responses=True)


def test_padding_by_size_is_refused_at_once() -> None:
    encoder = frozen(BackboneConfig(name="tf_mobilenetv3_small_minimal_100", weights="random"), 32)
    with pytest.raises(FineSightError, match="pads as TensorFlow does"):
        trace(encoder)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(lcr: Path, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(FineSightError, match=rf"'{package}'.*pip install finesight\[export\]"):
        export_onnx(lcr, tmp_path / "model.onnx")


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"int8": True}, {"calibrate": "."}])
def test_int8_and_calibrate_belong_together(lcr: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(FineSightError, match="--calibrate"):
        export(lcr, tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())
