"""Pixels are scaled, and pictures resized and cropped, as the weights of the network expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform

from finesight import api
from finesight.data.cache import open_cache
from finesight.data.geometry import Framing, Geometry, Scale
from finesight.data.sources import open_source
from finesight.data.views import IMAGENET_MEAN, IMAGENET_STD
from finesight.features.encoder import Encoder
from finesight.features.preprocess import cached_pixels, center_box, picture_view
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.pixels import own_pixels
from finesight.training.config import build_config
from finesight.training.dotted_keys import flat
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import frozen_encoder

HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("resnet50", IMAGENET_MEAN, IMAGENET_STD),
        ("vit_small_patch14_dinov2", IMAGENET_MEAN, IMAGENET_STD),
        ("vit_base_patch16_siglip_224", HALF, HALF),
        ("vit_base_patch16_clip_224.openai", (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
        ("fastvit_mci0", (0, 0, 0), (1, 1, 1)),
        ("no_such_model", IMAGENET_MEAN, IMAGENET_STD),
        ("resnet50.no_such_weights", IMAGENET_MEAN, IMAGENET_STD),
    ],
)
def test_constants_are_those_of_the_weights(name: str, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    own = own_pixels(BackboneConfig(name=name))
    assert (own.mean, own.std) == (mean, std)
    views = build_config({"data": "-", "backbone.name": name}).views
    assert (views.mean, views.std) == (mean, std)


def test_random_weights_have_none_and_given_ones_win() -> None:
    settings = {"data": "-", "backbone.name": "test_vit"}
    assert build_config(settings).views.mean == HALF
    assert build_config({**settings, "backbone.weights": "random"}).views.mean == IMAGENET_MEAN
    given = build_config({**settings, "views.mean": (0.1, 0.2, 0.3)}).views
    assert (given.mean, given.std) == ((0.1, 0.2, 0.3), HALF)
    again = build_config(flat(given_config := build_config({**settings, "views.std": (1, 1, 1)})))
    assert again == given_config  # what a run has stored stays


def test_an_encoder_embeds_pixels_that_are_scaled_so(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), file)
    config = BackboneConfig(name="test_vit", weights=str(file))
    pixels = np.random.default_rng(0).integers(0, 256, (33, 38, 3), dtype=np.uint8)  # 32 px are 0.95 of 33
    made = api.frozen(config, 32)
    made.save(tmp_path / "encoder")
    trained = frozen_encoder(build_config({"data": "-", "backbone": config.model_dump(), "views.resolution": 32}))
    for encoder in (made, Encoder.load(tmp_path / "encoder"), trained):
        (view,) = encoder.prepare(Image.fromarray(pixels))
        crop = pixels[0:32, 3:35].astype(np.float64)
        np.testing.assert_allclose(view.permute(1, 2, 0).numpy(), crop / 127.5 - 1, atol=1e-6)
        with torch.no_grad():
            assert encoder.embed(Image.fromarray(pixels)).shape == (1, 64)


@pytest.mark.parametrize(
    ("name", "interpolation", "crop_pct", "crop_mode"),
    [
        ("resnet50", "bilinear", 0.875, "center"),  # although timm's weights want bicubic and 0.95
        ("resnext50_32x4d", "bilinear", 0.875, "center"),
        ("vit_small_patch14_dinov2", "bicubic", 1.0, "center"),
        ("vit_base_patch16_siglip_224.webli", "bicubic", 0.9, "center"),
        ("convnext_base.fb_in22k_ft_in1k_384", "bicubic", 1.0, "squash"),
        ("convnext_tiny.fb_in1k", "bicubic", 0.875, "center"),
        ("dla34", "bilinear", 0.875, "center"),
        ("volo_d4_448", "bicubic", 1.0, "center"),  # 1.15
        ("deepseek_vit_412m", "bicubic", 1.0, "center"),  # border
        ("no_such_model", "bilinear", 0.875, "center"),
    ],
)
def test_pictures_are_resized_and_cropped_as_for_the_weights(
    name: str, interpolation: str, crop_pct: float, crop_mode: str
) -> None:
    views = build_config({"data": "-", "backbone.name": name}).views
    assert (views.interpolation, views.crop_pct, views.crop_mode) == (interpolation, crop_pct, crop_mode)
    random = build_config({"data": "-", "backbone.name": name, "backbone.weights": "random"}).views
    assert (random.interpolation, random.crop_pct, random.crop_mode) == ("bilinear", 0.875, "center")


def test_a_run_of_an_earlier_version_keeps_what_it_was_made_with(tmp_path: Path) -> None:
    config = build_config({"data": "-", "backbone.name": "convnext_atto"})
    assert config.views.interpolation == "bicubic"
    content = config.model_dump(mode="json")
    for name in ("interpolation", "crop_pct", "crop_mode"):
        del content["views"][name]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    views = RunFolder(tmp_path).config().views
    assert (views.interpolation, views.crop_pct, views.crop_mode) == ("bilinear", 0.875, "center")


FRAMINGS = [
    Framing(32),
    Framing(32, 0.875, "bicubic"),
    Framing(32, 0.95, "bicubic"),
    Framing(32, 1.0, "bicubic"),
    Framing(32, 1.0, "bicubic", "squash"),
    Framing(32, 0.9, "bilinear", "squash"),
]


@pytest.mark.parametrize("framing", FRAMINGS, ids=str)
@pytest.mark.parametrize("size", [(80, 80), (120, 80), (80, 160), (97, 61)])
def test_pixels_are_those_of_timms_transform(framing: Framing, size: tuple[int, int]) -> None:
    """Equal where the resized long side is a whole number; else timm rounds it down and we to the nearest."""
    coarse = np.random.default_rng(1).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    settings = {"interpolation": framing.interpolation, "crop_mode": framing.crop_mode, "crop_pct": framing.crop_pct}
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    usual = framing.crop_pct == 0.875  # 37 of 32 px: we round up, timm down
    if usual:
        settings["crop_pct"] = 32 / 37
    transform: Any = create_transform(input_size=(3, 32, 32), **settings, **plain)
    expected = (transform(picture).permute(1, 2, 0).numpy() * 255).round().astype(int)
    difference = np.abs(picture_view(picture, framing).pixels.astype(int) - expected)
    long = framing.scale.side * max(size) / min(size)
    if framing.crop_mode == "squash" or long == int(long):
        assert difference.max() == 0
    else:
        a_pixel_aside = max(np.abs(np.diff(expected, axis=axis)).mean() for axis in (0, 1))
        assert difference.mean() < a_pixel_aside


@pytest.mark.parametrize("framing", FRAMINGS, ids=str)
def test_every_way_to_the_network_sees_the_same(framing: Framing, tmp_path: Path) -> None:
    """The decoded cache, a path, a search query, and what is said of where the view lies."""
    coarse = np.random.default_rng(2).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    sizes = [(90, 70), (64, 200), (500, 60)]
    (tmp_path / "images").mkdir()
    for number, size in enumerate(sizes):
        Image.fromarray(coarse).resize(size).save(tmp_path / "images" / f"{number}.png")
    source = open_source(tmp_path / "images")
    cache = open_cache(source, framing.scale, cache_dir=tmp_path / "cache", progress=False)
    for number, size in enumerate(sizes):
        view = picture_view(source.file(number), framing)
        assert np.array_equal(view.pixels, cached_pixels(cache, [number], 32)[0])
        assert view.box == center_box(*size, framing)
        x, y, width, height = view.box  # of the original, cut out and resized again
        w, h = size
        box = x * w, y * h, (x + width) * w, (y + height) * h
        filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
        with Image.open(source.file(number)) as image:
            again = image.resize((32, 32), filters[framing.interpolation], box=box)
        inner = slice(4, -4)  # at the edge of a crop the filter has no neighbors
        apart = np.abs(view.pixels[inner, inner].astype(int) - np.asarray(again)[inner, inner].astype(int))
        assert apart.max() <= 2


def test_scales_do_not_share_a_cache(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (90, 120, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    source = open_source(tmp_path)
    scales = [Scale(32), Scale(32, "bicubic"), Scale(32, "bicubic", squash=True), Scale(32, squash=True)]
    caches = [open_cache(source, scale, cache_dir=tmp_path / "cache", progress=False) for scale in scales]
    assert len({cache.keys[0] for cache in caches}) == len({cache.image(0).tobytes() for cache in caches}) == 4
    plain = open_cache(source, 32, cache_dir=tmp_path / "cache", progress=False)
    assert plain.keys[0] == caches[0].keys[0]
    encoder = api.frozen(BackboneConfig(name="test_resnet", weights="random"), 28)
    assert encoder.cached_views(plain, [0]).shape == (1, 3, 28, 28)
    with pytest.raises(ValueError, match="sees pictures at scale 32, not 32-bicubic"):
        encoder.cached_views(caches[1], [0])


def test_objects_lie_where_they_are_in_squashed_pictures() -> None:
    geometry = Geometry.fit(200, 100, Scale(50, "bicubic", squash=True))
    assert geometry.size == (50, 50)
    np.testing.assert_allclose(geometry.box((40, 20, 80, 60)), (10, 10, 20, 30))
    mask = np.zeros((100, 200), bool)
    mask[20:80, 40:120] = True
    expected = np.zeros((50, 50), bool)
    expected[10:40, 10:30] = True
    assert np.array_equal(geometry.mask(mask), expected)
