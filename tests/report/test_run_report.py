"""The report of a run: one file that needs nothing else, with what was learned, scored, searched and skipped."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import finesight
from finesight.evaluation.evaluate import Evaluation, evaluate
from finesight.evaluation.score_table import score_table
from finesight.features.encoder import Encoder, pixels, projection_responses
from finesight.report.run_report import class_table, search_rows, super_table
from finesight.training.dotted_keys import flat
from finesight.training.run_folder import RunFolder
from processes import TINY, Finished, command, succeeded


@dataclass(frozen=True)
class Page:
    """What a reader sees."""

    titles: list[str]
    cells: list[str]
    pictures: int


def read_page(file: Path) -> Page:
    """Read a report; every picture in it shows something. That it needs no other file is tested with ``plots.html``."""
    text = file.read_text(encoding="utf-8")
    pictures = re.findall(r'<img src="data:image/\w+;base64,([^"]+)" alt="[^"]+"', text)
    for data in pictures:
        assert np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).std() > 1, "an empty picture"
    assert len(pictures) == text.count("<img")
    cells = re.findall(r"<t[dh](?: [^>]*)?>(.*?)</t[dh]>", text)
    return Page(re.findall(r"<h[12]>(.*?)</h[12]>", text), [html.unescape(cell) for cell in cells], len(pictures))


def test_after_training(lcr: Path) -> None:
    page = read_page(lcr / "report.html")
    titles = " | ".join(page.titles)
    for word in ("lcr", "Training", "Attention", "The 4 projections", "Skipped files", "Settings"):
        assert word in titles
    assert "Scores" not in titles
    assert "Search results" not in titles
    assert page.pictures == 3
    config = RunFolder(lcr).config()
    for key, value in flat(config).items():
        assert key in page.cells
        assert json.dumps(value) in page.cells
    assert "Every file could be used." in (lcr / "report.html").read_text()


def test_after_evaluation(scored: tuple[Path, Finished]) -> None:
    run, done = scored
    page = read_page(run / "report.html")
    assert "Scores" in page.titles
    assert "Search results" in page.titles
    assert page.pictures == 4
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


@pytest.mark.slow
def test_skipped_files_are_listed(unlabeled: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeeded(command("train", "--data", unlabeled, "--out", run, "--epochs", "1", "--method", "moco-v2", *plain()))
    page = read_page(run / "report.html")
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


def test_score_table_with_intervals_votes_and_the_best_on_test() -> None:
    scores = {
        "retrieval": {"rank1": 54.44, "rank5": 70.0, "mAP": 30.0},
        "linear": {"100": {"top1": 60.0, "best_on_test": {"top1": 61.0}}},
        "knn": {"1": {"top1": 40.0}, "20": {"top1": 45.0}},
        "localization": {"inside": 30.0, "pointing": 40.0},
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
        "attention": 30.0,
        "pointing": 40.0,
    }
    assert score_table({"a": scores})[0]["rank-1"] == 54.44
    few = score_table({"b": {"retrieval": scores["retrieval"]}})[0]
    assert few == {"system": "b", "rank-1": 54.44, "rank-5": 70.0, "mAP": 30.0}


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
