"""Many images are embedded by onnxruntime where a trial finds it clearly faster; the features stay the same."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest
import torch

from close import same_rows
from finesight.features.encoder import MANY, Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.features.onnx_maps import OnnxMaps, find_faster
from finesight.nn.backbone_config import BackboneConfig


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path))
    return tmp_path / "engines.json"


def encoder(name: str = "test_efficientnet", exact: bool = False) -> Encoder:
    torch.manual_seed(0)
    backbone = BackboneConfig(name=name, weights="random")
    config = EncoderConfig(method="frozen", resolution=64, pooling="gem", backbone=backbone)
    return Encoder.untrained(config, exact=exact)


def views(count: int = 5, side: int = 64) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet"])
def test_the_same_maps_of_any_number_of_images(name: str) -> None:
    one = encoder(name)
    maps = OnnxMaps(one.backbone, 64)
    with torch.no_grad():
        for count in (1, 5):
            assert same_rows(maps(views(count)).phi, one.backbone(views(count)))
    assert maps.fits(views())
    assert not maps.fits(views(side=96)), "it was made for one size"
    with torch.no_grad():
        next(one.backbone.parameters()).mul_(2)
    assert not maps.fits(views()), "the weights are others now"


def test_a_trial_is_made_once(cache: Path) -> None:
    one = encoder()
    maps, ratio = find_faster(one.backbone, 64, 8)
    (key,) = known = json.loads(cache.read_text())
    assert known[key] == pytest.approx(ratio, abs=1e-3)
    assert (maps is not None) == (ratio >= 1.05)
    assert "test_efficientnet" in key
    cache.write_text(json.dumps({key: 0.9}))
    assert find_faster(one.backbone, 64, 8) == (None, 0.9)
    cache.write_text(json.dumps({key: 7.5}))
    maps, ratio = find_faster(one.backbone, 64, 8)
    assert isinstance(maps, OnnxMaps)
    assert ratio == 7.5
    assert json.loads(cache.read_text()) == {key: 7.5}
    find_faster(one.backbone, 64, 4)
    assert len(json.loads(cache.read_text())) == 2, "another batch is another trial"
    cache.write_text("{")
    find_faster(one.backbone, 64, 8)
    assert list(json.loads(cache.read_text())) == [key], "a damaged file is written anew"


def test_without_onnx_torch_embeds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it were not installed
    one = encoder()
    one.prepare_for(MANY)
    assert "Embedding by torch: onnxruntime cannot be used." in capsys.readouterr().err
    assert same_rows(one.embed(views()), encoder(exact=True).embed(views()))


def test_an_encoder_that_uses_it(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, exact = encoder(), encoder(exact=True)
    one.prepare_for(MANY - 1)
    exact.prepare_for(MANY)
    assert not cache.exists(), "too few images for a trial, or bits that must not change"
    encoder().prepare_for(MANY, progress=False)
    (key,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: 3.0}))
    before = one.embed(views())
    one.prepare_for(MANY)
    said = " ".join(capsys.readouterr().err.split())
    assert "Embedding by onnxruntime: onnxruntime is 3.00 times as fast as torch here." in said
    assert same_rows(one.embed(views()), exact.embed(views()))
    assert same_rows(one.embed(views(side=96)), exact.embed(views(side=96)))
    other = copy.deepcopy(one)
    assert torch.equal(other.embed(views()), before), "a copy runs in torch"
    with torch.no_grad():
        for both in (one, exact):
            for parameter in both.backbone.parameters():
                parameter.mul_(1.1)
    assert same_rows(one.embed(views()), exact.embed(views())), "it follows weights that change"
    assert not same_rows(one.embed(views()), before)
