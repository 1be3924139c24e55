"""Files made to take minutes or gigabytes: refused, or decoded in a process that can be ended."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bombs import scan_bomb
from finesight.data.decode import UnreachableFile, read_image, read_image_and_size, read_mask
from finesight.data.decode_limits import DecodeLimits
from finesight.errors import SkipImage
from finesight.io.parallel import bounded_map
from processes import children_of, command

SIDE = 6400  # of a picture that is decoded in a process of its own


def decoding_processes() -> list[int]:
    """Those that this process started to decode and that still run; other tests may have started servers."""
    commands = {child: Path(f"/proc/{child}/cmdline") for child in children_of(os.getpid())}
    return [child for child, file in commands.items() if file.exists() and b"decode_process" in file.read_bytes()]


@pytest.fixture(scope="module")
def slow_jpeg() -> bytes:
    """Seconds of work, which the limits for folders allow."""
    return scan_bomb(7000, 60)


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    file = tmp_path / "bomb.jpg"
    file.write_bytes(scan_bomb(7000, 5000))  # two minutes
    for data in (file, io.BytesIO(file.read_bytes())):
        with pytest.raises(SkipImage, match=r"too much work to decode: \d+ scans of 49 million pixels"):
            read_image_and_size(data, 512)
    with pytest.raises(SkipImage, match="too much work"):
        read_mask(file)


def test_usual_progressive_jpegs_are_not(tmp_path: Path) -> None:
    """Ten scans, and a thumbnail in the header."""
    picture = Image.linear_gradient("L").convert("RGB").resize((4000, 3000))
    exif = Image.Exif()
    exif[0x010E] = "\xff\xda" * 20
    picture.save(tmp_path / "a.jpg", progressive=True, exif=exif)
    assert read_image_and_size(tmp_path / "a.jpg", 512)[1] == (4000, 3000)


def test_what_takes_too_long_is_ended(slow_jpeg: bytes, tmp_path: Path) -> None:
    limits = DecodeLimits(seconds=1)
    (tmp_path / "a.jpg").write_bytes(slow_jpeg)
    for file in (tmp_path / "a.jpg", io.BytesIO(slow_jpeg)):
        with pytest.raises(SkipImage, match="longer than 1 seconds"):
            read_image_and_size(file, 512, limits=limits)
    with pytest.raises(UnreachableFile, match="ended"):  # the machine may be busy: not remembered
        read_image_and_size(io.BytesIO(slow_jpeg), 512, limits=DecodeLimits(seconds=0.05))
    assert not decoding_processes()


def test_closing_a_map_ends_what_decodes_for_it(slow_jpeg: bytes) -> None:
    said = []

    def read(data: bytes) -> None:
        try:
            read_image_and_size(io.BytesIO(data), 512)
        except SkipImage as skip:
            said.append((type(skip), str(skip)))

    light = scan_bomb(16, 1)
    results = bounded_map(read, [light, slow_jpeg, slow_jpeg, slow_jpeg], workers=2)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert said
    assert set(said) == {(UnreachableFile, "decoding it was ended: it was stopped")}
    assert not decoding_processes()


def shapes(mode: str) -> Image.Image:
    """Four quarters of different values, as large as what is decoded elsewhere."""
    small = Image.new("L", (2, 2))
    small.putdata([20, 90, 160, 230])
    return small.resize((SIDE, SIDE - 400), Image.Resampling.NEAREST).convert(mode)


def save_options(name: str) -> dict[str, int | str]:
    return {"png": {"compress_level": 1}, "tif": {"compression": "tiff_lzw"}, "jpg": {"progressive": True}}.get(
        name.rpartition(".")[2], {}
    )


@pytest.mark.parametrize(
    ("mode", "name", "orientation"),
    [
        ("L", "a.png", 1),
        ("RGBA", "a.png", 6),
        ("P", "a.png", 1),
        ("I;16", "a.png", 1),
        ("RGB", "a.bmp", 1),
        ("RGB", "a.tif", 1),
        ("RGB", "a.jpg", 6),
    ],
)
def test_large_pictures_are_read_elsewhere_and_smaller(tmp_path: Path, mode: str, name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = shapes("L" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.uint16) * 256)
    picture.save(tmp_path / name, **save_options(name), **({"exif": exif} if orientation != 1 else {}))
    image, size = read_image_and_size(tmp_path / name, 500, trim=100)
    turned = orientation == 6
    assert size == ((SIDE - 400, SIDE - 100) if turned else (SIDE, SIDE - 500))
    assert 500 <= min(image.size) < 1100
    assert image.width / image.height == pytest.approx(size[0] / size[1], rel=0.01)
    values = np.asarray(image)[:, :, 0]
    rows, columns = (np.array([0.25, 0.75])[:, None] * values.shape).T.astype(int)
    expected = [[160, 20], [230, 90]] if turned else [[20, 90], [160, 230]]
    assert np.abs(values[np.ix_(rows, columns)].astype(int) - expected).max() <= 2
    if mode == "RGB" and name == "a.bmp":
        assert min(read_image(tmp_path / name).size) >= 2048


def test_a_folder_with_bombs_is_read(picture: Callable[..., Path], tmp_path: Path) -> None:
    for seed in range(3):
        picture(f"images/{seed}.png", seed=seed)
    (tmp_path / "images" / "bomb.jpg").write_bytes(scan_bomb(7000, 5000))
    done = command("datasets", "check", tmp_path / "images")
    assert "too much work to decode" in done.out + done.err
