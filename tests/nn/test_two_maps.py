"""Two maps under one mask: against loops, through folded and exported networks, and where there is no earlier map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.models import register_model

import tiny_models  # noqa: F401  makes small networks known to timm
from close import same_rows
from finesight.errors import FineSightError
from finesight.features.encoder import MANY, Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.features.onnx_maps import OnnxMaps
from finesight.nn.backbone import Backbone, BackboneConfig
from finesight.nn.earlier_map import find_earlier
from finesight.nn.pooling import enlarge, pool, pool_two_maps
from finesight.rationale.config import RationaleConfig
from reference.two_maps import enlarged, two_maps

# name -> channels of the earlier map
STAGES = {"test_resnet": 192, "test_convnext": 48, "test_efficientnet": 48, "resnetv2_18": 256, "tiny_swin": 64}
TWO = ("rationale-gem-two-maps", "energy-gem-two-maps")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("larger", [(8, 8), (7, 9), (15, 16), (16, 13), (4, 5)], ids=str)
@pytest.mark.parametrize("weight", [0.0, 0.7, 3.0])
def test_against_loops(larger: tuple[int, int], weight: float) -> None:
    """Of odd sides, of the same size, and with a mask that is zero everywhere."""
    phi, earlier, mask = random(3, 6, 4, 5), random(3, 4, *larger, seed=1), random(3, 4, 5, seed=2)
    mask[1] = 0
    mask[2] = torch.eye(4, 5)
    np.testing.assert_allclose(enlarge(mask, *larger)[0], enlarged(mask[0].numpy(), *larger), atol=1e-12)
    found = pool_two_maps(phi, earlier, mask, weight)
    np.testing.assert_allclose(found, two_maps(phi.numpy(), earlier.numpy(), mask.numpy(), weight), rtol=1e-10)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3, dtype=torch.float64))


def test_the_same_size_is_the_same_mask() -> None:
    mask = random(2, 5, 3)
    assert torch.equal(enlarge(mask, 5, 3), mask)


def test_without_weight_it_is_the_last_map_alone() -> None:
    phi, earlier, mask = random(2, 6, 4, 4), random(2, 5, 8, 8, seed=1), random(2, 4, 4, seed=2)
    found = pool_two_maps(phi, earlier, mask, 0.0)
    torch.testing.assert_close(found[:, :6], torch.nn.functional.normalize(pool(phi, mask, gem=True)))
    assert not found[:, 6:].any()


def test_a_signed_map_counts_from_its_lowest_values() -> None:
    phi, earlier, mask = random(2, 6, 4, 4), random(2, 5, 8, 8, seed=1) - 0.5, random(2, 4, 4, seed=2)
    found = pool_two_maps(phi, earlier, mask, 1.0, earlier_signed=True)[:, 6:]
    wanted = pool(earlier, enlarge(mask, 8, 8), gem=True, signed=True)
    torch.testing.assert_close(torch.cosine_similarity(found, wanted), torch.ones(2, dtype=torch.float64))
    assert not torch.allclose(found, pool_two_maps(phi, earlier, mask, 1.0)[:, 6:])


# --- networks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STAGES)
@torch.no_grad()
def test_the_earlier_map_of_a_network(name: str) -> None:
    torch.manual_seed(0)
    backbone, images = Backbone(BackboneConfig(name=name, weights="random")).eval(), torch.randn(2, 3, 64, 96)
    made = backbone.outputs(images, earlier=True)
    assert made.earlier is not None
    assert made.earlier.shape == (2, STAGES[name], 4, 6)
    assert backbone.earlier.channels == STAGES[name]
    assert torch.equal(made.phi, backbone(images))
    assert backbone.outputs(images).earlier is None, "only if it is asked for"
    assert backbone.earlier.signed or made.earlier.min() >= 0
    folded = backbone.outputs(images, folded=True, earlier=True)
    assert same_rows(folded.phi, made.phi)
    assert same_rows(folded.earlier, made.earlier)


@pytest.mark.parametrize("stride", [8, 16, 32])
def test_of_a_resnet_it_is_layer3_at_any_stride(stride: int) -> None:
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(name="test_resnet", weights="random", output_stride=stride)).eval()
    caught: list[torch.Tensor] = []
    backbone.model.layer3.register_forward_hook(lambda *given: caught.append(given[2]))
    with torch.no_grad():
        made = backbone.outputs(torch.randn(1, 3, 64, 64), earlier=True)
    assert made.earlier is not None
    assert torch.equal(made.earlier, caught[0])
    assert made.earlier.shape[2] == 64 // min(stride, 16)


@pytest.mark.parametrize("name", ["test_vit", "tiny_hybrid"])
def test_a_network_without_stages_is_refused(name: str) -> None:
    with pytest.raises(FineSightError, match=rf"'{name}' has no map of an earlier stage: all its blocks"):
        encoder("energy-gem-two-maps", name=name)
    plain = encoder("energy-gem", name=name)
    with pytest.raises(FineSightError, match="Take another pooling"):
        plain.embed(views(), "energy-gem-two-maps")


@register_model
def tiny_whole(pretrained: bool = False, **options: Any) -> Any:
    """A network of which timm gives the last map only."""
    model = timm.models.test_resnet(pretrained, **options)
    model.forward_intermediates = None
    return model


def test_one_that_timm_cannot_take_apart_is_refused() -> None:
    with pytest.raises(FineSightError, match="timm gives no map of an earlier stage of 'tiny_whole'"):
        find_earlier("tiny_whole")


# --- encoders ---------------------------------------------------------------------------------------------------------


def encoder(pooling: str = TWO[0], name: str = "test_resnet", exact: bool = False, **settings: float) -> Encoder:
    torch.manual_seed(0)
    rationale = RationaleConfig(projections=4) if pooling.startswith("rationale") else None
    backbone = BackboneConfig(name=name, weights="random")
    config = EncoderConfig(
        method="lcr", resolution=64, pooling=pooling, backbone=backbone, rationale=rationale, **settings
    )
    return Encoder.untrained(config, exact=exact)


def views(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pooling", TWO)
def test_an_encoder_pools_both_by_its_mask(pooling: str) -> None:
    one, exact = encoder(pooling, earlier_weight=0.4), encoder(pooling, exact=True, earlier_weight=0.4)
    with torch.no_grad():
        made = exact.backbone.outputs(views(), earlier=True)
    mask = exact.attend(views()).double().numpy()
    wanted = two_maps(made.phi.double().numpy().clip(1e-6), made.earlier.double().numpy().clip(1e-6), mask, 0.4)
    assert same_rows(exact.embed(views()), wanted)
    assert same_rows(one.embed(views()), wanted)
    assert one.feature_width(pooling) == wanted.shape[1]
    assert torch.equal(torch.cat([exact.embed(view[None]) for view in views()]), exact.embed(views()))


def test_poolings_of_one_and_of_two_maps_share_a_pass() -> None:
    one, calls = encoder(exact=True), list[int]()
    one.backbone.model.layer4.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    together = one.encode(views(), (*TWO, "rationale-gem", "average"))
    assert calls == [1] * 5, "one image at a time, each once"
    assert torch.equal(together.features["average"], one.embed(views(), "average"))


def test_the_weight_is_saved(tmp_path: Path) -> None:
    one = encoder(earlier_weight=0.25)
    one.save(tmp_path / "one")
    again = Encoder.load(tmp_path / "one")
    assert again.config.earlier_weight == 0.25
    assert torch.equal(again.embed(views()), one.embed(views()))
    assert not same_rows(encoder().embed(views()), one.embed(views()))


def test_onnxruntime_gives_both_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path))
    one, exact = encoder(), encoder(exact=True)
    maps = OnnxMaps(one.backbone, 64, earlier=True)
    with torch.no_grad():
        wanted = one.backbone.outputs(views(), earlier=True)
    found = maps(views())
    assert same_rows(found.phi, wanted.phi)
    assert same_rows(found.earlier, wanted.earlier)
    assert maps.fits(views(), earlier=True)
    assert maps.fits(views())
    assert not OnnxMaps(one.backbone, 64).fits(views(), earlier=True)
    one.prepare_for(MANY, progress=False)
    (file,) = tmp_path.glob("engines.json")
    assert "two maps" in file.read_text()
    file.write_text(file.read_text().rpartition(":")[0] + ": 3.0}")  # as if it were faster here
    one = encoder()
    one.prepare_for(MANY, progress=False)
    for name in (*TWO, "rationale-gem"):
        assert same_rows(one.embed(views(), name), exact.embed(views(), name))
