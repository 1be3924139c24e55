"""Scores of an encoder on a source: which images, which numbers, and the one JSON object scripts read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import finesight
from finesight.data.sources import open_source
from finesight.encoder import Encoder
from finesight.errors import FineSightError
from finesight.evaluation import evaluate as module
from finesight.evaluation.evaluate import evaluate, split_indices
from finesight.evaluation.linear import linear_probe
from processes import Finished, command, refused, succeeded

PLAIN = ("--backbone", "test_resnet", "--weights", "random", "--resolution", "32", "--output-stride", "8")


@pytest.fixture(scope="module")
def encoder(lcr: Path) -> Encoder:
    return finesight.load(lcr)


def by_hand(features: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Every image searches all others by cosine."""
    unit = features.astype(np.float64) / np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    first, fifth, precision = [], [], []
    for query in range(len(unit)):
        others = [i for i in np.argsort(-(unit @ unit[query]), kind="stable") if i != query]
        right = [labels[i] == labels[query] for i in others]
        first.append(right[0])
        fifth.append(any(right[:5]))
        places = [place for place, good in enumerate(right, start=1) if good]
        precision.append(np.mean([(found + 1) / place for found, place in enumerate(places)]))
    return {"rank1": 100 * np.mean(first), "rank5": 100 * np.mean(fifth), "mAP": 100 * np.mean(precision)}


# --- the JSON object --------------------------------------------------------------------------------------------------


def check_shape(scores: dict[str, Any], *, localized: bool) -> None:
    """As the issue gives it, in percent."""
    assert list(scores) == ["retrieval", "linear", *(["localization"] if localized else []), "setting"]
    assert set(scores["retrieval"]) == {"rank1", "rank5", "mAP", "queries", "lone"}
    assert set(scores["linear"]) == {"100", "50", "20"}
    percents = [scores["retrieval"][name] for name in ("rank1", "rank5", "mAP")]
    for probe in scores["linear"].values():
        assert set(probe) == {"top1", "top5", "lr", "epochs"}
        assert probe["top1"] <= probe["top5"]
        percents += [probe["top1"], probe["top5"]]
    if localized:
        assert set(scores["localization"]) == {"inside", "pointing", "object_area", "images", "map"}
        percents += [scores["localization"][name] for name in ("inside", "pointing", "object_area")]
    assert all(isinstance(value, float) and 0 <= value <= 100 for value in percents)
    assert max(percents) > 1, "percent, not shares"
    assert type(scores["retrieval"]["queries"]) is int


def test_json_of_a_run(scored: tuple[Path, Finished], encoder: Encoder, birds: Path) -> None:
    run, done = scored
    assert done.out.count("\n") == 1, "one line and nothing else on stdout"
    scores = json.loads(done.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    check_shape(scores, localized=True)
    assert scores["retrieval"]["queries"] == 24
    assert scores["localization"]["images"] == 24
    assert scores["localization"]["map"] == "attention"
    assert scores["setting"]["split"] == "given"
    assert (scores["setting"]["train_images"], scores["setting"]["test_images"]) == (48, 24)
    assert json.loads((run / "evaluation.json").read_text()) == scores

    source = open_source(birds)
    assert source.labels is not None
    test, train = (np.flatnonzero(source.splits == name) for name in ("test", "train"))
    features = encoder.embed([source.file(int(i)) for i in test]).numpy()
    expected = by_hand(features, source.labels[test])
    for name in ("rank1", "rank5", "mAP"):
        assert scores["retrieval"][name] == pytest.approx(expected[name], abs=1e-6)
    known = encoder.embed([source.file(int(i)) for i in train]).numpy()
    probe = linear_probe(known, source.labels[train], features, source.labels[test])
    assert scores["linear"] == probe, "features of test and train were mixed up"


def test_the_same_twice(scored: tuple[Path, Finished], encoder: Encoder, birds: Path) -> None:
    again = finesight.evaluate(encoder, birds, progress=False)
    assert json.loads(json.dumps(again.scores)) == json.loads(scored[1].out)


def test_a_frozen_backbone_needs_no_run(birds: Path, tmp_path: Path) -> None:
    done = succeeded(command("evaluate", *PLAIN, "--data", birds, "--json", "--quiet", "--pooling", "energy"))
    scores = json.loads(done.out)
    check_shape(scores, localized=True)
    assert scores["setting"]["method"] == "frozen"
    assert scores["setting"]["pooling"] == "energy"
    assert "random weights" in done.err
    table = succeeded(command("evaluate", *PLAIN, "--data", birds, "--quiet", "--no-linear")).out
    assert "rank-1" in table
    assert "attention" in table
    assert "linear" not in table


def test_class_folders_get_a_split_of_their_own(class_folders: Path, encoder: Encoder) -> None:
    scores = finesight.evaluate(encoder, class_folders, progress=False).scores
    check_shape(scores, localized=False)
    assert scores["setting"]["split"] == "random"
    assert scores["retrieval"]["queries"] == 48, "every image searches all others"
    source = open_source(class_folders)
    assert source.labels is not None
    features = encoder.embed([source.file(i) for i in range(48)]).numpy()
    expected = by_hand(features, source.labels)
    assert scores["retrieval"]["mAP"] == pytest.approx(expected["mAP"], abs=1e-6)
    train, test, _ = split_indices(source)
    assert sorted([*train, *test]) == list(range(48))
    assert np.bincount(source.labels[train]).tolist() == [8, 8, 8, 8], "7/10 of each class"
    assert all(np.array_equal(a, b) for a, b in zip(split_indices(source)[:2], (train, test), strict=True))


# --- what is left out -------------------------------------------------------------------------------------------------


def test_options(encoder: Encoder, birds: Path) -> None:
    quick = evaluate(encoder, birds, linear=False, limit_classes=2, pooling="average", progress=False)
    assert "linear" not in quick.scores
    assert quick.scores["retrieval"]["queries"] == 12
    assert quick.scores["setting"]["train_images"] == 24
    assert quick.extracted.features.keys() == {"average"}
    assert quick.extracted.features["average"].shape == (12, encoder.channels)
    files = [quick.cache.source.file(int(i)) for i in quick.test]
    assert np.array_equal(quick.extracted.features["average"], encoder.embed(files, "average").numpy())
    where = quick.scores["localization"]
    assert where["map"] == "uniform", "an average looks everywhere alike"
    assert where["inside"] == where["pointing"] == where["object_area"]
    probed = evaluate(encoder, birds, fractions=(60, 10), progress=False)
    assert list(probed.scores["linear"]) == ["60", "10"]


def test_the_probe_is_given_what_the_reading_says(
    encoder: Encoder, birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    real = module.linear_probe

    def spy(*args: Any, **options: Any) -> Any:
        given.append(options["normalise"])
        return real(*args, **options)

    monkeypatch.setattr(module, "linear_probe", spy)
    assert encoder.config.rationale is not None
    raw = encoder.config.rationale.model_copy(update={"probe_input": "raw"})
    other = Encoder(encoder.config.model_copy(update={"rationale": raw}), encoder.backbone, encoder.branch)
    for which, forced in ((encoder, None), (other, None), (encoder, False), (other, True)):
        evaluate(which, birds, fractions=(20,), normalise=forced, progress=False)
    assert given == [True, False, False, True]


def test_images_that_cannot_be_read_are_left_out(encoder: Encoder, birds: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(birds, tmp_path / "birds"))
    (root / "lookalikes.json").unlink()
    shutil.rmtree(root / "masks")
    for split in ("test", "train"):
        next((root / split).rglob("*.png")).write_bytes(b"")
    scores = evaluate(encoder, root, progress=False).scores
    assert scores["setting"]["skipped"] == 2
    assert scores["setting"]["test_images"] == scores["retrieval"]["queries"] == 23
    assert scores["setting"]["train_images"] == 47


def test_images_without_a_label_take_no_part(encoder: Encoder, birds: Path, tmp_path: Path) -> None:
    lines = ["path,label"]
    for file in sorted(birds.glob("train/*/*.png")):
        number = int(file.stem)
        lines.append(f"{file},{file.parent.name if number < 9 else ''}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    scores = evaluate(encoder, tmp_path / "list.csv", progress=False).scores
    assert scores["retrieval"]["queries"] == 36
    check_shape(scores, localized=False)


def test_boxes_will_do_where_there_are_no_masks(encoder: Encoder, birds: Path) -> None:
    source = open_source(birds)
    whole = np.tile(np.float32([0, 0, 40, 40]), (len(source), 1))
    everywhere = evaluate(encoder, replace(source, masks=None, boxes=whole), linear=False, progress=False).scores
    assert everywhere["localization"]["inside"] == pytest.approx(100)
    assert everywhere["localization"]["object_area"] == pytest.approx(100)
    left = whole * np.float32([1, 1, 0.5, 1])
    half = evaluate(encoder, replace(source, masks=None, boxes=left), linear=False, progress=False).scores
    assert half["localization"]["object_area"] == pytest.approx(50)
    assert 0 < half["localization"]["inside"] < 100


# --- errors -----------------------------------------------------------------------------------------------------------


def test_no_labels_no_scores(lcr: Path, unlabelled: Path) -> None:
    refused(command("evaluate", lcr, "--data", unlabelled), "has no labels", "path,label", "finesight embed")


def test_a_split_without_test_images(encoder: Encoder, birds: Path) -> None:
    source = open_source(birds)
    with pytest.raises(FineSightError, match="no readable test image"):
        evaluate(encoder, source.split("train"), progress=False)


def test_one_class_or_one_image_each(encoder: Encoder, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 40), "red" if name == "a" else "blue").save(tmp_path / name / "only.png")
    with pytest.raises(FineSightError, match="--no-linear"):
        evaluate(encoder, tmp_path, progress=False)
    with pytest.raises(FineSightError, match="Retrieval needs"):
        evaluate(encoder, tmp_path, linear=False, progress=False)


def test_a_lone_class_is_in_the_test_images(encoder: Encoder, class_folders: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(class_folders, tmp_path / "classes"))
    (root / "zebra").mkdir()
    Image.new("RGB", (40, 40), "grey").save(root / "zebra" / "only.png")
    scores = evaluate(encoder, root, progress=False).scores
    assert scores["retrieval"]["lone"] == 1
    assert scores["retrieval"]["queries"] == 48
    assert (scores["setting"]["train_images"], scores["setting"]["test_images"]) == (32, 17)


def test_test_images_alone_can_be_searched(encoder: Encoder, birds: Path) -> None:
    source = open_source(birds).split("test")
    with pytest.raises(FineSightError, match="no train images"):
        evaluate(encoder, source, progress=False)
    assert evaluate(encoder, source, linear=False, progress=False).scores["retrieval"]["queries"] == 24
