"""The map of an index: images in a plane, the same each time, like ones together."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.search.layout import lay_out
from indexes import Array, empty_index, filled_index

KINDS, IMAGES = 6, 420


def around_centers(noise: float = 0.15) -> tuple[Array, np.ndarray]:
    """Unit vectors of several kinds in a random order, and which kind each is."""
    random = np.random.default_rng(3)
    kinds = random.integers(0, KINDS, IMAGES)
    vectors = random.standard_normal((KINDS, 24))[kinds] + noise * random.standard_normal((IMAGES, 24))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), kinds


def neighbors_of_the_same_kind(places: np.ndarray, kinds: np.ndarray, count: int = 5) -> float:
    """The share of the nearest images in the plane that are of an image's own kind."""
    distances = ((places[:, None] - places[None]) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    return float((kinds[np.argsort(distances, axis=1)[:, :count]] == kinds[:, None]).mean())


def test_like_images_lie_together_in_the_same_places_each_time(tmp_path: Path) -> None:
    vectors, kinds = around_centers()
    told: list[tuple[int, int]] = []
    with closing(filled_index(tmp_path / "index", vectors)) as index:
        ids, places = lay_out(index, sample=150, tell=lambda done, total: told.append((done, total)))
        again = lay_out(index, sample=150)
        other = lay_out(index, sample=150, seed=1)
    assert sorted(ids.tolist()) == list(range(1, IMAGES + 1))
    assert places.shape == (IMAGES, 2)
    assert places.min() >= 0
    assert places.max() <= 1
    assert np.ptp(places, axis=0).max() == pytest.approx(1)  # it fills the map
    np.testing.assert_array_equal(again[1], places)
    assert not np.array_equal(other[1], places)
    own = kinds[ids - 1]
    assert neighbors_of_the_same_kind(places, own) > 0.97  # most are placed by their neighbors, not by t-SNE
    assert neighbors_of_the_same_kind(np.random.default_rng(0).permutation(places), own) < 0.4  # the check can fail
    assert told[-1] == (IMAGES, IMAGES)


@pytest.mark.parametrize("images", [1, 2, 4, 6])
def test_few_images(tmp_path: Path, images: int) -> None:
    with closing(filled_index(tmp_path / "index", around_centers()[0][:images])) as index:
        ids, places = lay_out(index)
    assert len(ids) == images
    assert ((places >= 0) & (places <= 1)).all()


def test_copies_only(tmp_path: Path) -> None:
    with closing(filled_index(tmp_path / "index", np.repeat(around_centers()[0][:1], 12, axis=0))) as index:
        _, places = lay_out(index)
    assert np.isfinite(places).all()
    assert ((places >= 0) & (places <= 1)).all()


def test_an_empty_index(tmp_path: Path) -> None:
    with closing(empty_index(tmp_path / "index")) as index, pytest.raises(FineSightError, match="nothing to lay out"):
        lay_out(index)
