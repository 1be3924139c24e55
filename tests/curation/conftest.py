"""A small labeled folder with one of everything that ``finesight clean`` finds, and an encoder that knows colors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageFilter, ImageOps

from indexes import small_encoder
from messy_photos import BLURRED, COLORS, COPIED, DARK, MIRRORED, WRONG, photo


@pytest.fixture(scope="session")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of drawn photos: 14 of each color, and six that something is wrong with. Not to be written to."""
    root = tmp_path_factory.mktemp("messy") / "photos"
    for number, (name, color) in enumerate(COLORS.items()):
        (root / name).mkdir(parents=True)
        for i in range(14):
            photo(color, 100 * number + i).save(root / name / f"photo-{i:02d}.png")
    photo(COLORS["red"], 777).save(root / WRONG)
    ImageOps.mirror(Image.open(root / "red" / "photo-05.png")).save(root / MIRRORED)
    shutil.copy(root / "red" / "photo-07.png", root / COPIED)  # a copy with another label
    Image.open(root / "blue" / "photo-01.png").point(lambda value: value // 12).save(root / DARK)
    Image.open(root / "green" / "photo-09.png").filter(ImageFilter.GaussianBlur(5)).save(root / BLURRED)
    (root / "red" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    return root


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder of a few thousand random weights, which sees colors."""
    return small_encoder(tmp_path_factory.mktemp("encoder"), "average")
