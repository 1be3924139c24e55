"""Every oddity as a real file, read back through the public functions."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from finesight.data.decode import (
    IMAGE_SUFFIXES,
    UnreachableFile,
    read_image,
    read_image_and_size,
    read_mask,
    to_rgb,
)
from finesight.data.decode_limits import MAX_PIXELS
from finesight.errors import SkipImage

WIDTH, HEIGHT = 48, 32


def scene(width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Four flat quarters (JPEG keeps their middles) so that every flip and turn can be told apart."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (200, 30, 30)
    pixels[: height // 2, width // 2 :] = (30, 180, 40)
    pixels[height // 2 :, : width // 2] = (40, 40, 220)
    pixels[height // 2 :, width // 2 :] = (230, 220, 50)
    return pixels


def check(image: Image.Image, expected: np.ndarray, tolerance: int = 0) -> None:
    assert image.mode == "RGB"
    got = np.asarray(image).astype(int)
    assert got.shape == expected.shape
    assert np.abs(got - expected.astype(int)).max() <= tolerance


def quarters(pixels: np.ndarray) -> np.ndarray:
    """(H, W, 3) -> (2, 2, 3): the color in the middle of each quarter, away from JPEG's ringing edges."""
    h, w = pixels.shape[:2]
    return pixels[np.ix_([h // 4, 3 * h // 4], [w // 4, 3 * w // 4])].astype(int)


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("a.png", {}, 0),
        ("a.bmp", {}, 0),
        ("a.tif", {}, 0),
        ("a.tiff", {"compression": "tiff_lzw"}, 0),
        ("a.webp", {"lossless": True}, 0),
        ("a.webp", {"quality": 95}, 12),
        ("a.jpg", {"quality": 95, "subsampling": 0}, 12),
        ("a.JPEG", {"quality": 95, "progressive": True, "subsampling": 0}, 12),
        ("a.gif", {}, 0),
    ],
)
def test_formats(tmp_path: Path, name: str, options: dict, tolerance: int) -> None:
    path = tmp_path / name
    Image.fromarray(scene()).save(path, **options)
    image = read_image(path)
    assert image.size == (WIDTH, HEIGHT)
    assert np.abs(quarters(np.asarray(image)) - quarters(scene())).max() <= tolerance
    check(read_image(str(path)), np.asarray(image))
    with open(path, "rb") as stream:
        check(read_image(stream), np.asarray(image))
    with Image.open(path) as opened:
        check(to_rgb(opened), np.asarray(image))


def test_suffix_does_not_decide_the_format(tmp_path: Path) -> None:
    Image.fromarray(scene()).save(tmp_path / "really_png.jpg", format="PNG")
    check(read_image(tmp_path / "really_png.jpg"), scene())
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in IMAGE_SUFFIXES)


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_first_frame_of_an_animation(tmp_path: Path, name: str) -> None:
    first, *others = (Image.new("RGB", (20, 10), color) for color in ("red", "lime", "blue"))
    options = {"lossless": True} if "webp" in name else {}
    first.save(tmp_path / name, save_all=True, append_images=others, **options)
    with Image.open(tmp_path / name) as image:
        assert image.n_frames == 3
    check(read_image(tmp_path / name), np.full((10, 20, 3), (255, 0, 0), np.uint8))


RAMP = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (16, 1))
BITS = np.random.default_rng(0).random((9, 13)) > 0.5
DEEP = np.linspace(0, 65535, 300).astype(np.uint16).reshape(10, 30)


@pytest.mark.parametrize(
    ("values", "expected", "suffixes"),
    [(RAMP, RAMP, "png bmp tif jpg webp"), (BITS, BITS * 255, "png bmp tif gif"), (DEEP, DEEP >> 8, "png tif")],
    ids=["8 bit", "1 bit", "16 bit"],
)
def test_gray(tmp_path: Path, values: np.ndarray, expected: np.ndarray, suffixes: str) -> None:
    for suffix in suffixes.split():
        path = tmp_path / f"gray.{suffix}"
        Image.fromarray(values).save(path, **{"lossless": True} if suffix == "webp" else {})
        check(read_image(path), np.repeat(expected[:, :, None], 3, axis=2), 2 if suffix == "jpg" else 0)


@pytest.mark.parametrize("name", ["p.png", "p.gif", "p.bmp", "p.tif"])
def test_palette(tmp_path: Path, name: str) -> None:
    Image.fromarray(scene()).quantize(8).save(tmp_path / name)
    with Image.open(tmp_path / name) as image:
        assert image.mode == "P"
    check(read_image(tmp_path / name), scene(), 8)


@pytest.mark.parametrize(("name", "transparency"), [("p.png", 0), ("p.png", bytes([0, 128, 255])), ("p.gif", 0)])
def test_palette_with_transparency(tmp_path: Path, name: str, transparency: int | bytes) -> None:
    image = Image.fromarray(np.array([[0, 1, 2]], np.uint8))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.save(tmp_path / name, transparency=transparency)
    with Image.open(tmp_path / name) as opened:
        assert "transparency" in opened.info
    middle = (0, 255, 0) if transparency == 0 else (127, 255, 127)
    check(read_image(tmp_path / name), np.array([[(255, 255, 255), middle, (0, 0, 255)]]), 1)


@pytest.mark.parametrize(("mode", "name"), [("RGBA", "a.png"), ("RGBA", "a.webp"), ("RGBA", "a.tif"), ("LA", "a.png")])
def test_alpha_is_laid_on_white(tmp_path: Path, mode: str, name: str) -> None:
    color = scene() if mode == "RGBA" else np.repeat(scene()[:, :, :1], 3, axis=2)
    alpha = np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1))
    bands = [*np.moveaxis(color, 2, 0), alpha] if mode == "RGBA" else [color[:, :, 0], alpha]
    image = Image.merge(mode, [Image.fromarray(np.ascontiguousarray(band)) for band in bands])
    image.save(tmp_path / name, **{"lossless": True, "exact": True} if "webp" in name else {})
    share = alpha[:, :, None] / 255
    check(read_image(tmp_path / name), np.rint(color * share + 255 * (1 - share)), 1)


def test_one_transparent_color_of_a_png_without_alpha(tmp_path: Path) -> None:
    Image.fromarray(np.array([[[1, 2, 3], [9, 9, 9]]], np.uint8)).save(tmp_path / "t.png", transparency=(1, 2, 3))
    check(read_image(tmp_path / "t.png"), np.array([[(255, 255, 255), (9, 9, 9)]]))


@pytest.mark.parametrize(("name", "tolerance"), [("c.jpg", 12), ("c.tif", 0)])
def test_cmyk(tmp_path: Path, name: str, tolerance: int) -> None:
    ink = Image.merge("CMYK", [Image.new("L", (16, 16), v) for v in (255, 0, 0, 51)])
    ink.save(tmp_path / name, **{"quality": 95} if "jpg" in name else {})
    check(read_image(tmp_path / name), np.full((16, 16, 3), (0, 204, 204)), tolerance)


def test_sixteen_bit_big_endian_tiff(tmp_path: Path) -> None:
    values = np.array([[0, 256, 32768, 65535]], ">u2")
    tags = [(256, 4), (257, 1), (258, 16), (259, 1), (262, 1), (273, 0), (277, 1), (278, 1), (279, 8)]
    start = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack(">HHII", t, 4, 1, start if t == 273 else v) for t, v in tags)
    file = b"MM\0*" + struct.pack(">IH", 8, len(tags)) + entries + struct.pack(">I", 0) + values.tobytes()
    (tmp_path / "be.tif").write_bytes(file)
    check(read_image(tmp_path / "be.tif"), np.array([[[0] * 3, [1] * 3, [128] * 3, [255] * 3]]))


def test_sixteen_bit_color_png(tmp_path: Path) -> None:
    deep = np.random.default_rng(1).integers(0, 65536, (5, 7, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in deep)
    (tmp_path / "deep.png").write_bytes(png(7, 5, depth=16, data=zlib.compress(rows)))
    check(read_image(tmp_path / "deep.png"), deep >> 8)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 100.0, 255.0]], np.float32), [0, 100, 255]),
        (np.array([[-2.0, 0.0, 2.0]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, 0.25, 1.0]], np.float32), [0, 64, 255]),
        (np.array([[0, 7, 255]], np.int32), [0, 7, 255]),
        (np.array([[0, 25600, 65535]], np.int32), [0, 100, 255]),
        (np.array([[0, 1 << 20, 1 << 21]], np.int32), [0, 128, 255]),
        (np.array([[5, 5, 5]], np.int32), [5, 5, 5]),
    ],
)
def test_float_and_32_bit_tiff(tmp_path: Path, values: np.ndarray, expected: list[int]) -> None:
    Image.fromarray(values).save(tmp_path / "v.tif")
    check(read_image(tmp_path / "v.tif"), np.repeat(np.array(expected)[None, :, None], 3, axis=2))


def test_32_bits_are_squeezed_alike_in_every_row(tmp_path: Path) -> None:
    """The range is the whole picture's, though only some rows at a time are converted."""
    values = np.arange(-300, 701, dtype=np.int32)[:, None].repeat(2, axis=1) * 1000
    Image.fromarray(values).save(tmp_path / "v.tif")
    expected = np.rint((values + 300_000) * (255 / 1_000_000))
    check(read_image(tmp_path / "v.tif"), np.repeat(expected[..., None], 3, axis=2))


def as_seen(orientation: int, stored: np.ndarray) -> np.ndarray:
    """The EXIF standard's meaning of each orientation: where the stored row 0 and column 0 belong."""
    return {
        1: stored,  # row 0 top, column 0 left
        2: stored[:, ::-1],  # top, right
        3: stored[::-1, ::-1],  # bottom, right
        4: stored[::-1],  # bottom, left
        5: stored.swapaxes(0, 1),  # left, top
        6: stored.swapaxes(0, 1)[:, ::-1],  # right, top
        7: stored[::-1, ::-1].swapaxes(0, 1),  # right, bottom
        8: stored.swapaxes(0, 1)[::-1],  # left, bottom
    }[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_orientation(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"jpg": {"quality": 95, "subsampling": 0}, "webp": {"lossless": True}}.get(suffix, {})
    path = tmp_path / f"o.{suffix}"
    Image.fromarray(scene()).save(path, exif=exif, **options)
    expected = as_seen(orientation, scene())
    image, size = read_image_and_size(path, at_least=8)
    assert size == (expected.shape[1], expected.shape[0])
    for got in (image, read_image(path), to_rgb(Image.open(path))):
        seen = np.asarray(got)
        assert (seen.shape[0] > seen.shape[1]) == (expected.shape[0] > expected.shape[1])
        assert np.abs(quarters(seen) - quarters(expected)).max() <= 15


def test_orientation_of_a_sixteen_bit_palette_or_alpha_png(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    deep, colors = np.arange(6, dtype=np.uint16).reshape(2, 3) * 257, Image.fromarray(scene())
    for image, expected, tolerance in (
        (Image.fromarray(deep), np.repeat((deep >> 8)[:, :, None], 3, axis=2), 0),
        (colors.quantize(4), scene(), 8),
        (colors.convert("RGBA"), scene(), 0),
    ):
        image.save(tmp_path / "a.png", exif=exif)
        check(read_image(tmp_path / "a.png"), as_seen(6, expected), tolerance)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\xff\xff", b"Exif\0\0"])
def test_broken_exif_does_not_cost_the_picture(tmp_path: Path, exif: bytes) -> None:
    Image.fromarray(scene()).save(tmp_path / "e.jpg", exif=exif)
    assert read_image(tmp_path / "e.jpg").size == (WIDTH, HEIGHT)


def test_a_jpeg_is_decoded_small_but_never_too_small(tmp_path: Path) -> None:
    Image.fromarray(scene(801, 403)).save(tmp_path / "big.jpg")
    sizes = {403: (801, 403), 201: (401, 202), 101: (401, 202), 50: (101, 51), 10: (101, 51)}  # at least: decoded
    for at_least, expected in sizes.items():
        image, original = read_image_and_size(tmp_path / "big.jpg", at_least=at_least)
        assert (image.size, original) == (expected, (801, 403))
    assert read_image(tmp_path / "big.jpg").size == (801, 403)


# --- files that cannot be used ----------------------------------------------------------------------


def png(width: int, height: int, depth: int = 8, data: bytes = b"") -> bytes:
    """A color PNG of any declared size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def reason(file: Path | io.BytesIO) -> str:
    """Return why a file is skipped for good."""
    with pytest.raises(SkipImage) as caught:
        read_image(file)
    assert not isinstance(caught.value, UnreachableFile)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"just some text\n",
        b"<html>404 not found</html>",
        b"\0" * 5000,
        b"\xff\xd8\xff",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nquit\n",  # a program, which is not run
        b"",
    ],
)
def test_not_an_image(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "fake.jpg").write_bytes(content)
    expected = "not an image, or damaged" if content else "empty file (0 bytes)"
    assert reason(tmp_path / "fake.jpg") == reason(io.BytesIO(content)) == expected


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", ["t.jpg", "t.png", "t.webp", "t.bmp", "t.gif", "t.tif", "lzw.tif"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated(tmp_path: Path, name: str, share: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = tmp_path / name
    Image.fromarray(noise).save(path, **{"compression": "tiff_lzw"} if "lzw" in name else {})
    read_image(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "damaged" in reason(path)


def test_scrambled_files_never_raise_anything_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    image, skipped = Image.fromarray(scene()), 0
    for suffix in ("jpeg", "png", "webp", "bmp", "gif", "tiff"):
        buffer = io.BytesIO()
        image.save(buffer, format=suffix)
        for _ in range(40):
            data = np.frombuffer(buffer.getvalue(), np.uint8).copy()
            places = rng.integers(0, min(len(data), 400), 6)
            data[places] = rng.integers(0, 256, 6)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    assert read_image(io.BytesIO(data.tobytes())).mode == "RGB"
            except SkipImage:
                skipped += 1
    assert skipped > 0


@pytest.mark.parametrize("size", [(100_000, 100_000), (20_000, 8_948), (1, MAX_PIXELS + 1)])
def test_decompression_bomb(tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused from the header: the data, which would be damaged, is never looked at."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png(*size))
    assert path.stat().st_size < 100
    assert reason(path).startswith(f"too large: more than {MAX_PIXELS:,} pixels")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # our own limit holds without Pillow's
    assert reason(path).startswith("too large")
    path.write_bytes(png(MAX_PIXELS // 10, 10))
    assert "too large" not in reason(path)


def test_unreachable_files(tmp_path: Path, picture, no_access) -> None:
    (tmp_path / "folder.jpg").mkdir()
    secret = picture("secret.png")
    with no_access(secret):
        for name, expected in (
            ("gone.jpg", "no such file or directory"),
            ("folder.jpg", "is a directory"),
            ("secret.png", "permission denied"),
        ):
            with pytest.raises(UnreachableFile, match=expected):
                read_image(tmp_path / name)
    read_image(secret)


def test_an_opened_picture_that_cannot_be_converted(tmp_path: Path) -> None:
    Image.fromarray(scene()).save(tmp_path / "cut.bmp")
    (tmp_path / "cut.bmp").write_bytes((tmp_path / "cut.bmp").read_bytes()[:200])
    with Image.open(tmp_path / "cut.bmp") as image, pytest.raises(SkipImage, match="damaged image"):
        to_rgb(image)


def test_masks(tmp_path: Path) -> None:
    truth = np.array([[0, 1, 1], [0, 0, 1]], bool)
    gray = Image.fromarray(truth * np.uint8(3))
    palette = gray.copy()
    palette.putpalette([255, 255, 255] + [0, 0, 0] * 3)  # index 0 is drawn white and still means background
    opaque = Image.merge("RGBA", [gray, gray, gray, Image.new("L", gray.size, 255)])
    opaque_gray = Image.merge("LA", [gray, Image.new("L", gray.size, 255)])
    for i, image in enumerate((gray, Image.fromarray(truth), palette, opaque, opaque_gray, gray.convert("RGB"))):
        image.save(tmp_path / f"{i}.png")
        np.testing.assert_array_equal(read_mask(tmp_path / f"{i}.png"), truth)
    with pytest.raises(SkipImage, match="no such file"):
        read_mask(tmp_path / "gone.png")
    (tmp_path / "text.png").write_text("text")
    with pytest.raises(SkipImage, match="not an image"):
        read_mask(tmp_path / "text.png")
