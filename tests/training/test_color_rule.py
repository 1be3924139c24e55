"""Views may change colors strongly only where color does not tell images apart."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import open_source
from finesight.evaluation.retrieval import neighbors
from finesight.features.encoder import Encoder
from finesight.training.color_rule import MILD, STRONG, choose_colors, shared_neighbors, turn_hue
from finesight.training.config import build_config
from finesight.training.save_encoder import frozen_encoder
from real_birds import PROJECT
from reference.neighbors import shared

SIDE = 64
WEIGHTS = PROJECT.parent / "shared" / "weights" / "resnet18_imagenet.safetensors"


@pytest.mark.parametrize(("count", "width", "k"), [(40, 8, 5), (6, 3, 5), (3, 2, 5)])
def test_shared_neighbors_are_those_of_plain_loops(count: int, width: int, k: int) -> None:
    rng = np.random.default_rng(count)
    one = rng.normal(size=(count, width)).astype(np.float32)
    other = one + rng.normal(scale=0.5, size=one.shape).astype(np.float32)
    found = [neighbors(features, np.arange(count), k)[0] for features in (one, other)]
    assert shared_neighbors(*found) == pytest.approx(shared(one, other, min(k, count - 1)))


def test_the_hue_turns_and_gray_stays() -> None:
    pixels = np.zeros((2, 1, 2, 3), np.uint8)
    pixels[:, 0, 0] = (200, 0, 0)
    pixels[:, 0, 1] = 90
    turned = turn_hue(pixels, torch.tensor([1 / 3, -1 / 3]))
    assert turned[0, 0, 0].tolist() == [0, 200, 0]
    assert turned[1, 0, 0].tolist() == [0, 0, 200]
    assert (turned[:, 0, 1] == 90).all()


def patterns(folder: Path, *, colored: bool) -> Path:
    """Draw 60 images: ten classes that differ by hue alone, or nearly gray textures."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(60):
        pixels = np.zeros((96, 96, 3), np.uint8)
        pixels[..., 0], pixels[..., 1] = i % 10 * 25, 200 if colored else 10
        pixels[..., 2] = rng.integers(140, 180, (96, 96))
        if not colored:
            pixels[..., 2] = np.kron(rng.integers(0, 256, (6, 6)), np.ones((16, 16)))
        Image.fromarray(pixels, "HSV").convert("RGB").save(folder / f"{i:02d}.png")
    return folder


@pytest.mark.skipif(not WEIGHTS.exists(), reason="the ImageNet ResNet-18 is not there")
@pytest.mark.parametrize("colored", [True, False])
def test_colors_are_mild_where_they_tell_images_apart(tmp_path: Path, colored: bool) -> None:
    folder = patterns(tmp_path / "images", colored=colored)
    encoder, cache = opened(folder, tmp_path)
    choice = choose_colors(encoder, cache, np.arange(len(cache)), SIDE)
    assert choice.images == 60
    assert choice.settings == (MILD if colored else STRONG)
    assert ("mild" in choice.reason) == colored
    assert choice == choose_colors(encoder, cache, np.arange(len(cache)), SIDE), "the same images give the same choice"


@pytest.mark.skipif(not WEIGHTS.exists(), reason="the ImageNet ResNet-18 is not there")
def test_few_images_are_enough_to_decide(tmp_path: Path) -> None:
    encoder, cache = opened(patterns(tmp_path / "images", colored=True), tmp_path)
    assert choose_colors(encoder, cache, np.arange(2), SIDE).settings == MILD, "no difference: the colors are kept"


def opened(folder: Path, tmp_path: Path) -> tuple[Encoder, object]:
    config = build_config(
        {
            "data": str(folder),
            "backbone.name": "resnet18",
            "backbone.weights": str(WEIGHTS),
            "views.resolution": SIDE,
        }
    )
    cache = open_cache(open_source(folder), cache_side(SIDE), cache_dir=tmp_path / "cache", progress=False)
    return frozen_encoder(config), cache
