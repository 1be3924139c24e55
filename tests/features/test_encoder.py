"""What a run leaves behind: features of an image are its own, however it is given, and loading runs no one's code."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import finesight
from close import same_rows
from finesight.api import frozen
from finesight.data.cache import cache_side, open_cache
from finesight.data.geometry import read_resized
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.pooling import attention_mask, energy_map
from finesight.nn.poolings import offered_poolings
from finesight.training.config import RuntimeConfig

pytestmark = pytest.mark.slow

POOLINGS = tuple(name for name, pooling in offered_poolings().items() if not pooling.needs_class_token)
ORACLES = ("box", "box-gem")


@pytest.fixture(scope="module")
def encoder(lcr: Path) -> Encoder:
    return finesight.load(lcr)


@pytest.fixture(scope="module")
def files(birds: Path) -> list[Path]:
    return sorted(birds.glob("test/*/*.png"))[:11]


# --- an image's feature is its own ------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
def test_a_feature_does_not_depend_on_its_batch(lcr: Path, files: list[Path], exact: bool) -> None:
    """Alone, among few or many, first or last, however it is pooled: but for rounding, or bit for bit on the CPU."""
    encoder = finesight.load(lcr, exact=exact)
    same = torch.equal if exact else same_rows
    alone = {name: torch.cat([encoder.embed(file, name) for file in files]) for name in POOLINGS}
    masks = torch.cat([encoder.attend(file) for file in files])
    assert masks.shape == (11, 4, 4)
    assert len(torch.unique(masks, dim=0)) == len(files), "they differ, so that the comparisons below can fail"
    views = encoder.prepare(files)
    for size in (2, 5, 11):
        for order in (np.arange(11)[::-1].copy(), np.random.default_rng(size).permutation(11)):
            for start in range(0, 11, size):
                chosen = order[start : start + size]
                assert same(encoder.embed([files[i] for i in chosen]), alone[encoder.config.pooling][chosen])
                together = encoder.encode(views[chosen], POOLINGS)
                assert same(together.attention, masks[chosen])
                for name in POOLINGS:
                    assert together.features[name].shape == (len(chosen), encoder.feature_width(name))
                    assert same(together.features[name], alone[name][chosen]), name


def test_more_images_than_a_batch(lcr: Path, files: list[Path]) -> None:
    """70 are two batches and a ragged third, and of large views a batch has fewer: the same but for rounding."""
    fast, exact = finesight.load(lcr), finesight.load(lcr, exact=True)
    assert (fast.batch_size(32 * 32), fast.batch_size(448 * 448), exact.batch_size(32 * 32)) == (32, 4, 1)
    views = exact.prepare([files[i % 11] for i in range(70)])
    many, one = fast.encode(views, POOLINGS), exact.encode(views, POOLINGS)
    assert same_rows(many.attention, one.attention)
    assert all(same_rows(many.features[name], one.features[name]) for name in POOLINGS)
    large = torch.randn(7, 3, 320, 448, generator=torch.Generator().manual_seed(0))
    assert same_rows(fast.embed(large), exact.embed(large))
    assert torch.equal(fast.with_pooling("gem").embed(views), many.features["gem"])
    assert torch.equal(exact.with_pooling("gem").embed(views), one.features["gem"])
    assert not same_rows(many.features["gem"], many.features["average"])


def test_a_network_that_goes_on_training_is_followed(lcr: Path, files: list[Path]) -> None:
    """What is kept of a network to make it faster is made anew when its weights change."""
    encoder, exact = finesight.load(lcr), finesight.load(lcr, exact=True)
    before = encoder.embed(files)
    for one in (encoder, exact):
        with torch.no_grad():
            for parameter in one.backbone.parameters():
                parameter.mul_(1.1)
            for buffer in one.backbone.buffers():
                buffer.mul_(2)
    assert same_rows(encoder.embed(files), exact.embed(files))
    assert not same_rows(encoder.embed(files), before)


def test_a_duplicate_and_a_strange_neighbor_change_nothing(encoder: Encoder, files: list[Path]) -> None:
    alone = encoder.embed(files[0])
    black, white = Image.new("RGB", (40, 40)), Image.new("RGB", (300, 33), "white")
    for batch in ([files[0]] * 5, [black, files[0]], [white, files[0], black]):
        among = encoder.embed(batch)
        assert same_rows(among[batch.index(files[0])][None], alone)


# --- however it is given ----------------------------------------------------------------------------------------------


def test_path_string_picture_and_tensor(encoder: Encoder, files: list[Path]) -> None:
    expected = encoder.embed(files)
    assert torch.equal(encoder.embed([str(file) for file in files]), expected)
    pictures = [Image.open(file) for file in files]
    assert torch.equal(encoder.embed(pictures), expected)
    views = encoder.prepare(files)
    assert views.shape == (11, 3, 32, 32)
    assert torch.equal(encoder.embed(views), expected)
    assert torch.equal(encoder.attend(views), encoder.attend(files))
    for single in (files[3], str(files[3]), Image.open(files[3]), views[3:4]):
        assert same_rows(encoder.embed(single), expected[3:4])
        assert encoder.attend(single).shape == (1, 4, 4)
    assert expected.dtype == torch.float32
    assert not expected.requires_grad


def test_a_path_gives_the_cached_pixels_and_the_evaluated_feature(
    encoder: Encoder, picture: Callable[..., Path], tmp_path: Path
) -> None:
    """Also where the decoder takes short cuts: large JPEGs, panoramas, tiny pictures."""
    sizes = {"small.png": (20, 31), "large.jpg": (900, 700), "wide.jpg": (640, 50), "tall.webp": (60, 400)}
    for seed, (name, size) in enumerate(sizes.items()):
        picture(f"pictures/{name}", size, seed)
    side = cache_side(32)
    cache = open_cache(open_source(tmp_path / "pictures"), side, progress=False)
    own = encoder.config.pooling
    evaluated = extract(encoder, cache, np.arange(len(cache)), (own, "gem"), progress=False)
    for i in range(len(cache)):
        file = cache.source.file(i)
        pixels, _ = read_resized(file, side)
        assert np.array_equal(pixels, cache.image(i)), file.name
        assert same_rows(encoder.embed(file), evaluated.features[own][i][None]), file.name
        assert same_rows(encoder.embed(file, "gem"), evaluated.features["gem"][i][None]), file.name
        assert same_rows(encoder.attend(file), evaluated.attention[i][None]), file.name


def test_the_view_is_the_center_of_the_picture(encoder: Encoder) -> None:
    """side 37 for 32 px: a picture of just that size is cropped, not resampled."""
    pixels = np.random.default_rng(0).integers(0, 256, (37, 61, 3), dtype=np.uint8)
    view = encoder.prepare(Image.fromarray(pixels))[0].permute(1, 2, 0).double().numpy()
    top, left = round((37 - 32) / 2), round((61 - 32) / 2)
    crop = pixels[top : top + 32, left : left + 32] / 255
    np.testing.assert_allclose(view, (crop - encoder.config.mean) / np.array(encoder.config.std), atol=1e-6)


def test_what_cannot_be_embedded_is_named(encoder: Encoder, tmp_path: Path, birds: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"nothing")
    for bad, words in (
        (tmp_path / "broken.png", "broken.png cannot be used"),
        (tmp_path / "missing.png", "missing.png cannot be used"),
        ([], "no images"),
        (torch.zeros(3, 32, 32), r"\(3, 32, 32\)"),
        (torch.zeros(2, 1, 32, 32), r"\(2, 1, 32, 32\)"),
    ):
        with pytest.raises(FineSightError, match=words):
            encoder.embed(bad)


def test_attention_is_the_branch_or_the_energy(encoder: Encoder, files: list[Path]) -> None:
    views = encoder.prepare(files)
    with torch.no_grad():
        phi = torch.cat([encoder.backbone(view[None]) for view in views])
    assert encoder.branch is not None
    raw = torch.einsum("kc,nchw->nkhw", encoder.branch.filters.weight[:, :, 0, 0], phi / phi.norm(dim=1, keepdim=True))
    low, high = (getattr(raw.amax(1), name)((1, 2), keepdim=True) for name in ("amin", "amax"))
    expected = ((raw.amax(1) - low) / (high - low)) ** 2  # the variant's mask_power
    torch.testing.assert_close(encoder.attend(views), expected, atol=1e-4, rtol=1e-4)
    plain = Encoder(encoder.config.model_copy(update={"rationale": None, "pooling": "average"}), encoder.backbone)
    torch.testing.assert_close(plain.attend(views), attention_mask(energy_map(phi)))
    torch.testing.assert_close(plain.embed(views), phi.mean((2, 3)))
    for masks in (encoder.attend(views), plain.attend(views)):
        assert masks.min() >= 0
        assert masks.max() <= 1


def test_no_rationale_no_rationale_pooling(files: list[Path]) -> None:
    plain = frozen(BackboneConfig(name="test_resnet", weights="random"), 32)
    with pytest.raises(FineSightError, match="needs a trained rationale"):
        plain.embed(files, "rationale")
    with pytest.raises(FineSightError, match="needs a trained rationale"):
        frozen(BackboneConfig(name="test_resnet", weights="random"), 32, "rationale-gem")


# --- told where the object is -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def objects() -> torch.Tensor:
    found = torch.zeros(5, 32, 32, dtype=torch.bool)
    for plane, (x, y, width, height) in zip(found, ((8, 16, 8, 8), (3, 5, 13, 20), (0, 0, 32, 32)), strict=False):
        plane[y : y + height, x : x + width] = True
    return found


def test_an_oracle_weighs_a_cell_by_the_part_of_it_that_is_object(
    encoder: Encoder, files: list[Path], objects: torch.Tensor
) -> None:
    views = encoder.prepare(files[: len(objects)])
    told, untold = encoder.encode(views, (*POOLINGS, *ORACLES), objects), encoder.encode(views, POOLINGS)
    with torch.no_grad():
        np.testing.assert_allclose(
            told.features["box"][0], encoder.backbone(views[:1])[0, :, 2, 1], rtol=1e-5, atol=1e-6
        )
    for oracle, plain in (("box", "average"), ("box-gem", "gem")):
        for whole in (2, 4):  # the object is everywhere, or nowhere
            torch.testing.assert_close(told.features[oracle][whole], told.features[plain][whole])
        assert not torch.allclose(told.features[oracle][0], told.features[plain][0])
    assert untold.masks.keys() == {"energy", "rationale"}
    assert told.masks.keys() == {"energy", "rationale", "box"}
    for output in (told, untold):
        assert torch.equal(output.attention, output.masks["rationale"])
    for name in POOLINGS:
        assert torch.equal(told.features[name], untold.features[name])
    order = [3, 0, 4]
    some = encoder.encode(views[order], ORACLES, objects[order].float())
    for name in ORACLES:
        assert same_rows(some.features[name], told.features[name][order])


def test_the_mask_of_each_pooling_is_kept(encoder: Encoder, files: list[Path]) -> None:
    views = encoder.prepare(files)
    masks = encoder.encode(views, POOLINGS).masks
    assert torch.equal(masks["energy"], encoder.with_pooling("energy").attend(views))
    assert torch.equal(masks["rationale"], encoder.with_pooling("rationale").attend(views))
    assert not torch.allclose(masks["energy"], masks["rationale"])
    assert encoder.with_pooling("gem").encode(views, ("gem",)).masks.keys() == {"energy"}


def test_an_oracle_must_be_told(encoder: Encoder, files: list[Path], objects: torch.Tensor) -> None:
    for name in ORACLES:
        with pytest.raises(FineSightError, match=f"'{name}'.*where the objects are"):
            encoder.embed(files, name)
    for wrong in (objects, objects[:2, :16]):
        with pytest.raises(ValueError, match="objects"):
            encoder.encode(encoder.prepare(files[:2]), ("box",), wrong)


# --- on disk ----------------------------------------------------------------------------------------------------------


def test_saved_and_loaded_it_is_the_same(encoder: Encoder, files: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "encoder"
    for _ in range(2):  # the second time over the first
        encoder.save(folder)
        again = finesight.load(folder)
        assert again.config == encoder.config
        assert torch.equal(again.embed(files), encoder.embed(files))
        assert torch.equal(again.attend(files), encoder.attend(files))
        assert not again.training
    assert sorted(os.listdir(folder)) == ["encoder.json", "encoder.safetensors"]
    assert os.listdir(folder.parent) == ["encoder"], "no scratch folder is left"
    assert folder.stat().st_mode & 0o777 == (tmp_path / "new").stat().st_mode & 0o777, "others may read it"


def test_loading_never_unpickles(lcr: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for module, name in ((torch, "load"), (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
        monkeypatch.setattr(module, name, forbidden)
    with pytest.raises(AssertionError):
        torch.load(lcr / "checkpoints" / "step-00000010.pt")
    finesight.load(lcr).embed(files[:1])
    for file in (lcr / "encoder").iterdir():
        assert file.suffix in (".json", ".safetensors")
        assert not file.read_bytes().startswith((b"\x80", b"PK")), "a pickle, or torch's zip of one"


def test_loading_needs_nothing_but_the_folder(lcr: Path, encoder: Encoder, files: list[Path], tmp_path: Path) -> None:
    """Neither the run nor the weight file it began with."""
    moved = Path(shutil.copytree(lcr / "encoder", tmp_path / "elsewhere"))
    config = json.loads((moved / "encoder.json").read_text())
    config["backbone"]["weights"] = "/gone/weights.safetensors"
    (moved / "encoder.json").write_text(json.dumps(config))
    for path in (moved, str(lcr), lcr / "encoder"):
        assert torch.equal(finesight.load(path).embed(files), encoder.embed(files))


def without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


BRANCH = "branch.filters.weight"
DAMAGE: dict[str, Callable[[Path, dict[str, Any], Path, dict[str, Any]], object]] = {
    "cut weights": lambda config, values, weights, state: weights.write_bytes(weights.read_bytes()[:1000]),
    "no weights": lambda config, values, weights, state: weights.unlink(),
    "empty weights": lambda config, values, weights, state: weights.write_bytes(b""),
    "a pickle": lambda config, values, weights, state: torch.save(state, weights),
    "cut config": lambda config, values, weights, state: config.write_text(config.read_text()[:50]),
    "binary config": lambda config, values, weights, state: config.write_bytes(b"\xff\xfe\x00"),
    "unknown setting": lambda config, values, weights, state: config.write_text(json.dumps({**values, "later": 1})),
    "unknown pooling": lambda config, values, *_: config.write_text(json.dumps({**values, "pooling": "box"})),
    "missing setting": lambda config, values, *_: config.write_text(json.dumps(without(values, "backbone"))),
    "weight missing": lambda config, values, weights, state: save_file(without(state, BRANCH), weights),
    "other shape": lambda config, values, weights, state: save_file({**state, BRANCH: torch.zeros(2, 2)}, weights),
    "unknown weight": lambda config, values, weights, state: save_file({**state, "more": torch.zeros(1)}, weights),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_encoder_is_a_clear_error(lcr: Path, tmp_path: Path, how: str) -> None:
    folder = Path(shutil.copytree(lcr / "encoder", tmp_path / "encoder"))
    config, weights = folder / "encoder.json", folder / "encoder.safetensors"
    state = {name: value.clone() for name, value in load_file(weights).items()}  # not a map of the file to be damaged
    DAMAGE[how](config, json.loads(config.read_text()), weights, state)
    with pytest.raises(FineSightError, match=r"damaged or of another version|do not fit") as caught:
        finesight.load(folder)
    assert str(folder) in str(caught.value)


def test_a_folder_without_an_encoder_and_an_unfinished_run(lcr_copy: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FineSightError, match="holds no encoder"):
            finesight.load(folder)
    shutil.rmtree(lcr_copy / "encoder")
    with pytest.raises(FineSightError, match=r"has not finished.*finesight train"):
        finesight.load(lcr_copy)


def test_train_from_python_gives_the_encoder(birds: Path, tmp_path: Path, files: list[Path]) -> None:
    """The same settings as the ``lcr`` run, by the API: the same run, continued as by the same command."""
    settings = {
        "method": "moco-v2",
        "batch_size": 8,
        "epochs": 1,
        "backbone": {"name": "test_resnet", "weights": "random", "output_stride": 8},
        "views.resolution": 32,
    }
    runtime = RuntimeConfig(accelerator="cpu", progress=False)
    encoder = finesight.train(birds, tmp_path / "run", runtime=runtime, **settings)
    assert isinstance(encoder, Encoder)
    assert encoder.branch is None
    again = finesight.train(birds, tmp_path / "run", runtime=runtime, **settings)
    assert torch.equal(again.embed(files), encoder.embed(files))
    assert torch.equal(finesight.load(tmp_path / "run").embed(files), encoder.embed(files))
