"""The view without torch is the encoder's own, pixel for pixel; a region moves it no further than it must."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms.functional import center_crop as center_crop_of_torchvision

from finesight.data.geometry import cache_side, read_resized
from finesight.errors import FineSightError, SkipImage
from finesight.features.preprocess import (
    WHOLE,
    center_box,
    center_crop,
    check_box,
    parse_box,
    picture_view,
    region_share,
)
from finesight.features.types import Box
from reference.nearest import cover

SIZES = {
    "landscape.jpg": (900, 700),
    "portrait.jpg": (301, 455),
    "square.png": (64, 64),
    "panorama.jpg": (1200, 90),
    "tower.webp": (60, 500),
    "tiny.png": (5, 3),
    "dot.png": (1, 1),
    "odd.png": (77, 43),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_pixels_are_those_of_the_cache(picture: Callable[..., Path], name: str) -> None:
    """However the picture is given; also where the decoder takes short cuts."""
    file = picture(name, SIZES[name])
    view = picture_view(file, 32)
    cached, _ = read_resized(file, cache_side(32))
    assert np.array_equal(view.pixels, center_crop(cached, 32))
    assert view.pixels.shape == (32, 32, 3)
    assert (view.width, view.height) == SIZES[name]
    assert view.box == center_box(*SIZES[name], 32)
    with open(file, "rb") as stream:
        for given in (str(file), stream, io.BytesIO(file.read_bytes())):
            assert np.array_equal(picture_view(given, 32).pixels, view.pixels)


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_photo_on_its_side(picture: Callable[..., Path], tmp_path: Path, turn: int) -> None:
    with Image.open(picture("upright.png", (500, 300))) as image:
        exif = Image.Exif()
        exif[0x0112] = turn
        image.save(tmp_path / "turned.png", exif=exif)
    view = picture_view(tmp_path / "turned.png", 32)
    assert (view.width, view.height) == ((300, 500) if turn >= 5 else (500, 300))
    with Image.open(tmp_path / "turned.png") as image:
        assert np.array_equal(view.pixels, picture_view(ImageOps.exif_transpose(image), 32).pixels)


def test_the_center_crop_is_torchvisions() -> None:
    for height, width in [(32, 32), (32, 33), (35, 32), (32, 34), (37, 32), (32, 96), (32, 47)]:
        pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        for side in (32, 31, 28, 1):
            expected = center_crop_of_torchvision(torch.from_numpy(pixels).permute(2, 0, 1), [side, side])
            assert np.array_equal(center_crop(pixels, side), expected.permute(1, 2, 0).numpy())
    with pytest.raises(ValueError, match="32 px needs images at least as large, got 30 px"):
        center_crop(np.zeros((30, 64, 3), np.uint8), 32)


@pytest.mark.parametrize(
    ("region", "left", "top"),
    [
        (None, 21, 2),  # (74 - 32) / 2 and (37 - 32) / 2, half to even
        ((25 / 74, 5 / 37, 10 / 74, 10 / 37), 21, 2),  # inside the center: nothing moves
        ((0.0, 0.0, 0.1, 0.1), 0, 0),
        ((0.9, 0.9, 0.1, 0.1), 42, 5),
        ((10 / 74, 0.3, 5 / 74, 0.2), 10, 2),  # just to its left edge
        ((55 / 74, 0.3, 5 / 74, 0.2), 28, 2),  # just to its right edge: 60 - 32
        ((0.0, 0.0, 1.0, 1.0), 21, 2),  # larger than any window: the center holds as much as another
        ((0.0, 0.0, 0.5, 1.0), 5, 2),  # 37 px wide: a window of 32 inside it, the nearest to the center
    ],
)
def test_a_region_moves_the_window(region: Box | None, left: int, top: int) -> None:
    """37 px is the short side for a view of 32: the box can be worked out by hand."""
    pixels = np.random.default_rng(0).integers(0, 256, (37, 74, 3), dtype=np.uint8)
    view = picture_view(Image.fromarray(pixels), 32, region)
    assert view.box == pytest.approx((left / 74, top / 37, 32 / 74, 32 / 37))
    assert np.array_equal(view.pixels, pixels[top : top + 32, left : left + 32])


def test_no_window_holds_more_of_a_region(picture: Callable[..., Path]) -> None:
    """Against all windows of the same size, in pictures of all shapes."""
    random = np.random.default_rng(3)
    for size in ((120, 90), (90, 120), (700, 60), (60, 900), (41, 40)):
        image = Image.open(picture(f"{size[0]}.png", size))
        for _ in range(20):
            x, y = random.random(2) * 0.9
            width, height = (min(random.random() * (1 - start) + 1e-3, 1 - start) for start in (x, y))
            region = (x, y, width, height)
            view = picture_view(image, 32, region)
            for axis in (0, 1):
                length = view.box[axis + 2]
                low, high = region[axis], region[axis] + region[axis + 2]

                def held(start: float, length: float = length, low: float = low, high: float = high) -> float:
                    return max(0.0, min(start + length, high) - max(start, low))

                best = max(held(start) for start in np.linspace(0, 1 - length, 400))
                pixel = length / 32
                assert held(view.box[axis]) >= best - 1.01 * pixel
                assert -1e-9 <= view.box[axis] <= 1 - length + 1e-9


def test_a_panoramas_end_can_be_looked_at() -> None:
    """Only the middle of a long picture is ever seen without a region; with one, its ends are."""
    pixels = np.zeros((37, 740, 3), np.uint8)
    pixels[:, 700:] = 255
    picture = Image.fromarray(pixels)
    assert picture_view(picture, 32).pixels.max() == 0
    assert picture_view(picture, 32, (0.97, 0.2, 0.03, 0.5)).pixels.min() == 255


def test_the_share_of_each_pixel(picture: Callable[..., Path]) -> None:
    view = picture_view(picture("a.png", (90, 70)), 32)
    for region in ((0.3, 0.3, 0.2, 0.4), (0.0, 0.0, 0.4, 0.4), (0.31, 0.52, 0.004, 0.003)):
        np.testing.assert_allclose(region_share(view, region), cover(region, view.box, 32), atol=1e-6)
    assert (region_share(view, WHOLE) == 1).all()


@pytest.mark.parametrize(
    "box",
    [
        (-0.1, 0, 0.5, 0.5),
        (0, 0, 1.2, 0.5),
        (0.6, 0, 0.5, 0.5),
        (0, 0, 0, 0.5),
        (0, 0, 0.5, 0),
        (0, float("nan"), 1, 1),
    ],
)
def test_boxes_that_are_none(box: Box) -> None:
    with pytest.raises(FineSightError, match="x,y,width,height"):
        check_box(box)


@pytest.mark.parametrize("text", ["", "1,2,3", "a,b,c,d", "0.1;0.1;0.2;0.2", "0.1,0.1,0.2,0.2,0.3", "inf,0,1,1"])
def test_texts_that_are_no_box(text: str) -> None:
    with pytest.raises(FineSightError, match="x,y,width,height"):
        parse_box(text)
    assert parse_box("0.25,0.1,0.5,0.4") == (0.25, 0.1, 0.5, 0.4)
    assert parse_box(" 0, 0, 1, 1 ") == WHOLE


def test_what_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("words")
    for bad in (tmp_path / "a.jpg", tmp_path / "missing.jpg", io.BytesIO(b"<svg xmlns='http://www.w3.org/2000/svg'/>")):
        with pytest.raises(SkipImage):
            picture_view(bad, 32)
