"""Features extracted from the cache: in the order asked for, whatever the pieces; masks where the encoder looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import finesight
from close import same_rows
from finesight.api import frozen
from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder, EncoderOutput
from finesight.features.extract import extract, object_masks
from finesight.features.wide import WIDE, WideRows, concatenate, row_lengths
from finesight.nn.backbone_config import BackboneConfig


@pytest.fixture(scope="module")
def encoder(lcr: Path) -> Encoder:
    return finesight.load(lcr)


@pytest.fixture(scope="module")
def cache(birds: Path) -> DecodedCache:
    return open_cache(open_source(birds), cache_side(32), progress=False)


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_batches_do_not_matter(encoder: Encoder, cache: DecodedCache, batch_size: int) -> None:
    order = np.random.default_rng(0).permutation(len(cache))[:13]
    files = [cache.source.file(int(i)) for i in order]
    found = extract(encoder, cache, order, ("rationale", "average"), progress=False, batch_size=batch_size)
    for name in ("rationale", "average"):
        assert same_rows(found.features[name], encoder.embed(files, name))
    assert same_rows(found.attention, encoder.attend(files))
    assert found.attention.shape == (13, 4, 4)
    assert np.array_equal(found.masks["rationale"], found.attention)
    alone = extract(encoder.with_pooling("energy"), cache, order, ("energy",), progress=False)
    assert same_rows(found.masks["energy"], alone.masks["energy"])
    assert same_rows(found.only("average").attention, alone.attention)
    assert found.only("average").features.keys() == {"average"}
    assert found.only("rationale").masks.keys() == {"rationale"}


@pytest.mark.parametrize("batch_size", [3, 64])
def test_an_oracle_sees_the_object_of_its_own_image(encoder: Encoder, cache: DecodedCache, batch_size: int) -> None:
    order = np.random.default_rng(1).permutation(len(cache))[:8]
    found = extract(encoder, cache, order, ("box", "average"), progress=False, batch_size=batch_size)
    masks = [mask for mask in object_masks(cache, order, 32) if mask is not None]
    cells = np.stack(masks).reshape(8, 4, 8, 4, 8).mean(axis=(2, 4))  # (N, 32, 32) -> (N, 4, 4)
    np.testing.assert_allclose(found.masks["box"], cells, atol=1e-6)
    with torch.no_grad():
        phi = encoder.backbone(encoder.cached_views(cache, order)).double().numpy()
    expected = np.einsum("nchw,nhw->nc", phi, cells) / cells.sum((1, 2))[:, None]
    np.testing.assert_allclose(found.features["box"], expected, rtol=1e-4, atol=1e-6)
    assert found.only("box").masks.keys() == {"box"}


def test_objects_are_looked_up_for_an_oracle_only(encoder: Encoder, cache: DecodedCache, unlabeled: Path) -> None:
    plain = open_cache(open_source(unlabeled), 37, progress=False)
    assert list(object_masks(plain, np.arange(3), 32)) == [None, None, None]
    with pytest.raises(FineSightError, match=r"'box-gem'.*neither object masks nor boxes") as caught:
        extract(encoder, plain, np.arange(3), ("average", "box-gem"), progress=False)
    assert str(unlabeled) in str(caught.value)
    missing = replace(cache, source=replace(cache.source, masks=np.full(len(cache), "missing.png")))
    extract(encoder, missing, np.arange(3), ("average", "rationale"), progress=False)
    with pytest.raises(FineSightError, match=r"missing\.png"):
        extract(encoder, missing, np.arange(3), ("box",), progress=False)


def test_masks_are_cropped_as_the_encoder_crops(birds: Path, cache: DecodedCache) -> None:
    """Drawn at 40 px, kept at 37, seen at 32: the mask picture goes the same way as the picture."""
    chosen = np.arange(0, len(cache), 5)
    for i, mask in zip(chosen, object_masks(cache, chosen, 32), strict=True):
        picture = Image.open(birds / "masks" / str(cache.source.paths[i])).convert("L")
        whole = np.asarray(picture.point(lambda v: 255 * (v > 0)).resize((37, 37), Image.Resampling.BILINEAR)) >= 128
        assert mask is not None
        assert mask.shape == (32, 32)
        assert np.array_equal(mask, whole[2:34, 2:34])
        assert 0 < mask.mean() < 1


def test_the_mask_lies_on_the_view(tmp_path: Path) -> None:
    """A white square on black, with itself as its mask: view and mask show it at the same place, for any shape."""
    shapes = {"square": (37, 37), "wide": (90, 37), "tall": (37, 64), "large": (300, 200)}
    for name, (width, height) in shapes.items():
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[height // 3 : height * 2 // 3, width // 3 : width * 2 // 3] = 255
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    source = open_source(tmp_path)
    source = replace(source, masks=source.paths)
    cache = open_cache(source, 37, progress=False)
    encoder = frozen(BackboneConfig(name="test_resnet", weights="random"), 32)
    everything = np.arange(len(cache))
    views = encoder.cached_views(cache, everything)[:, 0].numpy()
    for view, mask in zip(views, object_masks(cache, everything, 32), strict=True):
        assert mask is not None
        bright = view > (view.min() + view.max()) / 2
        assert (bright != mask).mean() < 0.03


# --- features too wide for float32 ------------------------------------------------------------------------------------


def kept(values: np.ndarray) -> WideRows:
    rows = WideRows.empty(*values.shape)
    for start in range(0, len(values), 3):
        rows[start : start + 3] = values[start : start + 3]
    return rows


class Widened(Encoder):
    """An encoder whose "gem" features are others, as wide as ``widen`` makes them."""

    widen: torch.Tensor

    def encode(self, views: torch.Tensor, poolings: Sequence[str], *given: torch.Tensor | None) -> EncoderOutput:
        output = super().encode(views, ("average",), *given)
        return EncoderOutput(output.features | {"gem": output.features["average"] @ self.widen}, output.masks)


@pytest.mark.parametrize("width", [WIDE, WIDE + 1])
def test_wide_features_are_extracted_into_16_bits(encoder: Encoder, cache: DecodedCache, width: int) -> None:
    """Beside narrow ones, which stay as they are."""
    wide = Widened(encoder.config, encoder.backbone, encoder.branch)
    wide.widen = torch.randn(encoder.channels, width, generator=torch.Generator().manual_seed(0))
    order = np.random.default_rng(0).permutation(len(cache))[:13]
    found = extract(wide, cache, order, ("average", "gem"), progress=False, batch_size=5).features
    narrow = encoder.embed([cache.source.file(int(i)) for i in order], "average")
    assert np.array_equal(found["average"], narrow.numpy())
    assert [type(found[name]) for name in found] == [np.ndarray, WideRows if width > WIDE else np.ndarray]
    assert found["gem"].shape == (13, width)
    np.testing.assert_allclose(np.asarray(found["gem"]), (narrow @ wide.widen).numpy(), rtol=1e-3, atol=1e-5)


def test_rows_of_any_size_keep_eleven_bits() -> None:
    rng = np.random.default_rng(0)
    size = np.array([1e-45, 1e-38, 1e-20, 1e-6, 0, 1, 65_504, 65_520, 1e20, 3e38])[:, None]
    values = (rng.uniform(-1, 1, (10, 400)) * size).astype(np.float32)
    got = np.asarray(kept(values))
    assert got.dtype == np.float32
    assert np.isfinite(got).all()
    assert (np.abs(got.astype(float) - values) <= 2.0**-11 * np.abs(values) + 2.0**-38 * size).all()
    assert not got[4].any()
    assert np.array_equal(np.asarray(kept(got)), got), "what was kept once is kept exactly"


def test_small_numbers_beside_large_ones() -> None:
    values = np.float32([[1.0, 2.0**-27, 2.0**-28 * 1.001, 0, -3e-5]])
    np.testing.assert_allclose(np.asarray(kept(values)), values, rtol=2.0**-11)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    values = np.ones((4, 5), np.float32)
    values[1, 2] = bad
    assert np.isfinite(row_lengths(kept(values))).tolist() == [True, False, True, True]


def test_wide_rows_are_chosen_as_those_of_an_array() -> None:
    rng = np.random.default_rng(1)
    wide = kept(rng.standard_normal((9, 40)).astype(np.float32))
    array = np.asarray(wide)
    mask = np.arange(9) % 2 == 0
    for key in (slice(2, 7), np.array([8, 0, 0, 3]), mask, torch.tensor([4, 1]), torch.from_numpy(mask), slice(0, 0)):
        assert np.array_equal(np.asarray(wide[key]), array[np.asarray(key) if torch.is_tensor(key) else key])
    assert np.array_equal(np.asarray(wide[mask][1:3, 5:9]), array[mask][1:3, 5:9])
    assert np.shares_memory(wide[mask][:, 5:9].values, wide.values), "nothing is copied"
    assert np.array_equal(np.stack(list(wide)), array)
    assert np.array_equal(np.asarray(WideRows.of(array)), array)
    assert np.array_equal(np.asarray(concatenate(wide[mask], wide[2:5])), np.concatenate([array[mask], array[2:5]]))
    assert np.array_equal(concatenate(array, array), np.concatenate([array, array]))
    np.testing.assert_allclose(np.asarray(wide.times(np.arange(9.0))), array * np.arange(9)[:, None], rtol=1e-6)
    assert np.asarray(wide, dtype=np.float64).dtype == np.float64


def test_lengths_by_blocks() -> None:
    values = np.random.default_rng(2).standard_normal((9, 40)).astype(np.float32)
    whole = np.linalg.norm(values.astype(np.float64), axis=1)
    assert np.array_equal(row_lengths(values, block_bytes=1000), whole)
    np.testing.assert_allclose(row_lengths(kept(values), block_bytes=1000), whole, rtol=1e-3)
    assert row_lengths(values[:0]).shape == (0,)
