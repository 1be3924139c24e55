"""The detector against plain loops, exact distances and real birds; its store; masks from files."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from finesight.data.cache import DecodedCache, open_cache
from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.paper.objects import saliency
from finesight.paper.objects.saliency import SIDE, detect_objects, read_masks, saliency_maps
from real_birds import cub_root
from reference import saliency as reference

# --- the cues against plain loops ---------------------------------------------------------------------


def random_images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("red", "green", "blue", "lab"),
    [
        (1, 1, 1, (100, 0, 0)),
        (0, 0, 0, (0, 0, 0)),
        (1, 0, 0, (53.24, 80.09, 67.20)),
        (0, 1, 0, (87.73, -86.18, 83.18)),
        (0, 0, 1, (32.30, 79.19, -107.86)),
        (0.5, 0.5, 0.5, (53.39, 0, 0)),
        (0.01, 0.01, 0.01, (0.70, 0, 0)),
    ],
)
def test_lab_of_known_colors(red: float, green: float, blue: float, lab: tuple[float, ...]) -> None:
    found = saliency.rgb_to_lab(torch.tensor([red, green, blue]).view(1, 3, 1, 1)).flatten()
    torch.testing.assert_close(found, torch.tensor(lab, dtype=torch.float32), atol=0.02, rtol=0)


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("size", [(7, 9), (9, 7), (1, 5), (2, 2), (3, 3), (12, 12)])
def test_sweeps_against_the_loop(size: tuple[int, int], rounds: int) -> None:
    images = random_images(2, 3, *size, seed=rounds)
    found = saliency.barrier_distances(images, rounds)
    assert found.shape == images.shape
    for n, c in np.ndindex(2, 3):
        np.testing.assert_array_equal(found[n, c].numpy(), reference.swept(images[n, c].numpy(), rounds))


@pytest.mark.parametrize("seed", range(8))
def test_sweeps_are_never_below_the_exact_distance_and_seldom_above(seed: int) -> None:
    image = random_images(1, 1, 7, 8, seed=seed).mul(9).round()
    exact = reference.exact(image[0, 0].double().numpy())
    found = saliency.barrier_distances(image)[0, 0].numpy()
    assert (found >= exact).all()
    assert (found == exact).mean() > 0.8
    assert (found[[0, -1]] == 0).all()
    assert (found[:, [0, -1]] == 0).all()


def test_each_turn_of_a_winding_path_costs_a_sweep() -> None:
    """Why there are several rounds, and what they still miss: the inmost turn of a spiral."""
    image = np.full((9, 10), 6.0)
    image[1, :9] = image[1:8, 8] = image[7, 2:9] = image[3:8, 2] = image[3, 2:7] = image[3:6, 6] = 0
    channel, exact = torch.from_numpy(image).float()[None, None], reference.exact(image)
    wrong = [int((saliency.barrier_distances(channel, rounds)[0, 0].numpy() != exact).sum()) for rounds in range(1, 6)]
    assert wrong == sorted(wrong, reverse=True)
    assert wrong[0] > wrong[2] > 0
    assert wrong[-1] == 0


@pytest.mark.parametrize("size", [(7, 9), (20, 25), (3, 3)])
def test_backgroundness_against_the_loop(size: tuple[int, int]) -> None:
    lab = saliency.rgb_to_lab(random_images(3, 3, *size))
    found = saliency.backgroundness(lab)
    for image, map_ in zip(lab, found, strict=True):
        expected = reference.backgroundness(image.double().numpy(), saliency.STRIP, saliency.NOTICEABLE**2)
        np.testing.assert_allclose(map_.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("widths", [(4, 4, 4, 4), (1, 9, 2, 3), (3, 3, 0, 0), (0, 0, 5, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("gray", [0.0, 1.0])
def test_a_frame_is_replaced_by_the_edge_of_its_picture(widths: tuple[int, ...], gray: float) -> None:
    """Top, bottom, left, right; the picture begins past the line where frame and picture blend."""
    top, bottom, left, right = widths
    lab = saliency.rgb_to_lab(0.3 + 0.4 * random_images(2, 3, 64, 60))
    framed = lab.clone()
    color = saliency.rgb_to_lab(torch.full((1, 3, 1, 1), gray))[0]
    framed[1, :, :top] = framed[1, :, 64 - bottom :] = framed[1, :, :, :left] = framed[1, :, :, 60 - right :] = color
    found = saliency.remove_frame(framed)
    torch.testing.assert_close(found[0], lab[0])
    rows = np.clip(np.arange(64), top + 1 if top else 0, 62 - bottom if bottom else 63)
    columns = np.clip(np.arange(60), left + 1 if left else 0, 58 - right if right else 59)
    torch.testing.assert_close(found[1], lab[1][:, rows][:, :, columns])


@pytest.mark.parametrize("size", [(64, 64), (11, 64), (64, 11), (12, 13), (1, 1)])
def test_what_is_no_frame(size: tuple[int, int]) -> None:
    """Noise, one color, too wide a band, and a thing close to the border on a plain ground."""
    height, width = size
    images = random_images(4, 3, *size)
    images[1:] = 0.2
    images[2, :, height // 3 :] = 0.9
    images[3, :, 1 : height // 2, width // 4 : width // 2] = 0.9
    lab = saliency.rgb_to_lab(images)
    assert torch.equal(saliency.remove_frame(lab), lab)


@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_contrast_against_the_loop(scale: float) -> None:
    maps = random_images(4, 11, 13) ** torch.tensor([1.0, 3, 9, 0.1]).view(4, 1, 1) * scale
    found = saliency.stretch_contrast(maps)
    for map_, expected in zip(found, maps, strict=True):
        expected = reference.contrasted(expected.double().numpy(), saliency.SLOPE)
        np.testing.assert_allclose(map_.numpy(), expected, atol=1e-5)


# --- whole maps ---------------------------------------------------------------------------------------


def disc(radius: float, y: float = 30, x: float = 34) -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    return (rows - y) ** 2 + (columns - x) ** 2 < radius**2


@pytest.mark.parametrize("radius", [6, 8, 14, 20])
@pytest.mark.parametrize(("inside", "outside"), [(0.85, 0.35), (0.1, 0.6)])
def test_a_disc_on_a_noisy_background(radius: int, inside: float, outside: float) -> None:
    where = disc(radius)
    noise = 0.08 * torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    images = (torch.where(where, inside, outside) + noise).clamp(0, 1)
    for found in saliency_maps(images):
        assert found[where].mean() > 0.6
        assert found[~where].mean() < 0.25


@pytest.mark.parametrize("width", [1, 3, 7])
def test_a_framed_picture_is_no_object(width: int) -> None:
    where = disc(12)
    images = torch.where(where, 0.85, 0.35).expand(1, 3, 64, 64).clone()
    plain = saliency_maps(images)
    for lines in (slice(0, width), slice(64 - width, 64)):
        images[:, :, lines] = images[:, :, :, lines] = 1
    torch.testing.assert_close(saliency_maps(images), plain, atol=0.01, rtol=0)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.3, 0.7231])
@pytest.mark.parametrize("size", [(64, 64), (5, 8), (1, 1), (2, 3)])
def test_a_constant_image_has_nothing_salient(value: float, size: tuple[int, int]) -> None:
    found = saliency_maps(torch.full((2, 3, *size), value))
    assert found.shape == (2, *size)
    assert not found.any()


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (7, 9), (100, 40)])
@pytest.mark.parametrize("count", [0, 3])
def test_any_size_and_number(size: tuple[int, int], count: int) -> None:
    images = random_images(count, 3, *size)
    before = images.clone()
    found = saliency_maps(images)
    assert found.shape == (count, *size)
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    assert ((found >= 0) & (found <= 1)).all()
    assert torch.equal(images, before)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 1e-6), (0.999999, 1.0)])
def test_never_nan(low: float, high: float) -> None:
    for density in (0.001, 0.1, 0.5, 0.999):
        images = torch.where(random_images(4, 1, 64, 64) < density, high, low).expand(4, 3, 64, 64)
        assert saliency_maps(images).isfinite().all()


def test_a_map_does_not_depend_on_its_batch() -> None:
    images = random_images(saliency.CHUNK + 3, 3, 16, 16)
    images[1] = 0
    images[2, 0] = 1
    together = saliency_maps(images)
    for i in (0, 1, 2, 5, len(images) - 1):
        torch.testing.assert_close(saliency_maps(images[i : i + 1])[0], together[i], atol=1e-5, rtol=0)
    torch.testing.assert_close(saliency_maps(images.flip(0)).flip(0), together, atol=1e-5, rtol=0)


# --- the store ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, picture: Callable[..., Path]) -> Path:
    for i, size in enumerate([(40, 30), (30, 40), (64, 64), (200, 50), (10, 90)]):
        picture(f"images/{i}.png", size, seed=i)
    return tmp_path / "images"


@pytest.fixture
def opened(folder: Path, tmp_path: Path) -> Callable[..., DecodedCache]:
    def open_it(source: ImageSource | None = None, side: int = 32) -> DecodedCache:
        chosen = open_source(folder) if source is None else source
        return open_cache(chosen, side, cache_dir=tmp_path / "cache", progress=False)

    return open_it


class Counting:
    """The detector; it notes how many images each call has and fails in the call of that number."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.fails_at = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.counts.append(len(images))
        if len(self.counts) == self.fails_at:
            raise KeyboardInterrupt
        return saliency_maps(images)


@pytest.fixture
def computed() -> Counting:
    return Counting()


@pytest.fixture
def find(tmp_path: Path, opened, computed: Counting) -> Callable[..., np.ndarray]:
    """find(source or nothing): the detected maps, quiet, kept in tmp_path/cache."""

    def detect(*source: ImageSource, **options: int) -> np.ndarray:
        cache = opened(*source)
        return detect_objects(cache, cache_dir=tmp_path / "cache", progress=False, detector=computed, **options)

    return detect


def store(tmp_path: Path) -> Path:
    return tmp_path / "cache" / f"v{saliency.VERSION}-saliency{SIDE}"


def shards(tmp_path: Path) -> list[Path]:
    return sorted(store(tmp_path).glob("*.npz"))


def test_maps_of_the_cached_images(find, opened, computed: Counting) -> None:
    found = find()
    assert found.shape == (5, SIDE, SIDE)
    assert found.dtype == np.uint8
    assert computed.counts == [5]
    cache = opened()
    for i in range(5):
        square = as_square(cache.image(i)).transpose(2, 0, 1) / np.float32(255)
        expected = saliency_maps(torch.from_numpy(square)[None])[0]
        np.testing.assert_allclose(found[i], expected.numpy() * 255, atol=0.51)


def test_only_what_is_new_is_computed(find, folder: Path, picture, computed: Counting, tmp_path: Path) -> None:
    chosen = find(open_source(folder).select([3, 0, 3, 3]))
    assert computed.counts == [2], "an image that is listed twice is computed once"
    before = find()
    np.testing.assert_array_equal(find(), before)
    np.testing.assert_array_equal(before[[3, 0, 3, 3]], chosen)
    assert computed.counts == [2, 3]
    (store(tmp_path) / "lock").unlink()
    np.testing.assert_array_equal(find(open_source(folder).select([4, 1, 4])), before[[4, 1, 4]])
    assert not (store(tmp_path) / "lock").exists(), "reading needs no lock"
    picture("images/00.png", seed=50)
    picture("images/9.png", seed=51)
    grown = find()
    assert computed.counts == [2, 3, 2]
    assert len(shards(tmp_path)) == 3
    np.testing.assert_array_equal(np.delete(grown, [1, 6], axis=0), before)
    os.utime(folder / "2.png")  # changed, as far as anybody can tell
    np.testing.assert_array_equal(find(), grown)
    assert computed.counts == [2, 3, 2, 1]
    (folder / "0.png").unlink()
    np.testing.assert_array_equal(find(), grown[1:])
    assert computed.counts == [2, 3, 2, 1]


def test_many_shards_and_an_interruption_that_keeps_what_was_done(find, computed: Counting, tmp_path: Path) -> None:
    computed.fails_at = 2
    with pytest.raises(KeyboardInterrupt):
        find(shard=2)
    assert len(shards(tmp_path)) == 1
    (store(tmp_path) / "abc.tmp").write_bytes(b"of a process that was killed")
    pieces = find(shard=2)
    assert computed.counts == [2, 2, 2, 1]
    assert sorted(p.suffix for p in store(tmp_path).iterdir()) == ["", ".npz", ".npz", ".npz"]
    shutil.rmtree(tmp_path / "cache")
    np.testing.assert_allclose(find().astype(int), pieces, atol=1)


def one_bit_changed(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def one_array(file: Path, maps: np.ndarray) -> None:
    with open(file, "wb") as stream:
        np.save(stream, maps)


DAMAGE: dict[str, Callable[[Path, np.ndarray, np.ndarray], object]] = {
    "cut": lambda file, keys, maps: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "empty": lambda file, keys, maps: file.write_bytes(b""),
    "text": lambda file, keys, maps: file.write_text("no archive at all"),
    "bit": lambda file, keys, maps: file.write_bytes(one_bit_changed(file.read_bytes())),
    "other names": lambda file, keys, maps: np.savez(file, other=keys),
    "other size": lambda file, keys, maps: np.savez(file, keys=keys, maps=maps[:, :5]),
    "other type": lambda file, keys, maps: np.savez(file, keys=keys, maps=maps.astype(np.float32)),
    "too few": lambda file, keys, maps: np.savez(file, keys=keys, maps=maps[1:]),
    "one array": lambda file, keys, maps: one_array(file, maps),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_shard_is_computed_again(find, picture, computed: Counting, tmp_path: Path, how: str) -> None:
    find()
    (broken,) = shards(tmp_path)
    picture("images/9.png", seed=51)
    before = find()
    with np.load(broken) as shard:
        keys, maps = shard["keys"], shard["maps"]
    DAMAGE[how](broken, keys, maps)
    np.testing.assert_array_equal(find(), before)
    np.testing.assert_array_equal(find(), before)
    assert computed.counts == [5, 1, 5]
    assert not broken.exists()
    assert len(shards(tmp_path)) == 2


def test_a_folder_that_cannot_be_used(opened, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(FineSightError, match="cannot be used: not a directory; choose another folder with --cache-dir"):
        detect_objects(opened(), cache_dir=tmp_path / "file", progress=False)


def test_two_at_once(opened, find, tmp_path: Path, capsys) -> None:
    """One computes, the other waits for it; both have everything and nothing is computed twice."""
    cache, counts, both, said = opened(), [], threading.Barrier(2), []

    def slow(images: Tensor) -> Tensor:
        """Compute nothing before the other waits."""
        counts.append(len(images))
        deadline = time.monotonic() + 60
        while "waiting for it" not in "".join(said) and time.monotonic() < deadline:
            said.append(capsys.readouterr().err)
            time.sleep(0.01)
        return saliency_maps(images)

    def detect(_: int) -> np.ndarray:
        both.wait()
        return detect_objects(cache, cache_dir=tmp_path / "cache", detector=slow, shard=2)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(detect, range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(find(), first)
    assert counts == [2, 2, 1]
    assert "".join([*said, capsys.readouterr().err]).count("waiting for it") == 1
    assert len(shards(tmp_path)) == 3


# --- masks from files ---------------------------------------------------------------------------------


def blob(width: int, height: int, zoom: int = 1) -> np.ndarray:
    """A disc off the middle with a soft edge, 0 to 255."""
    y, x = (np.mgrid[: height * zoom, : width * zoom] + 0.5) / zoom
    distance = np.hypot(x - width / 2 - 6, y - height / 2 + 6)
    return np.clip(255 * (20 - distance) / 8, 0, 255).astype(np.uint8)


def save(file: Path, values: np.ndarray, mode: str | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    (image if mode is None else image.convert(mode)).save(file)
    return file


@pytest.fixture
def birds_like_cub(tmp_path: Path) -> ImageSource:
    """images/<class>/<name>.jpg: one plain, one standing, two panoramas."""
    names, sizes = ("001.Owl/a.jpg", "001.Owl/b.c.jpg", "002.Wren/d.jpg", "002.Wren/e.jpg"), SIZES
    for name, size in zip(names, sizes, strict=True):
        save(tmp_path / "images" / name, blob(*size), "RGB")
    return ImageSource(tmp_path, "folder", np.array([f"images/{name}" for name in names]))


SIZES = ((120, 90), (60, 100), (400, 60), (50, 300))


def write_masks(folder: Path, source: ImageSource, suffix: str = ".png", zoom: int = 1, strip: str = "images/") -> None:
    for path, size in zip(source.paths.tolist(), SIZES, strict=True):
        save((folder / path.removeprefix(strip)).with_suffix(suffix), blob(*size, zoom))


def as_square(pixels: np.ndarray, resample: Image.Resampling = Image.Resampling.BILINEAR) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize((SIDE, SIDE), resample))


@pytest.mark.parametrize("strip", ["images/", ""])
@pytest.mark.parametrize(("suffix", "zoom"), [(".png", 1), (".jpg", 1), (".PNG", 2), (".bmp", 1), (".tif", 3)])
def test_a_folder_of_masks(birds_like_cub, opened, tmp_path: Path, strip: str, suffix: str, zoom: int) -> None:
    """Each mask shows what its image shows, soft edge and crop of the panoramas included."""
    write_masks(tmp_path / "masks", birds_like_cub, suffix, zoom, strip)
    cache = opened(birds_like_cub)
    found = read_masks(cache, tmp_path / "masks")
    assert found.shape == (4, SIDE, SIDE)
    assert found.dtype == np.uint8
    images = np.stack([as_square(cache.image(i)).mean(2) for i in range(len(cache))])  # gray, as their masks
    difference = np.abs(found.astype(float) - images)
    assert difference.mean() < 2.5
    assert difference.max() < 40
    assert ((found > 60) & (found < 200)).mean() > 0.01
    assert found.max() > 240


def test_a_flat_folder(folder: Path, opened, tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / "masks" / f"{i}.png", np.full((8, 8), 50 * i + 3, np.uint8))
    found = read_masks(opened(), tmp_path / "masks")
    assert [np.unique(m).tolist() for m in found] == [[50 * i + 3] for i in range(5)]


def test_images_elsewhere(folder: Path, opened, tmp_path: Path) -> None:
    """A list may name images by their whole path: their masks lie below it, without the slash."""
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/list.txt").write_text(f"{folder}/0.png\n../images/1.png\n")
    source = open_source(tmp_path / "lists/list.txt")
    for i in range(2):
        save(tmp_path / "masks" / str(folder).lstrip("/") / f"{i}.png", np.full((8, 8), 100 + i, np.uint8))
    found = read_masks(opened(source), tmp_path / "masks")
    assert [np.unique(m).tolist() for m in found] == [[100], [101]]


def left_half() -> np.ndarray:
    return np.repeat(np.array([[1, 0]], np.uint8), 32, axis=1).repeat(48, axis=0)  # (48, 64)


def palette(values: np.ndarray) -> Image.Image:
    image = Image.fromarray(values).convert("P")
    image.putdata(values.flatten().tolist())
    image.putpalette([255, 255, 255, 10, 0, 0])  # index 0 may well be white
    return image


@pytest.mark.parametrize(
    ("kind", "alpha"),
    [("labels", 255), ("bits", 255), ("palette", 255), ("soft", 51), ("la", 51), ("rgba", 51), ("rgb", 51), ("16", 51)],
)
def test_kinds_of_mask_files(opened, tmp_path: Path, picture, kind: str, alpha: int) -> None:
    picture("one/a.png", (64, 48))
    half = left_half()
    see_through = np.zeros_like(half)  # alpha is of no meaning in a mask
    images = {
        "labels": Image.fromarray(half),
        "bits": Image.fromarray(half * 255).convert("1"),
        "palette": palette(half),
        "soft": Image.fromarray(half * 51),
        "la": Image.merge("LA", [Image.fromarray(half * 51), Image.fromarray(see_through)]),
        "rgb": Image.fromarray(half * 51).convert("RGB"),
        "rgba": Image.merge("RGBA", [Image.fromarray(b) for b in (half * 51, half * 51, half * 51, see_through)]),
        "16": Image.fromarray(half.astype(np.uint16) * 51 * 257),
    }
    (tmp_path / "masks").mkdir()
    images[kind].save(tmp_path / "masks/a.png")
    (found,) = read_masks(opened(open_source(tmp_path / "one")), tmp_path / "masks")
    assert (found[:, : SIDE // 2 - 1] == alpha).all()
    assert (found[:, SIDE // 2 + 1 :] == 0).all()


def test_the_sources_own_masks(birds: Path, opened) -> None:
    cache = opened(open_source(birds))
    found = read_masks(cache, None)
    assert found.shape == (len(cache), SIDE, SIDE)
    for i in range(0, len(cache), 7):
        mask = as_square(cache.mask(i), Image.Resampling.NEAREST)
        assert (mask & (found[i] > 127)).sum() / (mask | (found[i] > 127)).sum() > 0.85
    same = read_masks(cache, birds / "masks")  # the drawn masks also mirror their images
    np.testing.assert_array_equal(same, found)


def test_no_masks_of_its_own(folder: Path, opened) -> None:
    expected = r"has no object masks of its own \(boxes are none\); name a folder of masks that mirrors its images"
    with pytest.raises(FineSightError, match=expected):
        read_masks(opened(), None)
    paths = open_source(folder).paths
    with pytest.raises(FineSightError, match=expected):
        read_masks(opened(ImageSource(folder, "folder", paths, boxes=np.ones((5, 4), np.float32))), None)


def test_missing_own_masks_are_counted(folder: Path, opened, tmp_path: Path) -> None:
    save(folder / "there.png", left_half())
    paths = open_source(folder).paths[:4]
    masks = np.array(["there.png", "gone/x.png", "there.png", "gone/y.png"])
    cache = opened(ImageSource(folder, "folder", paths, masks=masks))
    with pytest.raises(FineSightError, match=r"lacks 2 of its 4 object masks, the first being .*gone/x.png; copy"):
        read_masks(cache, None)


def test_missing_masks_of_a_folder_are_counted(birds_like_cub, opened, tmp_path: Path) -> None:
    write_masks(tmp_path / "masks", birds_like_cub)
    (tmp_path / "masks/002.Wren/d.png").rename(tmp_path / "masks/002.Wren/d.txt")
    (tmp_path / "masks/002.Wren/e.png").unlink()
    with pytest.raises(FineSightError) as caught:
        read_masks(opened(birds_like_cub), tmp_path / "masks")
    assert str(caught.value) == (
        f"{tmp_path / 'masks'} lacks the masks of 2 of 4 images, the first being that of images/002.Wren/d.jpg; a mask "
        "has the path of its image, with or without its first folder, and any suffix of .bmp .gif .jpe .jpeg .jpg .png "
        ".tif .tiff .webp"
    )


def test_a_missing_or_forbidden_folder_of_masks(birds_like_cub, opened, tmp_path: Path, monkeypatch) -> None:
    cache = opened(birds_like_cub)
    with pytest.raises(FineSightError, match="masks is not a folder; name the folder that holds the masks"):
        read_masks(cache, tmp_path / "masks")
    write_masks(tmp_path / "masks", birds_like_cub)

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(FineSightError, match=r"001.Owl cannot be read: permission denied; check its permissions"):
        read_masks(cache, tmp_path / "masks")


def test_the_images_are_not_their_masks(birds_like_cub, opened, tmp_path: Path) -> None:
    cache = opened(birds_like_cub)
    for place in (tmp_path, tmp_path / "images"):
        with pytest.raises(FineSightError, match=r"images/001.Owl/a.jpg is an image, not its mask"):
            read_masks(cache, place)


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n and then nothing of use"])
def test_a_damaged_mask_is_named(birds_like_cub, opened, tmp_path: Path, content: bytes) -> None:
    write_masks(tmp_path / "masks", birds_like_cub)
    (tmp_path / "masks/001.Owl/b.c.png").write_bytes(content)
    with pytest.raises(
        FineSightError, match=r"object mask .*001.Owl/b.c.png cannot be used: .*(damaged|empty).*; replace it"
    ):
        read_masks(opened(birds_like_cub), tmp_path / "masks")


# --- real and drawn birds -----------------------------------------------------------------------------


def object_squares(cache: DecodedCache) -> np.ndarray:
    """(N, SIDE, SIDE): the annotated mask or box, where the detector is to be right."""
    return np.stack([as_square(cache.mask(i), Image.Resampling.NEAREST) for i in range(len(cache))])


def ratio_and_auc(maps: np.ndarray, objects: np.ndarray) -> tuple[float, float]:
    """Mean inside over mean outside, and the mean AUC of object against the rest, of images that have both."""
    pairs = [(m / 255, o) for m, o in zip(maps, objects, strict=True) if 0 < o.mean() < 1]
    inside, outside = np.mean([m[o].mean() for m, o in pairs]), np.mean([m[~o].mean() for m, o in pairs])
    return float(inside / outside), float(np.mean([reference.auc(m, o, ~o) for m, o in pairs]))


def part_squares(cache: DecodedCache, i: int) -> np.ndarray:
    """(SIDE, SIDE): true at the visible parts of the bird."""
    assert cache.source.parts is not None
    parts = cache.source.parts[i]
    at = cache.geometry(i).points(parts[parts[:, 2] > 0, :2]) / cache.sizes[i][::-1] * SIDE
    columns, rows = np.clip(at.astype(int), 0, SIDE - 1).T
    result = np.zeros((SIDE, SIDE), bool)
    result[rows, columns] = True
    return result


@pytest.mark.slow
def test_real_birds(tmp_path: Path) -> None:
    """Boxes hold much background, and a blob in the middle does well on them: parts are the sharper test."""
    source = open_source(cub_root())
    cache = open_cache(source.select(np.arange(0, len(source), 58)[:200]), SIDE, cache_dir=tmp_path, progress=False)
    maps, boxes = detect_objects(cache, cache_dir=tmp_path, progress=False), object_squares(cache)
    ratio, auc = ratio_and_auc(maps, boxes)
    chosen = [i for i in range(len(cache)) if 0 < boxes[i].mean() < 1]
    middle = np.exp(-0.5 * (((np.arange(SIDE) + 0.5) / SIDE - 0.5) / saliency.CENTER_SIGMA) ** 2)
    middle = middle[:, None] * middle
    parts, blob_parts = (
        float(np.mean([reference.auc(of(i), part_squares(cache, i), ~boxes[i]) for i in chosen]))
        for of in (lambda i: maps[i], lambda i: middle)
    )
    print(f"\nCUB: ratio {ratio:.2f}, AUC of boxes {auc:.3f}, of parts {parts:.3f}; a blob's {blob_parts:.3f}")
    assert ratio > 4
    assert auc > 0.85
    assert parts > 0.955
    assert parts > blob_parts + 0.01
    assert 0.1 < maps.mean() / 255 < 0.4


@pytest.mark.slow
def test_drawn_birds(tmp_path: Path) -> None:
    """They are drawn to hide among leaves in their own colors, so less is asked."""
    make_lookalikes(tmp_path / "drawn", LookalikesConfig(species=10, train_per_species=3, test_per_species=3))
    cache = open_cache(open_source(tmp_path / "drawn"), 74, cache_dir=tmp_path, progress=False)
    ratio, auc = ratio_and_auc(detect_objects(cache, cache_dir=tmp_path, progress=False), object_squares(cache))
    print(f"\ndrawn: ratio {ratio:.2f}, AUC {auc:.3f}")
    assert ratio > 2.5
    assert auc > 0.83
