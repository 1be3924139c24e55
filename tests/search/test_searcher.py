"""Searching by a picture, an item or a vector: what is found, what is left out, and what is refused."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import finesight
from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder, unit
from finesight.search.build import open_or_create, update_index
from finesight.search.searcher import Searcher, UnusablePicture, diversify
from indexes import SPACES, empty_index, filled_index, small_encoder, units
from real_birds import cub_root
from reference.nearest import nearest
from reference.nearest import varied as varied_by_definition


@pytest.fixture(scope="module")
def made(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an index of the drawn birds. Not to be written to."""
    run = small_encoder(tmp_path_factory.mktemp("run"))
    engine = TorchEmbedder.load(run)
    index = open_or_create(run / "index", engine, run, birds)
    update_index(index, engine, birds)
    index.close()
    return run


@pytest.fixture(scope="module")
def searcher(made: Path) -> Searcher:
    return finesight.open_index(made)


@pytest.fixture(scope="module")
def files(birds: Path) -> list[Path]:
    return sorted(birds.glob("*/species-*/*.png"))


def test_by_picture_is_brute_force(searcher: Searcher, files: list[Path]) -> None:
    assert isinstance(searcher.embedder, TorchEmbedder)
    paths = [str(file.relative_to(searcher.index.meta.root)) for file in files]
    for by, space in ((None, "rationale-gem"), ("rationale", "rationale-gem"), ("average", "average")):
        features = searcher.embedder.encoder.embed(files, space).numpy().astype(np.float64)
        answer = searcher.by_picture(files[5], 7, by=by)
        scores, names = nearest(features[5], features, list(range(len(files))), 7)
        assert answer.space == space
        assert {hit.path for hit in answer.hits} == {paths[i] for i in names}
        np.testing.assert_allclose([hit.score for hit in answer.hits], scores, atol=1e-5)
        assert (answer.hits[0].path, answer.hits[0].score) == (paths[5], pytest.approx(1))
    assert answer.view is not None
    assert answer.embedding is not None
    assert answer.embedding.mask.shape == (4, 4)
    assert answer.embed_ms > 0


def test_however_the_picture_is_given(searcher: Searcher, files: list[Path]) -> None:
    expected = searcher.by_picture(files[3]).hits
    assert searcher.by_picture(str(files[3])).hits == expected
    assert searcher.by_picture(io.BytesIO(files[3].read_bytes())).hits == expected
    with Image.open(files[3]) as picture:
        assert searcher.by_picture(picture).hits == expected
    longer = searcher.by_vector(100 * searcher.embedder.encoder.embed(files[3])[0].numpy()).hits
    assert [hit.id for hit in longer] == [hit.id for hit in expected]


def test_an_item_that_is_left_out(searcher: Searcher, files: list[Path]) -> None:
    like = searcher.by_picture(files[4], 6).hits
    vector = searcher.index.vectors(np.array([like[0].id]), "rationale-gem")[0]
    answer = searcher.by_vector(vector, 5, left_out=like[0].id)
    assert answer.hits == like[1:]
    assert answer.view is None


def test_a_part_is_not_the_whole(searcher: Searcher, files: list[Path]) -> None:
    whole = searcher.by_picture(files[0])
    part = searcher.by_picture(files[0], box=(0.0, 0.0, 0.3, 0.3))
    assert whole.embedding is not None
    assert part.embedding is not None
    assert part.view is not None
    assert part.view.box[:2] == (0, 0)
    assert not np.allclose(whole.embedding.features["average"], part.embedding.features["average"], atol=1e-3)
    assert [hit.score for hit in part.hits] != [hit.score for hit in whole.hits]


def test_a_least_score(searcher: Searcher, files: list[Path]) -> None:
    every = searcher.by_picture(files[0], 72).hits
    assert len(every) == 72
    least = every[9].score
    assert searcher.by_picture(files[0], 72, min_score=least).hits == tuple(hit for hit in every if hit.score >= least)
    assert searcher.by_picture(files[0], min_score=1.01).hits == ()


def test_varied_answers_are_those_of_the_definition(tmp_path: Path) -> None:
    vectors = units(200, clusters=6)
    searcher = Searcher(filled_index(tmp_path / "index", vectors))
    query = unit(vectors[0] + vectors[1])
    for diversity in (0.2, 0.5, 0.9, 1.0):
        near = searcher.by_vector(query, 50).hits
        rows = np.stack([vectors[hit.id - 1] for hit in near])
        order = varied_by_definition([hit.score for hit in near], rows.astype(np.float64), 10, diversity)
        answer = searcher.by_vector(query, 10, diversity=diversity).hits
        assert answer == tuple(near[i] for i in order)
        assert diversify(np.array([hit.score for hit in near], np.float32), rows, 10, diversity).tolist() == order
    assert answer != near[:10]
    assert searcher.by_vector(query, 10, diversity=0.0).hits == near[:10]
    lone = searcher.by_vector(vectors[0], 10, diversity=0.5, min_score=0.99).hits
    assert [hit.id for hit in lone] == [1]


def test_what_is_refused(searcher: Searcher, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "words.jpg").write_text("words")
    for ask, words in (
        (lambda: searcher.by_picture(files[0], by="gem"), "cannot be searched by 'gem'.*rationale-gem, average"),
        (lambda: searcher.by_picture(files[0], k=0), "between 1 and"),
        (lambda: searcher.by_picture(files[0], diversity=1.5), "between 0 and 1"),
        (lambda: searcher.by_picture(files[0], box=(0.5, 0.5, 0.9, 0.1)), "x,y,width,height"),
        (lambda: searcher.by_picture(files[0], min_score=float("nan")), "minimum score must be a number"),
        (lambda: searcher.by_vector(np.zeros(3, np.float32)), "finite numbers"),
        (lambda: searcher.by_vector(np.full(searcher.index.meta.dimension, np.nan, np.float32)), "finite numbers"),
    ):
        with pytest.raises(FineSightError, match=words):
            ask()
    for bad in (tmp_path / "words.jpg", tmp_path / "missing.jpg", io.BytesIO(b"")):
        with pytest.raises(UnusablePicture, match="cannot be used"):
            searcher.by_picture(bad)
    with pytest.raises(FineSightError, match="no embedder"):
        Searcher(searcher.index).by_picture(files[0])
    with pytest.raises(FineSightError, match="made by another encoder"):
        Searcher(empty_index(tmp_path / "index"), searcher.embedder)


def test_an_index_without_a_rationale(tmp_path: Path) -> None:
    assert Searcher(empty_index(tmp_path / "index")).space("rationale") == SPACES[0]
    index = empty_index(tmp_path / "plain")
    index.meta = index.meta.model_copy(update={"spaces": ("average",)})
    with pytest.raises(FineSightError, match="It can by: average"):
        Searcher(index).space("rationale")


def test_from_python_in_one_call(made: Path, searcher: Searcher, files: list[Path]) -> None:
    hits = finesight.search_images(made, files[7], 3, by="average")
    assert hits == searcher.by_picture(files[7], 3, by="average").hits


def test_real_birds(tmp_path: Path) -> None:
    """A copy of a photo, half its size and cropped, is found among the others."""
    photos = tmp_path / "photos"
    photos.mkdir()
    chosen = sorted(cub_root().glob("images/*/*.jpg"))[::400]
    for file in chosen:
        shutil.copy(file, photos / file.name)
    run = small_encoder(tmp_path / "run")
    engine = TorchEmbedder.load(run)
    index = open_or_create(run / "index", engine, run, photos)
    assert update_index(index, engine, photos).added == len(chosen)
    searcher = Searcher(index, engine)
    for file in chosen[::5]:
        with Image.open(file) as photo:
            small = photo.convert("RGB").resize((photo.width // 2, photo.height // 2))
        assert searcher.by_picture(small, 1).hits[0].path == file.name
    assert unit(index.vectors(index.list_items().ids, "average")).shape == (len(chosen), index.meta.dimension)
