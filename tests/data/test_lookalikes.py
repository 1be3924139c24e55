"""The drawn data set: what it promises about species, backgrounds and difficulty."""

import json

import numpy as np
import pytest
from PIL import Image, ImageFilter
from pydantic import ValidationError

from finesight.data.drawing import HABITATS, PART_NAMES, draw, make_species
from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import open_source
from finesight.errors import FineSightError

SMALL = LookalikesConfig(species=3, train_per_species=2, test_per_species=1, size=48, seed=5)


def rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


@pytest.mark.parametrize("count", [2, 20, 100, 200])
def test_any_two_species_differ_in_at_least_two_parts(count):
    kinds = make_species(count, seed=1)
    codes = [(k.crown, k.bill, k.eye_ring, k.wing_bars, k.tail) for k in kinds]
    assert len(codes) == count
    for i, first in enumerate(codes):
        for second in codes[:i]:
            assert sum(a != b for a, b in zip(first, second, strict=True)) >= 2


def test_species_depend_on_the_seed_only():
    assert make_species(30, 4) == make_species(30, 4)
    assert make_species(30, 4) != make_species(30, 5)


def test_species_differ_only_on_the_bird_and_only_in_small_parts():
    """Same randomness, other species: same pose, same background, most of the bird the same too."""
    kinds = make_species(12, 0)
    changed = []
    for seed in range(12):
        one, two = (draw(kind, 96, rng(seed)) for kind in (kinds[seed], kinds[(seed + 5) % 12]))
        union = np.maximum(np.asarray(one.mask), np.asarray(two.mask))
        near_bird = np.asarray(Image.fromarray(union).filter(ImageFilter.MaxFilter(5))) > 0
        difference = np.abs(np.asarray(one.image, int) - np.asarray(two.image, int)).max(axis=2)
        assert difference[~near_bird].max() == 0
        assert difference[near_bird].max() > 50
        changed.append((difference > 12).sum() / (union > 0).sum())
        assert one.habitat == two.habitat
    assert np.mean(changed) < 0.5


def test_habitats_do_not_depend_on_the_species(tmp_path):
    config = LookalikesConfig(species=6, train_per_species=24, test_per_species=1, size=32)
    make_lookalikes(tmp_path / "d", config)
    images = json.loads((tmp_path / "d" / "lookalikes.json").read_text())["images"]
    table = np.zeros((6, len(HABITATS)))
    for image in images:
        if image["path"].startswith("train"):
            table[int(image["path"].split("/")[1].removeprefix("species-")), image["habitat"]] += 1
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    chi2, free = ((table - expected) ** 2 / expected).sum(), (6 - 1) * (len(HABITATS) - 1)
    assert chi2 < free + 4 * np.sqrt(2 * free)  # a dependence as strong as 1 habitat per species gives thousands


def test_masks_and_parts_lie_on_the_bird():
    kind = make_species(2, 0)[0]
    on_mask, areas = [], []
    for seed in range(20):
        drawing = draw(kind, 96, rng(seed))
        mask = np.asarray(drawing.mask) > 0
        assert set(np.unique(np.asarray(drawing.mask))) <= {0, 255}
        areas.append(mask.mean())
        assert drawing.parts.shape == (len(PART_NAMES), 3)
        for x, y, visible in drawing.parts:
            assert visible == float(0 <= x < 96 and 0 <= y < 96)
            if visible:
                on_mask.append(mask[int(y), int(x)])
    assert np.mean(on_mask) > 0.97
    assert 0.1 < np.mean(areas) < 0.5
    assert np.std(areas) > 0.01  # poses and sizes vary


def test_the_folder_is_a_function_of_its_configuration(tmp_path):
    first, second = (make_lookalikes(tmp_path / name, SMALL) for name in "ab")
    assert first.paths.tolist() == second.paths.tolist()
    for i in range(len(first)):
        assert first.file(i).read_bytes() == second.file(i).read_bytes()
    other = make_lookalikes(tmp_path / "c", SMALL.model_copy(update={"seed": 6}))
    assert other.file(0).read_bytes() != first.file(0).read_bytes()


def test_the_source_has_labels_splits_masks_and_parts(tmp_path):
    make_lookalikes(tmp_path / "d", SMALL)
    source = open_source(tmp_path / "d")
    assert source.kind == "lookalikes"
    assert len(source) == 3 * 3
    assert len(source.classes) == 3
    assert len(source.split("train")) == 6
    assert len(source.split("test")) == 3
    assert source.part_names == PART_NAMES
    for i in range(len(source)):
        assert source.classes[source.labels[i]] in str(source.paths[i])
        with Image.open(source.root / str(source.masks[i])) as mask, Image.open(source.file(i)) as image:
            assert mask.size == image.size == (48, 48)


def test_drawing_again_reuses_or_refuses(tmp_path):
    source = make_lookalikes(tmp_path / "d", SMALL)
    stamp = source.file(0).stat().st_mtime_ns
    assert make_lookalikes(tmp_path / "d", SMALL).file(0).stat().st_mtime_ns == stamp
    with pytest.raises(FineSightError, match="other settings"):
        make_lookalikes(tmp_path / "d", SMALL.model_copy(update={"seed": 9}))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(FineSightError, match="not empty"):
        make_lookalikes(tmp_path / "full", SMALL)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("bad", [{"species": 1}, {"species": 1000}, {"size": 8}, {"color": 1}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValidationError):
        LookalikesConfig(**bad)
