"""The report of a run: one file that needs nothing else, with what was learned, scored, searched and skipped."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import finesight
from finesight.evaluation.evaluate import Evaluation, evaluate
from finesight.features.encoder import Encoder, pixels, projection_responses
from finesight.report.run_report import class_table, score_table, search_rows, super_table
from finesight.training.config import flat
from finesight.training.run_folder import RunFolder
from processes import TINY, Finished, command, succeeded


class Page(HTMLParser):
    """Titles, cells, pictures and everything a browser would fetch."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.titles: list[str] = []
        self.cells: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.fetched: list[str] = []
        self.inside: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img":
            self.pictures.append(values)
        self.fetched += [str(values[name]) for name in ("src", "href", "data", "srcset") if name in values]
        if tag in ("link", "script", "iframe", "object"):
            self.fetched.append(tag)
        if tag in ("h1", "h2", "h3", "td", "th"):
            self.inside.append(tag)
            (self.titles if tag.startswith("h") and tag != "th" else self.cells).append("")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside:
            (self.titles if self.inside[-1] in ("h1", "h2", "h3") else self.cells)[-1] += data


def decoded(picture: dict[str, str | None]) -> Image.Image:
    head, _, data = str(picture["src"]).partition(",")
    assert head in ("data:image/png;base64", "data:image/webp;base64")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    image.load()
    return image


def check_self_contained(file: Path) -> Page:
    page = Page(file)
    assert all(address.startswith(("data:", "#")) for address in page.fetched), page.fetched
    text = re.sub(r"data:image/\w+;base64,[A-Za-z0-9+/=]+", "", file.read_text(encoding="utf-8"))
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in re.sub(r"http-equiv", "", text)
    for picture in page.pictures:
        assert picture["alt"]
        image = decoded(picture)
        assert np.asarray(image.convert("RGB")).std() > 1, "an empty picture"
    return page


def test_after_training(lcr: Path) -> None:
    page = check_self_contained(lcr / "report.html")
    titles = " | ".join(page.titles)
    for word in ("lcr", "Training", "Attention", "The 4 projections", "Skipped files", "Settings"):
        assert word in titles
    assert "Scores" not in titles
    assert "Search results" not in titles
    assert len(page.pictures) == 3
    config = RunFolder(lcr).config()
    for key, value in flat(config).items():
        assert key in page.cells
        assert json.dumps(value) in page.cells
    assert "Every file could be used." in (lcr / "report.html").read_text()


def test_after_evaluation(scored: tuple[Path, Finished]) -> None:
    run, done = scored
    page = check_self_contained(run / "report.html")
    assert "Scores" in page.titles
    assert "Search results" in page.titles
    assert len(page.pictures) == 4
    scores = json.loads(done.out)
    row = score_table({run.name: scores}, intervals=True)[0]
    start = page.cells.index("system")
    names, values = (page.cells[start + skip : start + skip + len(row)] for skip in (0, len(row)))
    assert names == list(row)
    assert values[0] == run.name
    for shown, value in zip(values[1:], list(row.values())[1:], strict=True):
        assert shown == value if isinstance(value, str) else float(shown) == pytest.approx(value, abs=0.01)
    low, high = scores["ci"]["retrieval"]["mAP"]
    assert row["mAP"] == f"{scores['retrieval']['mAP']:.1f} [{low:.1f}, {high:.1f}]"
    assert "Test was looked at once." in (run / "report.html").read_text()
    assert "Classes" in page.titles
    assert {f"species-00{n}" for n in range(4)} <= set(page.cells)
    assert "24 images each search all others" in (run / "report.html").read_text()


def test_skipped_files_are_listed(unlabeled: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeeded(command("train", "--data", unlabeled, "--out", run, "--epochs", "1", "--method", "moco-v2", *plain()))
    page = check_self_contained(run / "report.html")
    for name in ("broken.png", "notes.txt"):
        reason = page.cells[page.cells.index(name) + 1]
        assert len(reason) > 5
    assert "2 files could not be used." in (run / "report.html").read_text()
    assert not any("projections" in title for title in page.titles), "MoCo v2 has none"
    listed = (run / "skipped.csv").read_text().splitlines()
    assert sorted(line.split(",")[0] for line in listed) == ["broken.png", "notes.txt", "path"]


def plain() -> list[str]:
    words = list(TINY)
    place = words.index("--projections")
    return words[:place] + words[place + 2 :]


# --- what the pictures are made of ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(lcr: Path) -> Encoder:
    return finesight.load(lcr)


@pytest.fixture(scope="module")
def evaluation(encoder: Encoder, birds: Path) -> Evaluation:
    return evaluate(encoder, birds, linear=False, progress=False)


def test_search_rows_are_the_nearest_images(evaluation: Evaluation) -> None:
    features = evaluation.extracted.features[evaluation.pooling].astype(np.float64)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    source, cache = evaluation.cache.source, evaluation.cache
    assert source.labels is not None
    rows = search_rows(evaluation, count=5)
    assert len(rows) == 5
    for row, query in zip(rows, np.linspace(0, 23, 5).round().astype(int), strict=True):
        cosine = unit @ unit[query]
        cosine[query] = -2
        order = np.argsort(-cosine, kind="stable")[:7]
        assert np.array_equal(row.query, cache.image(int(evaluation.test[query])))
        for place, found in enumerate(evaluation.test[order]):
            assert np.array_equal(row.neighbors[place], cache.image(int(found)))
            assert row.names[place] == source.classes[source.labels[found]]
            assert row.right[place] == (source.labels[found] == source.labels[evaluation.test[query]])
            assert row.scores[place] == pytest.approx(cosine[order[place]], abs=1e-5)
    assert any(not all(row.right) for row in rows)
    assert any(any(row.right) for row in rows)


def test_pictures_are_what_the_encoder_saw(encoder: Encoder, birds: Path) -> None:
    file = next(birds.glob("test/*/*.png"))
    view = encoder.prepare(file)[0]
    picture = pixels(encoder, view)
    whole = np.asarray(Image.open(file).convert("RGB").resize((37, 37), Image.Resampling.BILINEAR))
    assert picture.dtype == np.uint8
    assert np.array_equal(picture, whole[2:34, 2:34])


def test_projections_are_the_branch(encoder: Encoder, birds: Path) -> None:
    views = encoder.prepare(sorted(birds.glob("test/*/*.png"))[:3])
    responses = projection_responses(encoder, views)
    assert responses.shape == (3, 4, 4, 4)
    attention = responses.max(axis=1)
    low, high = attention.min((1, 2), keepdims=True), attention.max((1, 2), keepdims=True)
    expected = ((attention - low) / (high - low)) ** 2  # the reading's mask_power
    np.testing.assert_allclose(encoder.attend(views).numpy(), expected, atol=1e-4)


def test_score_table_has_what_there_is() -> None:
    found = {"rank1": 1.0, "rank5": 2.0, "mAP": 3.0, "queries": 4}
    where = {"inside": 30.0, "pointing": 40.0}
    table = score_table(
        {
            "a": {"retrieval": found, "linear": {"100": {"top1": 50.0, "top5": 60.0}}, "localization": where},
            "b": {"retrieval": found},
        }
    )
    assert table[0] == {
        "system": "a",
        "rank-1": 1.0,
        "rank-5": 2.0,
        "mAP": 3.0,
        "linear 100 %": 50.0,
        "attention": 30.0,
        "pointing": 40.0,
    }
    assert table[1] == {"system": "b", "rank-1": 1.0, "rank-5": 2.0, "mAP": 3.0}


def test_score_table_with_intervals_votes_and_the_best_on_test() -> None:
    scores = {
        "retrieval": {"rank1": 54.44, "rank5": 70.0, "mAP": 30.0},
        "linear": {"100": {"top1": 60.0, "best_on_test": {"top1": 61.0}}},
        "knn": {"1": {"top1": 40.0}, "20": {"top1": 45.0}},
        "ci": {"retrieval": {"rank1": [53.06, 55.71]}, "knn": {"20": {"top1": [44.0, 46.0]}}},
    }
    assert score_table({"a": scores}, intervals=True)[0] == {
        "system": "a",
        "rank-1": "54.4 [53.1, 55.7]",
        "rank-5": 70.0,
        "mAP": 30.0,
        "linear 100 %": 60.0,
        "best on test 100 %": 61.0,
        "20-NN": "45.0 [44.0, 46.0]",
    }
    assert score_table({"a": scores})[0]["rank-1"] == 54.44


def test_tables_by_class_and_super_category_have_readable_heads() -> None:
    row = {"class": "a", "queries": 3, "rank1": 1.0, "test_images": 2, "linear_100": 5.0, "knn_20": None}
    assert list(class_table([row], {"linear": {"100": {}}, "knn": {"20": {}}})[0]) == [
        "class",
        "queries",
        "rank-1",
        "test images",
        "linear 100 %",
        "20-NN",
    ]
    supers = {"super_categories": [{"super-category": "Birds", "rank1": 1.0, "rank1_own": 2.0}]}
    assert super_table(supers) == [{"super-category": "Birds", "rank-1": 1.0, "rank-1, own gallery": 2.0}]


def test_an_encoder_on_its_own_gets_no_report(lcr: Path, birds: Path, tmp_path: Path) -> None:
    """``evaluate`` takes an encoder folder too; there is no run to write to then."""
    alone = Path(shutil.copytree(lcr / "encoder", tmp_path / "alone"))
    succeeded(command("evaluate", alone, "--data", birds, "--no-linear", "--json"))
    assert sorted(p.name for p in alone.iterdir()) == ["encoder.json", "encoder.safetensors"]
