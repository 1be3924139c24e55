import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from finesight.data.image_hash import NEAR, content_hash, count_bits, group_duplicates, near_pairs, perceptual_hash
from reference import duplicates as reference


def scene(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Blobs at several scales, within the middle gray levels: room to get brighter and darker."""
    rng = np.random.default_rng(seed)
    layers = []
    for cells in (3, 6, 12, 40):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        layers.append(np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.float64))
    return Image.fromarray((60 + 130 * np.mean(layers, axis=0) / 255).astype(np.uint8))


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream)


def hashed(image: Image.Image) -> int:
    value = perceptual_hash(image)
    assert value is not None
    return value


def test_the_hash_against_scipy() -> None:
    for seed in range(20):
        image = scene(seed)
        gray = image.convert("L").resize((32, 32), Image.Resampling.BILINEAR)
        assert hashed(image) == reference.perceptual_hash(np.asarray(gray, np.float64))


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "jpeg 90": lambda image: jpeg(image, 90),
    "jpeg 30": lambda image: jpeg(image, 30),
    "half": lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS),
    "larger": lambda image: image.resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.2),
    "gray": lambda image: image.convert("L").convert("RGB"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_picture_stays_near(change: str) -> None:
    apart = [(hashed(image) ^ hashed(CHANGES[change](image))).bit_count() for image in map(scene, range(12))]
    assert max(apart) <= NEAR


def test_other_pictures_are_far() -> None:
    values = [hashed(scene(seed)) for seed in range(60)]
    apart = [(a ^ b).bit_count() for i, a in enumerate(values) for b in values[:i]]
    assert min(apart) > 3 * NEAR
    assert 30 < np.mean(apart) < 34
    assert {value.bit_count() for value in values} == {32}


def test_mirrored_is_another_picture() -> None:
    image = scene(0)
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert (hashed(image) ^ hashed(mirrored)).bit_count() > 3 * NEAR


def test_blank_pictures_have_no_hash() -> None:
    noise = np.random.default_rng(0).integers(-1, 2, (100, 100, 3))
    assert perceptual_hash(Image.new("RGB", (100, 80), "white")) is None
    assert perceptual_hash(Image.fromarray((128 + noise).astype(np.uint8))) is None


def test_bits() -> None:
    values = np.random.default_rng(0).integers(0, 2**64, 1000, np.uint64, endpoint=False)
    values[:3] = 0, 2**64 - 1, 1 << 63
    assert count_bits(values).tolist() == [value.bit_count() for value in values.tolist()]
    assert count_bits(values[::2]).tolist() == [value.bit_count() for value in values[::2].tolist()]


def crowd(rng: np.random.Generator, centers: int, each: int, flips: int) -> list[int]:
    """Hashes around some centers, each with up to ``flips`` bits changed: many just within and just outside."""
    out = []
    for center in rng.integers(0, 2**64, centers, np.uint64, endpoint=False).tolist():
        for _ in range(each):
            changed = rng.choice(64, rng.integers(0, flips + 1), replace=False)
            out.append(center ^ sum(1 << int(bit) for bit in changed))
    return out


@pytest.mark.parametrize("distance", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("seed", range(3))
def test_no_pair_is_missed_and_none_invented(distance: int, seed: int) -> None:
    hashes = crowd(np.random.default_rng(seed), 25, 12, distance + 2)
    found = set()
    for a, b in near_pairs(np.array(hashes, np.uint64), distance):
        found |= {(min(pair), max(pair)) for pair in zip(a.tolist(), b.tolist(), strict=True)}
    expected = reference.near_pairs(hashes, distance)
    assert found == expected
    assert len(expected) > 25


@pytest.mark.parametrize("spread", ["one bit in each of four bands", "four bits in one band"])
def test_the_hardest_pairs(spread: str) -> None:
    """Four differing bits can spoil four bands; the fifth still agrees, whichever it is."""
    edges = np.linspace(0, 64, 6).astype(int)
    for spared in range(5):
        others = [int(edges[band]) for band in range(5) if band != spared]
        if spread.startswith("four"):
            others = [int(edges[spared]) + k for k in range(4)]
        pair = np.array([12345, 12345 ^ sum(1 << bit for bit in others)], np.uint64)
        assert any(len(a) for a, _ in near_pairs(pair))


@given(
    st.lists(
        st.tuples(
            st.none() | st.sampled_from([b"a", b"b", b"c"]),
            st.none() | st.integers(0, 2**64 - 1) | st.integers(0, 2**9 - 1) | st.just(2**64 - 1),
        ),
        max_size=25,
    )
)
@settings(max_examples=150, deadline=None)
def test_groups_against_walking(images: list[tuple[bytes | None, int | None]]) -> None:
    contents, hashes = [content for content, _ in images], [value for _, value in images]
    assert group_duplicates(contents, hashes).tolist() == reference.groups(contents, hashes, NEAR)


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_crowds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hashes = rng.permutation(np.array(crowd(rng, 20, 15, 5), np.uint64)).tolist()
    none = [None] * len(hashes)
    found = group_duplicates(none, hashes).tolist()
    assert found == reference.groups(none, hashes, NEAR)
    assert 20 <= len(set(found)) < 200


def test_a_chain_is_one_group() -> None:
    chain = [(1 << (4 * k)) - 1 for k in range(16)]
    assert group_duplicates([None] * 16, chain[::-1]).tolist() == [0] * 16


def test_a_hundred_thousand_hashes() -> None:
    """All pairs would be five thousand million; a thousand equal hashes must not be compared pair by pair."""
    hashes = np.random.default_rng(0).integers(0, 2**64, 100_000, np.uint64, endpoint=False).tolist()
    hashes[1000] = hashes[99_000] ^ 0b1111
    hashes[50_000:60_000] = [hashes[7]] * 10_000
    started = time.process_time()
    found = group_duplicates([None] * len(hashes), hashes)
    assert time.process_time() - started < 20
    assert found[99_000] == 1000
    assert set(found[50_000:60_000].tolist()) == {7}
    assert len(np.unique(found)) == 100_000 - 10_000 - 1


def test_content_hash(tmp_path: Path) -> None:
    for name, content in (("a", b"x" * 3_000_000), ("b", b"x" * 3_000_000), ("c", b"x" * 2_999_999 + b"y")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (content_hash(tmp_path / name) for name in "abc")
    assert a == b != c
