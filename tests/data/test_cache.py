"""The cache with real files, real kills and real processes."""

import csv
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from finesight.data import store
from finesight.data.cache import DecodedCache, cache_side, default_cache_dir, open_cache, write_skipped
from finesight.data.decode import read_image_and_size
from finesight.data.geometry import Geometry, Scale, read_resized
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.paper.objects.saliency import read_masks

SIDE = 32


@pytest.fixture
def folder(tmp_path: Path, picture) -> Path:
    """Seven good pictures of different shapes."""
    shapes = [(40, 30), (30, 40), (64, 64), (20, 20), (200, 50), (10, 90), (33, 31)]
    for i, size in enumerate(shapes):
        picture(f"images/{i}.png", size, seed=i)
    return tmp_path / "images"


@pytest.fixture
def opened(folder: Path, tmp_path: Path):
    """opened(source or nothing): the cache of it, quiet, in tmp_path/cache."""

    def open_it(source: ImageSource | None = None, side: int = SIDE, **options) -> DecodedCache:
        chosen = open_source(folder) if source is None else source
        return open_cache(chosen, side, cache_dir=tmp_path / "cache", progress=False, **options)

    return open_it


def shards(tmp_path: Path, side: int = SIDE) -> list[Path]:
    return [p for p in (tmp_path / "cache" / f"v1-side{side}").iterdir() if p.is_dir()]


def stored(tmp_path: Path) -> int:
    """How many images were ever decoded into the store."""
    return sum(len(np.load(shard / "index.npz")["keys"]) for shard in shards(tmp_path))


def rewrite(file: Path, content: bytes) -> None:
    """Other bytes in the same file, with the old size and time: only a second decoding could notice."""
    status = file.stat()
    file.write_bytes(content.ljust(status.st_size, b"\0")[: status.st_size])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


# --- what an image becomes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "cached"),
    [
        ((30, 40), (43, 32)),
        ((64, 64), (32, 32)),
        ((96, 32), (32, 96)),
        ((97, 32), (32, 96)),
        ((2000, 2), (32, 96)),
        ((1, 700), (96, 32)),
        ((1, 1), (32, 32)),
    ],
)
def test_size(size: tuple[int, int], cached: tuple[int, int]) -> None:
    geometry = Geometry.fit(*size, SIDE)
    assert geometry.size == cached
    assert geometry.original == size


@pytest.mark.parametrize("size", [(40, 30), (301, 200), (20, 33)])
def test_pixels_are_pillows_antialiased_bilinear(picture, size: tuple[int, int]) -> None:
    path = picture("a.png", size)
    pixels, geometry = read_resized(path, SIDE)
    height, width = geometry.size
    whole = Image.open(path).resize((width, height), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(pixels, np.asarray(whole))


def test_a_panorama_keeps_its_middle(tmp_path: Path) -> None:
    stripes = np.repeat(np.arange(100, dtype=np.uint8), 16)  # 1600 columns, 100 gray values
    image = Image.fromarray(np.tile(stripes, (64, 1)))
    for name, stored in (("p.png", image), ("q.png", image.transpose(Image.Transpose.TRANSPOSE))):
        stored.save(tmp_path / name)
    pixels, geometry = read_resized(tmp_path / "p.png", 64)
    assert geometry.crop == (704, 0, 192, 64)
    np.testing.assert_array_equal(pixels[:, :, 0], np.tile(stripes[704:896], (64, 1)))
    np.testing.assert_array_equal(read_resized(tmp_path / "q.png", 64)[0], pixels.swapaxes(0, 1))


def test_a_large_jpeg_decoded_small_is_nearly_the_same(picture) -> None:
    path = picture("big.jpg", (1601, 1203))
    pixels, geometry = read_resized(path, 64)
    assert geometry.original == (1601, 1203)
    exact = geometry.resize(Image.open(path))
    assert np.abs(pixels.astype(int) - np.asarray(exact)).mean() < 1.5


def test_cache_side() -> None:
    assert [cache_side(r) for r in (224, 112, 64, 1, 97)] == [256, 128, 74, 2, 111]


# --- rows cut off the bottom ------------------------------------------------------------------------

BANNER = (255, 0, 255)  # no other pixel of these pictures has much red or blue


def bannered(width: int, height: int, trim: int, orientation: int = 1) -> np.ndarray:
    """Green, each row another shade, and the banner at its bottom; stored as EXIF ``orientation`` wants it."""
    shades = np.zeros((height, width, 3), np.uint8)
    shades[:, :, 1] = (60 + np.arange(height) % 150)[:, None]
    shades[height - trim :] = BANNER
    return {1: shades, 3: shades[::-1, ::-1], 6: np.rot90(shades), 8: np.rot90(shades, -1)}[orientation]


def save(file: Path, pixels: np.ndarray, orientation: int = 1) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossy = {"quality": 100, "subsampling": 0} if file.suffix == ".jpg" else {}
    Image.fromarray(pixels).save(file, exif=exif, **lossy)
    return file


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_trimmed_pixels(tmp_path: Path, orientation: int) -> None:
    """The bottom is that of the picture as it is seen."""
    file = save(tmp_path / "a.png", bannered(60, 45, 20, orientation), orientation)
    image, size = read_image_and_size(file, trim=20)
    assert size == image.size == (60, 25)
    np.testing.assert_array_equal(np.asarray(image), bannered(60, 45, 20)[:25])
    pixels, geometry = read_resized(file, 25, trim=20)
    np.testing.assert_array_equal(pixels, np.asarray(image))  # nothing of the banner in the resized picture either
    assert geometry.original == (60, 25)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("height", "side", "scale"), [(1001, 32, 8), (1016, 32, 8), (1001, 60, 4), (1003, 120, 2)])
def test_trimmed_jpegs_decoded_small(tmp_path: Path, orientation: int, height: int, side: int, scale: int) -> None:
    trim = 20
    file = save(tmp_path / "big.jpg", bannered(1201, height, trim, orientation), orientation)
    whole, _ = read_image_and_size(file, at_least=2 * side + trim)
    image, size = read_image_and_size(file, at_least=2 * side, trim=trim)
    assert size == (1201, height - trim)
    rows = (height - trim) // scale
    assert image.size == (-(-1201 // scale), rows)
    assert min(image.size) >= 2 * side
    np.testing.assert_array_equal(np.asarray(image), np.asarray(whole)[:rows])
    pixels, geometry = read_resized(file, side, trim)
    assert geometry.original == (1201, height - trim)
    for seen in (np.asarray(image), pixels):
        assert seen[:, :, [0, 2]].max() < 64  # what a block shared with the banner rings, not the banner's 255


def test_no_row_that_shows_some_of_the_banner_is_kept(tmp_path: Path) -> None:
    """At 1/8 the banner begins within a row, wherever the rounding of the size would put it."""
    for height in range(1001, 1009):
        file = save(tmp_path / "big.jpg", bannered(1100, height, 18))
        image, _ = read_image_and_size(file, at_least=64, trim=18)
        assert image.height == (height - 18) // 8
        whole = np.asarray(read_image_and_size(file, at_least=64)[0])
        shows = whole[:, :, 0].min(axis=1) > 20
        assert shows[image.height :].all()
        assert not shows[: image.height].any()


def test_an_image_not_taller_than_the_trim_is_skipped(folder: Path, opened) -> None:
    cache = opened(replace(open_source(folder), trim=31))
    assert cache.skipped == [
        (f"{i}.png", f"only {height} pixels high, and the bottom 31 are cut off")
        for i, height in ((0, 30), (3, 20), (6, 31))
    ]
    assert len(cache) == 4


def test_boxes_points_and_masks_of_trimmed_images(tmp_path: Path, opened) -> None:
    root = tmp_path / "trimmed"
    root.mkdir()
    pixels = bannered(60, 52, 20)
    pixels[5:15, 10:30] = 200, 0, 200  # the object
    save(root / "a.png", pixels)
    mask = np.zeros((52, 60), np.uint8)
    mask[5:15, 10:30] = 1
    Image.fromarray(mask).save(root / "mask.png")
    Image.fromarray(mask.repeat(3, 0).repeat(3, 1)).save(root / "large.png")
    source = ImageSource(
        root,
        "list",
        np.array(["a.png"] * 2),
        boxes=np.array([[10, 5, 20, 10], [0, 20, 60, 32]], np.float32),
        masks=np.array(["mask.png", "large.png"]),
        trim=20,
    )
    cache = opened(source, side=64)
    assert cache.sizes.tolist() == [[64, 120]] * 2
    np.testing.assert_allclose(cache.box(0), [20, 10, 40, 20])
    np.testing.assert_allclose(cache.box(1), [0, 40, 120, 24])  # what lay in the banner is gone
    np.testing.assert_allclose(cache.geometry(0).points([[30, 15]]), [[60, 30]])
    expected = np.zeros((64, 120), bool)
    expected[10:30, 20:60] = True
    for i in range(2):
        np.testing.assert_array_equal(cache.mask(i), expected)
        sure = cache.image(i)[:, :, 0] > 100
        assert (sure == expected).mean() > 0.98
    alpha = read_masks(cache, None)  # of the same rows
    inside = alpha[0] > 128
    np.testing.assert_allclose(np.argwhere(inside).min(axis=0) / alpha.shape[1:], [5 / 32, 10 / 60], atol=0.02)
    np.testing.assert_allclose((np.argwhere(inside).max(axis=0) + 1) / alpha.shape[1:], [15 / 32, 30 / 60], atol=0.02)


def test_another_trim_is_another_image(folder: Path, tmp_path: Path, opened) -> None:
    source = open_source(folder).select([1, 2])
    plain = opened(source)
    assert stored(tmp_path) == 2
    cut = opened(replace(source, trim=8))
    assert stored(tmp_path) == 4
    assert not set(plain.keys.tolist()) & set(cut.keys.tolist())
    np.testing.assert_array_equal(cut.image(0), read_resized(folder / "1.png", SIDE, trim=8)[0])
    np.testing.assert_array_equal(opened(source).image(0), plain.image(0))
    opened(replace(source, trim=9))
    assert stored(tmp_path) == 6


def test_keys_without_a_trim_are_those_of_older_caches(folder: Path) -> None:
    file = folder / "0.png"
    status = file.stat()
    facts = f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0{SIDE}"
    assert store.image_key(str(file), Scale(SIDE)) == hashlib.blake2b(facts.encode(), digest_size=16).digest()


# --- reading ----------------------------------------------------------------------------------------


def test_images_in_source_order_from_many_shards(folder: Path, tmp_path: Path, opened) -> None:
    cache = opened(workers=3, shard_images=3)
    assert len(shards(tmp_path)) == 3
    assert len(cache) == 7
    assert cache.side == SIDE
    assert cache.box(0) is cache.mask(0) is None
    assert cache.skipped == []
    assert cache.source.paths.tolist() == [f"{i}.png" for i in range(7)]
    for i in range(7):
        np.testing.assert_array_equal(cache.image(i), read_resized(folder / f"{i}.png", SIDE)[0])
        assert not cache.image(i).flags.writeable
    backwards = opened(open_source(folder).select([6, 0, 6]))
    for i, original in enumerate((6, 0, 6)):
        np.testing.assert_array_equal(backwards.image(i), cache.image(original))


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_batch(opened, kind) -> None:
    cache = opened()
    indices = [4, 1, 4, 5]
    canvas, sizes = cache.batch(kind(indices))
    assert canvas.dtype == torch.uint8
    assert canvas.shape == (4, 3, 96, 96)
    assert sizes.dtype == torch.int64
    assert canvas.is_contiguous(memory_format=torch.channels_last)  # as pixels lie in the cache
    for slot, (h, w), i in zip(canvas.numpy(), sizes.tolist(), indices, strict=True):
        np.testing.assert_array_equal(slot[:, :h, :w].transpose(1, 2, 0), cache.image(i))
        slot[:, :h, :w] = 0
        assert not slot.any()  # black beside the image
    again = cache.batch([4])[0].numpy()[0, :, :32, :96].transpose(1, 2, 0)
    np.testing.assert_array_equal(again, cache.image(4))  # the canvas is a copy


def test_boxes_follow_their_image(folder: Path, opened) -> None:
    rng = np.random.default_rng(0)
    source = open_source(folder)
    boxes = np.concatenate([rng.uniform(-10, 40, (7, 2)), rng.uniform(5, 60, (7, 2))], axis=1).astype(np.float32)
    cache = opened(ImageSource(source.root, "folder", source.paths, boxes=boxes))
    for i in range(7):
        box, mask = cache.box(i), cache.mask(i)
        height, width = cache.image(i).shape[:2]
        original = Image.open(folder / f"{i}.png").size
        expected = loop_box(boxes[i], original)
        np.testing.assert_allclose(box, expected, atol=1e-3)
        assert mask.shape == (height, width)
        for y, x in rng.integers(0, [height, width], (50, 2)):
            left, top, w, h = box
            assert mask[y, x] == (left <= x + 0.5 < left + w and top <= y + 0.5 < top + h)


def loop_box(box: np.ndarray, original: tuple[int, int]) -> list[float]:
    """Each corner by hand: center crop to 3:1, scale the short side to SIDE, clip."""
    scale = SIDE / min(original)
    starts, ends = [], []
    for axis in (0, 1):
        kept = min(original[axis], 3 * min(original))
        limit = round(kept * scale)
        offset = (original[axis] - kept) / 2
        for values, edge in ((starts, box[axis]), (ends, box[axis] + box[axis + 2])):
            values.append(min(max((edge - offset) * limit / kept, 0), limit))
    return [*starts, ends[0] - starts[0], ends[1] - starts[1]]


@pytest.mark.parametrize("scale", [1, 2])
def test_masks_follow_their_image(folder: Path, tmp_path: Path, opened, scale: int) -> None:
    """A disc painted into the picture and into its mask (maybe of another scale) stays in its place."""
    for i, (width, height) in enumerate([(120, 90), (400, 60), (50, 300)]):
        for name, zoom in ((f"images/{i}.png", 1), (f"masks/{i}.png", scale)):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            y, x = np.mgrid[: height * zoom, : width * zoom] / zoom
            disc = (x - width / 2 - 6) ** 2 + (y - height / 2 + 6) ** 2 < 18**2
            Image.fromarray(disc * np.uint8(255)).save(tmp_path / name)
    paths = np.array([f"images/{i}.png" for i in range(3)])
    masks = np.array([f"masks/{i}.png" for i in range(3)])
    cache = opened(ImageSource(tmp_path, "folder", paths, masks=masks, boxes=np.zeros((3, 4), np.float32)))
    for i in range(3):
        painted = cache.image(i)[:, :, 0] >= 128
        mask = cache.mask(i)
        assert mask.dtype == bool
        assert (mask & painted).sum() / (mask | painted).sum() > 0.9
        assert 100 < mask.sum() < mask.size


def test_a_mask_that_cannot_be_read(folder: Path, opened) -> None:
    source = open_source(folder)
    cache = opened(ImageSource(source.root, "folder", source.paths, masks=np.array(["gone.png"] * 7)))
    with pytest.raises(FineSightError, match=r"object mask .*gone.png cannot be used: no such file"):
        cache.mask(0)


# --- skipped images ---------------------------------------------------------------------------------


def test_bad_files_are_skipped_with_their_reason(folder: Path, tmp_path: Path, opened, no_access) -> None:
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("text")
    (folder / "notes.txt").write_text("text")
    shutil.copy(folder / "0.png", folder / "secret.png")
    shutil.copy(folder / "0.png", folder / "vanishing.png")
    source = open_source(folder)
    (folder / "vanishing.png").unlink()
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    with no_access(folder / "secret.png"):
        cache = opened(source)
        assert opened(source).skipped == cache.skipped
    assert len(shards(tmp_path)) == 1, "a file that stays out of reach leaves no empty shard at every opening"
    assert cache.source.paths.tolist() == [f"{i}.png" for i in range(7)]
    assert len(cache) == 7
    assert cache.skipped == [
        ("notes.txt", "not an image file (.txt)"),
        ("empty.jpg", "empty file (0 bytes)"),
        ("secret.png", "permission denied"),
        ("text.jpg", "not an image, or damaged"),
        ("vanishing.png", "no such file or directory"),
    ]
    write_skipped(cache.skipped, tmp_path / "run" / "skipped.csv")
    with open(tmp_path / "run" / "skipped.csv", newline="") as file:
        assert list(csv.reader(file)) == [["path", "reason"], *(list(pair) for pair in cache.skipped)]
    again = opened(source)  # damage is remembered, a missing permission is not
    assert [path for path, _ in again.skipped] == ["notes.txt", "empty.jpg", "text.jpg", "vanishing.png"]
    assert again.skipped[1] == ("empty.jpg", "empty file (0 bytes)")


def test_odd_entries_of_a_list_do_not_hang(folder: Path, tmp_path: Path, opened) -> None:
    os.mkfifo(folder / "pipe.jpg")
    (folder / "dir.jpg").mkdir()
    (folder / "loop.jpg").symlink_to("loop.jpg")
    names = ["0.png", "pipe.jpg", "dir.jpg", "loop.jpg", "gone.jpg", str(folder / "1.png"), "0.png"]
    (folder / "list.txt").write_text("\n".join(names))
    cache = opened(open_source(folder / "list.txt"))
    assert cache.source.paths.tolist() == ["0.png", str(folder / "1.png"), "0.png"]
    assert [reason for _, reason in cache.skipped] == [
        "not a regular file",
        "not a regular file",
        "too many levels of symbolic links",
        "no such file or directory",
    ]
    assert stored(tmp_path) == 2


def test_odd_names(tmp_path: Path, picture, opened) -> None:
    names = ["ä, \n 鳥🐦.png", "e\u0301.png", "é.png"]
    for i, name in enumerate(names):
        picture(f"odd/{name}", seed=i)
    raw = os.fsdecode(b"latin\xe9.png")
    os.link(tmp_path / "odd" / "é.png", tmp_path / "odd" / raw)
    (tmp_path / "odd" / os.fsdecode(b"bad\xe9.png")).touch()
    cache = opened(open_source(tmp_path / "odd"))
    assert cache.source.paths.tolist() == sorted([*names, raw])
    assert len({cache.image(i).tobytes() for i in range(4)}) == 3
    write_skipped(cache.skipped, tmp_path / "skipped.csv")
    assert b"bad\xe9.png,empty file (0 bytes)" in (tmp_path / "skipped.csv").read_bytes()


def test_no_readable_image(tmp_path: Path, folder: Path, opened) -> None:
    (tmp_path / "bad").mkdir()
    for i in range(3):
        (tmp_path / "bad" / f"{i}.jpg").touch()
    (tmp_path / "bad" / "x.jpg").write_text("x")
    with pytest.raises(FineSightError) as caught:
        opened(open_source(tmp_path / "bad"))
    assert str(caught.value) == (
        f"none of the 4 images of {tmp_path / 'bad'} can be read (3 x empty file (0 bytes); "
        "1 x not an image, or damaged), the first being 0.jpg; repair them or give --data another folder"
    )
    with pytest.raises(FineSightError, match="has no images to read here"):
        opened(open_source(folder).select([]))


# --- re-use -----------------------------------------------------------------------------------------


def test_nothing_is_decoded_twice(folder: Path, tmp_path: Path, opened, no_access) -> None:
    """Damage is remembered, too; and a cache that cannot be written is enough if all is there."""
    (folder / "text.png").write_bytes(b"x" * 999)
    first = opened()
    pixels = [first.image(i).copy() for i in range(7)]
    for i in range(7):
        rewrite(folder / f"{i}.png", b"no longer a picture")
    rewrite(folder / "text.png", (folder / "0.png").read_bytes())
    with no_access(tmp_path / "cache" / f"v1-side{SIDE}" / "lock"):
        again = opened()
    assert again.skipped == [("text.png", "not an image, or damaged")]
    for i in range(7):
        np.testing.assert_array_equal(again.image(i), pixels[i])
    assert len(opened(open_source(folder).select([3, 2]))) == 2
    assert stored(tmp_path) == 8


def test_only_changed_and_new_files_are_decoded_again(folder: Path, tmp_path: Path, picture, opened) -> None:
    picture("images/0.bmp", (40, 30), seed=99)
    old = opened()
    before = old.image(0).copy()
    status = (folder / "0.bmp").stat()
    picture("images/0.bmp", (40, 30), seed=100)
    os.utime(folder / "0.bmp", ns=(status.st_atime_ns, status.st_mtime_ns + 1))  # a nanosecond is enough
    assert (folder / "0.bmp").stat().st_size == status.st_size
    with open(folder / "1.png", "ab") as file:  # another size at the same time
        status = (folder / "1.png").stat()
        file.write(b"x")
    os.utime(folder / "1.png", ns=(status.st_atime_ns, status.st_mtime_ns))
    picture("images/99.png", seed=99)
    new = opened()
    assert len(new) == 9
    assert stored(tmp_path) == 8 + 3
    assert min(opened(side=16).image(0).shape[:2]) == 16
    assert stored(tmp_path) == 8 + 3, "another side has a store of its own"
    np.testing.assert_array_equal(new.image(0), read_resized(folder / "0.bmp", SIDE)[0])
    assert not np.array_equal(new.image(0), before)
    np.testing.assert_array_equal(old.image(0), before)  # an open cache does not change under its reader


@pytest.mark.parametrize("content", ["half", "another"])
def test_a_file_that_changes_before_it_is_read_is_not_kept_as_what_it_was(
    folder: Path, tmp_path: Path, content: str
) -> None:
    """Neither its reason nor its pixels: it may be put back as it was, with its time."""
    file, scale, cache = folder / "0.png", Scale(SIDE), tmp_path / "kept"
    job = (store.image_key(str(file), scale), str(file), 0)
    before = Path(shutil.copy2(file, tmp_path / "before.png"))
    other = (folder / "1.png").read_bytes() if content == "another" else file.read_bytes()[:50]
    file.write_bytes(other)
    add = {"workers": 1, "progress": False}
    assert store.add_images(cache, [job], scale, **add) == {job[0]: "it changed while it was read"}
    assert not len(store.read_entries(cache).keys)
    shutil.copy2(before, file)
    assert store.add_images(cache, [job], scale, **add) == {}
    assert store.read_entries(cache).sizes.tolist() == [[32, 43]]


@pytest.mark.parametrize("damage", ["pixels", "index", "no pixels", "no index", "empty index", "wrong index"])
def test_a_damaged_shard_is_built_again(folder: Path, tmp_path: Path, opened, damage: str) -> None:
    opened()
    (shard,) = shards(tmp_path)
    name = "pixels.bin" if "pixels" in damage else "index.npz"
    data = (shard / name).read_bytes()
    if damage.startswith("no"):
        (shard / name).unlink()
    elif damage == "wrong index":
        np.savez(shard / name, other=np.zeros(3))
    else:
        (shard / name).write_bytes(b"" if damage.startswith("empty") else data[:-10])
    cache = opened()
    assert len(cache) == 7
    assert len(shards(tmp_path)) == 1
    assert not shard.exists()
    np.testing.assert_array_equal(cache.image(3), read_resized(folder / "3.png", SIDE)[0])


# --- disk and places --------------------------------------------------------------------------------


def test_too_little_room(folder: Path, tmp_path: Path, opened, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 0, 20_000))
    with pytest.raises(FineSightError) as caught:
        opened(side=256)
    assert str(caught.value) == (
        f"decoding 7 images needs about 2.1 MB but the disk of {tmp_path / 'cache' / 'v1-side256'} "
        "has 0.0 MB free; make room or choose another folder with --cache-dir"
    )
    monkeypatch.undo()
    opened(side=256)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 0, 0))
    assert len(opened(side=256)) == 7  # nothing to decode needs no room


def test_a_disk_that_fills_up_meanwhile(tmp_path: Path, opened) -> None:
    """A limit on the size of files stands for the disk: the error is clear and no half shard stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(FineSightError, match="cannot be used: file too large; choose another folder with"):
            opened()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert shards(tmp_path) == []
    assert len(opened()) == 7


def test_a_cache_folder_that_cannot_be_written(folder: Path, tmp_path: Path, opened, no_access) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(FineSightError, match="cannot be used: not a directory; choose another folder with --cache-dir"):
        opened()
    (tmp_path / "cache").unlink()
    (tmp_path / "cache").mkdir()
    with (
        no_access(tmp_path / "cache"),
        pytest.raises(FineSightError, match="cannot be used: permission denied; choose another folder"),
    ):
        opened()


def test_default_cache_dir(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("FINESIGHT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == Path("/home/me/.cache/finesight")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/finesight")
    monkeypatch.setenv("FINESIGHT_CACHE", "~/own")
    assert default_cache_dir() == Path("/home/me/own")
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "cache"))
    assert len(open_cache(open_source(folder), SIDE)) == 7
    assert stored(tmp_path) == 7
    assert capfd.readouterr().out == ""  # progress goes to stderr


# --- several processes ------------------------------------------------------------------------------

BUILD = """
import sys, time
from pathlib import Path
from finesight.data.geometry import Scale
from finesight.data.sources import open_source
from finesight.data.store import add_images, image_key, read_entries
folder, cache, side, slow_file, go_on = sys.argv[1:]
scale = Scale(int(side))
def slow_disk(event, arguments):
    while event == "open" and str(arguments[0]).endswith(slow_file) and not Path(go_on).exists():
        time.sleep(0.01)
files = [f"{folder}/{path}" for path in open_source(folder).paths]
sys.addaudithook(slow_disk)
print("ready", flush=True)
sys.stdin.readline()
add_images(Path(cache), [(image_key(f, scale), f, 0) for f in files], scale, workers=1, shard_images=16)
print(len(read_entries(Path(cache)).keys), flush=True)
"""


def start(folder: Path, tmp_path: Path, go_on: Path, err: Path) -> subprocess.Popen:
    """A process that imports everything, waits for a line, and at its image 40 until a file is there."""
    arguments = [str(folder), str(tmp_path / "cache" / f"v1-side{SIDE}"), str(SIDE), "040.png", str(go_on)]
    pipe = subprocess.PIPE
    with err.open("w") as stream:
        return subprocess.Popen(
            [sys.executable, "-c", BUILD, *arguments], stdin=pipe, stdout=pipe, stderr=stream, text=True
        )


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def go(*processes: subprocess.Popen) -> None:
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


@pytest.fixture
def hundred(tmp_path: Path, picture) -> Path:
    first = picture("many/000.png", (60, 50))
    for i in range(1, 100):
        os.link(first, first.with_name(f"{i:03}.png"))
    return first.parent


def check_all(folder: Path, opened, tmp_path: Path) -> None:
    """All hundred are there, each decoded once, and nothing else."""
    assert stored(tmp_path) == 100
    cache = opened(open_source(folder))
    expected = read_resized(folder / "000.png", SIDE)[0]
    assert all(np.array_equal(cache.image(i), expected) for i in range(100))
    assert stored(tmp_path) == 100
    assert not list((tmp_path / "cache").rglob(".*"))


@pytest.mark.slow
def test_killed_while_building(hundred: Path, tmp_path: Path, opened) -> None:
    """kill -9 in the third shard: two are kept, the half one is never seen, the next build is whole."""
    side_folder = tmp_path / "cache" / f"v1-side{SIDE}"
    first = start(hundred, tmp_path, tmp_path / "never", tmp_path / "first.txt")
    again = start(hundred, tmp_path, hundred, tmp_path / "again.txt")
    go(first)
    wait_for(lambda: first.poll() is not None or (side_folder.is_dir() and len(shards(tmp_path)) == 3))
    assert first.poll() is None, (tmp_path / "first.txt").read_text()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    finished = {p: p.stat().st_mtime_ns for p in shards(tmp_path) if not p.name.startswith(".")}
    assert len(finished) == 2
    known = store.read_entries(side_folder)
    assert sorted(known.shards) == sorted(finished)
    assert len(known.keys) == 32

    go(again)
    out, _ = again.communicate(timeout=120)
    assert out == "100\n", (tmp_path / "again.txt").read_text()
    assert {p: p.stat().st_mtime_ns for p in finished} == finished  # only the rest was decoded
    check_all(hundred, opened, tmp_path)


@pytest.mark.slow
def test_two_processes_at_once(hundred: Path, tmp_path: Path, opened) -> None:
    """One builds, the other waits; both see everything and nothing is decoded twice."""
    errors, go_on = [tmp_path / f"{n}.txt" for n in range(2)], tmp_path / "go-on"
    both = [start(hundred, tmp_path, go_on, err) for err in errors]
    go(*both)
    wait_for(lambda: any("waiting for it" in err.read_text() for err in errors))
    go_on.touch()
    results = [process.communicate(timeout=120)[0] for process in both]
    said = [err.read_text() for err in errors]
    assert results == ["100\n"] * 2, said
    assert sorted("waiting for it" in one for one in said) == [False, True]
    check_all(hundred, opened, tmp_path)


def test_flipped_pixels_are_noticed_and_decoded_again(birds: Path, tmp_path: Path) -> None:
    whole = open_cache(open_source(birds), 40, cache_dir=tmp_path, progress=False)
    expected = [whole.image(i).copy() for i in range(len(whole))]
    (pixels,) = tmp_path.rglob("pixels.bin")
    content = bytearray(pixels.read_bytes())
    for place in (5, len(content) // 2):
        content[place] ^= 0x80
    pixels.write_bytes(content)
    damaged = open_cache(open_source(birds), 40, cache_dir=tmp_path, progress=False)
    for i, image in enumerate(expected):
        for _ in range(2):
            np.testing.assert_array_equal(damaged.image(i), image)
    again = open_cache(open_source(birds), 40, cache_dir=tmp_path, progress=False)  # from files of its own
    (pixels,) = tmp_path.rglob("pixels.bin")
    assert pixels.read_bytes() != bytes(content)
    np.testing.assert_array_equal(again.image(0), expected[0])


def test_flipped_pixels_of_an_image_that_is_gone(birds: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(birds / "train", tmp_path / "images"))
    open_cache(open_source(root), 40, cache_dir=tmp_path / "cache", progress=False)
    (pixels,) = (tmp_path / "cache").rglob("pixels.bin")
    pixels.write_bytes(bytes(pixels.stat().st_size))
    cache = open_cache(open_source(root), 40, cache_dir=tmp_path / "cache", progress=False)
    cache.source.file(0).unlink()
    with pytest.raises(FineSightError, match=r"damaged and .* cannot be read"):
        cache.image(0)


def test_a_cache_of_an_earlier_version_has_no_checksums(birds: Path, tmp_path: Path) -> None:
    whole = open_cache(open_source(birds), 40, cache_dir=tmp_path, progress=False)
    (index,) = tmp_path.rglob("index.npz")
    with np.load(index) as file:
        rest = {name: file[name] for name in file.files if name != "sums"}
    np.savez(index, **rest)
    opened = open_cache(open_source(birds), 40, cache_dir=tmp_path, progress=False)
    np.testing.assert_array_equal(opened.image(3), whole.image(3))
