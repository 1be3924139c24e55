"""What a notebook shows of hits, explanations, matches, runs and comparisons: pictures in the page, names escaped."""

from __future__ import annotations

import base64
import copy
import io
import pickle
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import finesight
from finesight.errors import FineSightError
from processes import command, succeeded

ODD = "<img src=x onerror=alert(1)>&'.png"
VOID = {"br", "img"}


class Fragment(HTMLParser):
    """Reads HTML strictly: every tag is closed, and nothing is asked of another host."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.pictures: list[Image.Image] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe")
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert value is not None
                assert value.startswith("data:image/"), value[:80]
                image = Image.open(io.BytesIO(base64.b64decode(value.partition(",")[2])))
                assert np.asarray(image.convert("RGB")).std() > 1, "an empty picture"
                self.pictures.append(image)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def photos(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight pictures; the name of one is an attack."""
    root = tmp_path_factory.mktemp("photos")
    files = sorted(birds.glob("test/*/*.png"))[::3]
    for number, file in enumerate(files):
        shutil.copy(file, root / (ODD if number == 0 else f"bird-{number}.png"))
    return root


@pytest.fixture(scope="module")
def run(lcr: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Path(shutil.copytree(lcr, tmp_path_factory.mktemp("runs") / "<b>run"))
    succeeded(command("index", run, photos, "--quiet"))
    return run


def test_hits_show_the_query_and_every_picture_with_its_score(run: Path, photos: Path) -> None:
    hits = finesight.search_images(run, photos / ODD, k=4)
    shown = Fragment(hits._repr_html_())
    assert len(shown.pictures) == 5
    assert ODD in shown.text
    assert "onerror=" not in re.sub(r"&lt;.*?&gt;", "", hits._repr_html_())
    assert f"{hits[0].score:.3f}" in shown.text
    assert max(picture.width for picture in shown.pictures) <= 132
    assert len(hits._repr_html_()) < 100_000


def test_hits_are_a_tuple_whose_slices_and_copies_show_themselves_too(run: Path, photos: Path) -> None:
    hits = finesight.search_images(run, photos / "bird-1.png", k=4)
    assert isinstance(hits, tuple)
    assert hits == tuple(hits)
    assert len(Fragment(hits[:2]._repr_html_()).pictures) == 3
    assert hits.to_arrow().column("path").to_pylist() == [hit.path for hit in hits]
    for again in (copy.copy(hits), pickle.loads(pickle.dumps(hits))):
        assert again == hits
        assert again._repr_html_() == hits._repr_html_()


def test_an_answer_shows_its_hits_also_without_a_picture_as_query(run: Path, photos: Path) -> None:
    searcher = finesight.open_index(run)
    answer = searcher.by_picture(photos / "bird-1.png", k=3)
    assert len(Fragment(answer._repr_html_()).pictures) == 4
    vector = answer.embedding.features[answer.space]
    assert len(Fragment(searcher.by_vector(vector, k=3)._repr_html_()).pictures) == 3


def test_a_hit_whose_file_is_gone_is_named_without_a_picture(lcr: Path, photos: Path, tmp_path: Path) -> None:
    run, folder = Path(shutil.copytree(lcr, tmp_path / "run")), Path(shutil.copytree(photos, tmp_path / "photos"))
    succeeded(command("index", run, folder, "--quiet"))
    (folder / "bird-2.png").unlink()
    (folder / "bird-3.png").write_bytes(b"no picture any more")
    shown = Fragment(finesight.search_images(run, folder / "bird-1.png", k=8)._repr_html_())
    assert len(shown.pictures) == 7
    assert "bird-2.png" in shown.text
    assert shown.text.count("not to be read now") == 2


def test_an_explanation_shows_the_view_the_maps_and_projections(run: Path, photos: Path) -> None:
    explainer = finesight.Explainer.load(run)
    files = [photos / ODD, photos / "bird-1.png"]
    shown = Fragment(explainer(files)._repr_html_())
    assert Path(ODD).stem in shown.text
    for words in ("mask", "GradCAM of its loss", "channel energy", "projection"):
        assert shown.text.count(words) >= 2
    assert len(shown.pictures) == 2 * (1 + 3 + 3)
    many = explainer([photos / "bird-1.png"] * 8)
    assert "The first 6 of 8 images are shown." in Fragment(many._repr_html_()).text


def test_a_match_shows_both_pictures_and_the_score(run: Path, photos: Path) -> None:
    found = finesight.Explainer.load(run).match(photos / "bird-1.png", photos / ODD)
    shown = Fragment(found._repr_html_())
    assert f"Score {found.score:.3f}" in shown.text
    assert ODD in shown.text
    count = 2 + min(4, len(found.projections))
    assert len(shown.pictures) == 2 * count
    assert found.query_map.sum() == pytest.approx(found.score)
    assert found.score == pytest.approx(
        next(h.score for h in finesight.search_images(run, photos / "bird-1.png", 8) if h.path == ODD), abs=1e-4
    )


def test_a_run_shows_verdict_curves_settings_and_scores(scored: tuple[Path, object], run: Path, photos: Path) -> None:
    opened = finesight.open_run(scored[0])
    shown = Fragment(opened._repr_html_())
    assert opened.is_finished
    assert opened.verdict is not None
    for words in ("Did training help?", opened.verdict.words[:40], "rank-1", "views.resolution", "finished"):
        assert words in shown.text, words
    assert len(shown.pictures) == 1  # the curves
    assert opened.scores is not None
    assert f"{opened.scores['retrieval']['rank1']:.1f}" in shown.text
    assert opened.settings["method"] == "lcr"
    assert [step for step, _ in opened.curves["total loss"]] == list(range(10))
    odd = finesight.open_run(run)
    assert "<b>run" in Fragment(odd._repr_html_()).text
    assert odd.scores is None
    assert len(odd.search(photos / "bird-1.png", k=2)) == 2
    assert len(odd.explain(photos / "bird-1.png")) == 1


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match="not a run"):
        finesight.open_run(tmp_path)


def test_a_comparison_shows_scores_and_changed_images(lcr: Path, birds: Path) -> None:
    found = finesight.compare(lcr, lcr, birds, pooling_b="average", resamples=200, progress=False)
    shown = Fragment(found._repr_html_())
    for words in ("Is B better than A?", "rank-1", "95 % interval", "queries"):
        assert words in shown.text
    assert len(shown.pictures) == (1 if len(found.changed) else 0)
    same = finesight.compare(lcr, finesight.load(lcr), birds, resamples=200, progress=False)
    assert "No difference" in Fragment(same._repr_html_()).text


def test_an_evaluation_shows_its_table(lcr: Path, birds: Path) -> None:
    found = finesight.evaluate(lcr, birds, linear=False, progress=False)
    shown = Fragment(found._repr_html_())
    assert f"{found.scores['retrieval']['rank1']:.1f}" in shown.text


def test_findings_show_their_pictures(lcr: Path, birds: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted(birds.glob("train/*/*.png"))[::2]):
        folder = tmp_path / f"kind-{number % 3}"
        folder.mkdir(exist_ok=True)
        shutil.copy(file, folder / f"{number}.png")
    shutil.copy(tmp_path / "kind-0" / "0.png", tmp_path / "kind-1" / ODD)
    found = finesight.clean(tmp_path, lcr, progress=False)
    shown = Fragment(found._repr_html_())
    assert ODD in shown.text
    assert found.duplicates
    assert f"{len(found.duplicates)} group" in shown.text
    counts = min(len(found.suspects), 12), sum(min(len(group.images), 4) for group in found.duplicates[:3])
    assert len(shown.pictures) == sum(counts) + min(len(found.outliers), 12)
