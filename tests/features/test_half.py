"""Half precision on a CPU: maps in bfloat16 where the processor can, and only if the features agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from finesight.cli.main import app
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.features.gpu import LEAST_COSINE
from finesight.features.onnx_maps import MANY
from finesight.nn.backbone_config import BackboneConfig
from finesight.rationale.config import RationaleConfig

POOLINGS = ("rationale-gem", "average", "energy-gem")


@pytest.fixture(autouse=True)
def able(half_precision: None) -> None:
    if torch.cuda.is_available():
        pytest.skip("with a GPU the copy of the encoder there uses half precision")


def encoder(**options: bool) -> Encoder:
    torch.manual_seed(0)
    backbone = BackboneConfig(name="test_resnet", weights="random")
    config = EncoderConfig(
        method="lcr", resolution=64, pooling="rationale-gem", backbone=backbone, rationale=RationaleConfig()
    )
    return Encoder.untrained(config, **options)


def views(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def cosines(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    x, y = a.double().numpy(), b.double().numpy()
    return (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)


def test_features_agree_but_are_not_those_of_full_precision() -> None:
    full, half = encoder(), encoder()
    half.use_half_precision()
    expected, found = full.encode(views(), POOLINGS), half.encode(views(), POOLINGS)
    for name in POOLINGS:
        assert found.features[name].dtype == torch.float32
        assert (cosines(expected.features[name], found.features[name]) >= LEAST_COSINE).all()
        assert not torch.allclose(expected.features[name], found.features[name], rtol=1e-6, atol=0)


def test_other_poolings_and_branches_of_the_encoder_keep_it() -> None:
    half = encoder()
    half.use_half_precision()
    for other in (half.with_pooling("average"), half.with_branches({"other": half.fresh_branch(1)})):
        assert other.uses_half_precision
        assert torch.equal(other.embed(views(), "average"), half.embed(views(), "average"))


def test_onnxruntime_does_not_take_its_place() -> None:
    half = encoder()
    half.use_half_precision()
    expected = half.embed(views())
    half.prepare_for(MANY, progress=False)
    assert torch.equal(half.embed(views()), expected)


def test_it_is_refused_where_features_differ_or_every_bit_counts() -> None:
    with pytest.raises(FineSightError, match="does not go with exact"):
        encoder(exact=True).use_half_precision()
    overflowing = encoder()
    overflowing.use_half_precision()
    with torch.no_grad():
        next(overflowing.backbone.parameters()).mul_(torch.nan)
    with pytest.raises(FineSightError, match="Features in half precision differ"):
        overflowing.embed(views())


def test_commands(tmp_path: Path) -> None:
    run, images = tmp_path / "encoder", tmp_path / "images"
    encoder().save(run)
    images.mkdir()
    random = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(random.integers(0, 256, (70, 80, 3), dtype=np.uint8)).save(images / f"{i}.png")
    runner = CliRunner()

    def embed(name: str, *more: str) -> torch.Tensor:
        words = ["embed", str(run), str(images), "-o", str(tmp_path / name), "--quiet", *more]
        assert runner.invoke(app, words, catch_exceptions=False).exit_code == 0
        return torch.from_numpy(np.load(tmp_path / name)["features"])

    full, half = embed("full.npz"), embed("half.npz", "--half")
    assert (cosines(full, half) >= LEAST_COSINE).all()
    assert not torch.equal(full, half)
    for refused in ("--exact", "--cluster=local"):
        words = ["embed", str(run), str(images), "-o", str(tmp_path / "x.npz"), "--half", refused]
        with pytest.raises(FineSightError, match="does not go with"):
            runner.invoke(app, words, catch_exceptions=False)
