"""Scores of an encoder on a source: which images, which numbers, and the one JSON object scripts read."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import finesight
from finesight.api import frozen
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.evaluation import evaluate as evaluation
from finesight.evaluation.evaluate import Evaluation, split_indices
from finesight.evaluation.knn import knn_places
from finesight.evaluation.linear import ProbeResult, linear_probe
from finesight.evaluation.protocols import ProbeTask, Protocol, setting_words
from finesight.evaluation.protocols.finesight import FineSightProtocol
from finesight.features.encoder import Encoder
from finesight.features.wide import WideRows
from finesight.nn.backbone import Backbone
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.poolings import POOLINGS, offered_poolings
from finesight.rationale.config import VARIANTS
from processes import Finished, command, killed_while_writing, refused, succeeded

pytestmark = pytest.mark.slow

evaluate = partial(evaluation.evaluate, progress=False)
evaluate_poolings = partial(evaluation.evaluate_poolings, progress=False)
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


def check_intervals(scores: dict[str, Any]) -> None:
    """About each score, under its name."""
    known = scores["ci"]
    assert set(known) == {"retrieval", "linear", "knn"} & set(scores) | {"level", "by_class"}
    pairs = [(scores["retrieval"][name], known["retrieval"][name]) for name in ("rank1", "rank5", "mAP")]
    for kind, names in (("linear", ("top1", "top5")), ("knn", ("top1",))):
        assert set(known.get(kind, ())) == set(scores.get(kind, ()))
        for which, told in scores.get(kind, {}).items():
            pairs += [(told[name], known[kind][which][name]) for name in names]
    assert all(low < high or score in (0, 100) for score, (low, high) in pairs)
    # resampled by class, an interval is a point where all classes have the same score
    pairs += [(scores["retrieval"][name], pair) for name, pair in known["by_class"]["retrieval"].items()]
    for score, (low, high) in pairs:
        assert 0 <= low <= high <= 100
        assert low - 1e-6 <= score <= high + 1e-6, "bounds are rounded, the score is not"


def check_shape(scores: dict[str, Any], *, localized: bool) -> None:
    """As the issue gives it, in percent."""
    parts = ["retrieval", "linear", "knn", *(["localization"] if localized else []), "ci", "setting"]
    assert list(scores) == parts
    assert set(scores["knn"]) == {"1", "20"}
    check_intervals(scores)
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


def test_what_a_killed_evaluation_left_goes_with_the_next(lcr_copy: Path, birds: Path) -> None:
    for name in ("evaluation.json", "evaluation-classes.csv", "report.html"):
        killed_while_writing(lcr_copy / name)
    assert len(list(lcr_copy.glob(".*.tmp*"))) == 3
    succeeded(command("evaluate", lcr_copy, "--data", birds, "--no-linear", "--quiet"))
    assert not list(lcr_copy.glob(".*.tmp*"))


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
    again = finesight.evaluate(encoder, birds, progress=False)
    assert json.loads(json.dumps(again.scores)) == scores

    source = open_source(birds)
    assert source.labels is not None
    test, train = (np.flatnonzero(source.splits == name) for name in ("test", "train"))
    features = encoder.embed([source.file(int(i)) for i in test]).numpy()
    expected = by_hand(features, source.labels[test])
    for name in ("rank1", "rank5", "mAP"):
        assert scores["retrieval"][name] == pytest.approx(expected[name], abs=1e-6)
    known = encoder.embed([source.file(int(i)) for i in train]).numpy()
    probe = linear_probe(known, source.labels[train], features, source.labels[test])
    assert scores["linear"] == {percent: found.summary() for percent, found in probe.items()}, (
        "features of test and train were mixed up"
    )
    votes = knn_places(known, source.labels[train], features, source.labels[test])
    assert scores["knn"] == {str(k): {"top1": 100 * (place <= 1).mean()} for k, place in votes.items()}
    setting = scores["setting"]
    assert (setting["protocol"], setting["dataset"], setting["seed"]) == ("finesight", "lookalikes", 0)
    assert (setting["test_looks"], setting["labels"], setting["incomplete"]) == (1, "drawn", None)
    assert setting["validation"]["100"] == {"images": 40, "folds": 5}, "2 of 12 in each of 4 classes, five times"
    with (run / "evaluation-classes.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert np.mean([float(row["rank1"]) for row in rows]) == pytest.approx(expected["rank1"], abs=0.01)
    assert np.mean([float(row["linear_100"]) for row in rows]) == pytest.approx(
        scores["linear"]["100"]["top1"], abs=0.01
    )
    assert [float(row["rank1"]) for row in rows] == sorted(float(row["rank1"]) for row in rows), "worst first"


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
    quick = evaluate(encoder, birds, linear=False, limit_classes=2, pooling="average")
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


def test_the_probe_is_given_what_the_variant_says(encoder: Encoder, birds: Path) -> None:
    given = []

    class Given(Exception):
        """The rest is of no interest."""

    class Watching(FineSightProtocol):
        def probe(self, task: ProbeTask) -> dict[str, ProbeResult]:
            given.append(task.unit)
            raise Given

    assert encoder.config.rationale is not None
    raw = encoder.config.rationale.model_copy(update={"probe_input": "raw"})
    other = Encoder(encoder.config.model_copy(update={"rationale": raw}), encoder.backbone, encoder.branch)
    for which, forced in ((encoder, None), (other, None), (encoder, False), (other, True)):
        with pytest.raises(Given):
            evaluate(which, birds, normalize=forced, protocol=Watching())
    assert given == [True, False, False, True]


def test_a_protocol_that_lacks_something_is_refused_before_anything_is_scored() -> None:
    class WithoutWords(Protocol):
        name = "without-words"

        def probe(self, task: ProbeTask) -> dict[str, ProbeResult]:
            return {}

        def probe_facts(self, results: Mapping[str, ProbeResult]) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match="probe_words"):
        WithoutWords()  # type: ignore[abstract]


def test_images_that_cannot_be_read_are_left_out(encoder: Encoder, birds: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(birds, tmp_path / "birds"))
    (root / "lookalikes.json").unlink()
    shutil.rmtree(root / "masks")
    for split in ("test", "train"):
        next((root / split).rglob("*.png")).write_bytes(b"")
    scores = evaluate(encoder, root, fractions=(20,)).scores
    assert scores["setting"]["skipped"] == 2
    assert scores["setting"]["test_images"] == scores["retrieval"]["queries"] == 23
    assert scores["setting"]["train_images"] == 47


def test_images_without_a_label_take_no_part(encoder: Encoder, birds: Path, tmp_path: Path) -> None:
    lines = ["path,label"]
    for file in sorted(birds.glob("train/*/*.png")):
        number = int(file.stem)
        lines.append(f"{file},{file.parent.name if number < 9 else ''}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    scores = evaluate(encoder, tmp_path / "list.csv").scores
    assert scores["retrieval"]["queries"] == 36
    check_shape(scores, localized=False)


def test_boxes_will_do_where_there_are_no_masks(encoder: Encoder, birds: Path) -> None:
    """The oracle pools inside them; a box around everything is an average."""
    source = open_source(birds)
    whole = np.tile(np.float32([0, 0, 40, 40]), (len(source), 1))
    poolings = ("rationale-gem", "box", "average")
    everywhere, half = (
        evaluate_poolings(encoder, replace(source, masks=None, boxes=boxes), poolings, linear=False)
        for boxes in (whole, whole * np.float32([1, 1, 0.5, 1]))
    )
    found, left = (which["rationale-gem"].scores["localization"] for which in (everywhere, half))
    assert (found["inside"], found["object_area"]) == pytest.approx((100, 100))
    assert left["object_area"] == pytest.approx(50)
    assert 0 < left["inside"] < 100
    features = [everywhere[name].extracted.features[name] for name in ("box", "average")]
    np.testing.assert_allclose(*features, rtol=1e-5, atol=1e-6)
    assert not np.allclose(half["box"].extracted.features["box"], features[1])
    assert np.array_equal(half["box"].extracted.attention[0], np.tile(np.float32([1, 1, 0, 0]), (4, 1)))


# --- several poolings in one pass -------------------------------------------------------------------------------------


def same(one: Evaluation, other: Evaluation) -> None:
    """Exactly, features and per-query outcomes included."""
    assert list(one.scores) == list(other.scores)
    assert one.scores == other.scores
    assert one.pooling == other.pooling
    assert one.extracted.features.keys() == other.extracted.features.keys() == {one.pooling}
    assert np.array_equal(one.extracted.features[one.pooling], other.extracted.features[one.pooling])
    assert one.extracted.masks.keys() == other.extracted.masks.keys()
    assert np.array_equal(one.extracted.attention, other.extracted.attention)
    for name, values in one.queries.per_query.items():
        assert np.array_equal(values, other.queries.per_query[name])


@pytest.fixture
def forwards(encoder: Encoder) -> Iterator[list[int]]:
    """How many images the backbone is given, call by call."""
    seen: list[int] = []
    handle = encoder.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    yield seen
    handle.remove()


def test_all_poolings_at_once_are_each_alone(encoder: Encoder, birds: Path, class_folders: Path) -> None:
    poolings = tuple(name for name, pooling in POOLINGS.items() if not pooling.needs_class_token)[::-1]
    together = evaluate_poolings(encoder, birds, poolings, fractions=(50,))
    assert tuple(together) == poolings
    for name in poolings[::3]:
        same(together[name], evaluate(encoder, birds, pooling=name, fractions=(50,)))
    searched = evaluate_poolings(encoder, class_folders, ("average", "rationale-gem"), linear=False)
    for name, found in searched.items():
        assert found.queries.queries == 48, "train images are searched too"
        same(found, evaluate(encoder, class_folders, pooling=name, linear=False))
    assert len({evaluation.scores["retrieval"]["mAP"] for evaluation in together.values()}) > 1
    maps = {name: evaluation.scores.get("localization", {}).get("map") for name, evaluation in together.items()}
    masked = dict.fromkeys((name for name in poolings if POOLINGS[name].mask not in (None, "box")), "attention")
    assert maps == {**masked, "average": "uniform", "gem": "uniform", "box": None, "box-gem": None}


def test_every_image_is_embedded_once(encoder: Encoder, birds: Path, class_folders: Path, forwards: list[int]) -> None:
    """Under the poolings of one map, for which alone the backbone itself is called."""
    offered = offered_poolings().items()
    poolings = tuple(name for name, one in offered if not (one.needs_class_token or one.needs_earlier))
    expected = ((birds, True, 48 + 24), (birds, False, 24), (class_folders, True, 48), (class_folders, False, 48))
    for data, linear, images in expected:
        forwards.clear()
        evaluate_poolings(encoder, data, poolings, linear=linear, probed=("gem",), fractions=(20,))
        assert sum(forwards) == images


def test_only_what_is_asked_for_is_probed(encoder: Encoder, birds: Path, forwards: list[int]) -> None:
    poolings = ("average", "gem", "energy")
    some = evaluate_poolings(encoder, birds, poolings, probed=("gem",), fractions=(50,))
    assert [name for name in poolings if "linear" in some[name].scores] == ["gem"]
    same(some["gem"], evaluate(encoder, birds, pooling="gem", fractions=(50,)))
    forwards.clear()
    none = evaluate_poolings(encoder, birds, poolings, probed=())
    assert not any("linear" in evaluation.scores for evaluation in none.values())
    assert sum(forwards) == 24, "train images are of no use then"
    off = evaluate_poolings(encoder, birds, poolings, linear=False, probed=("gem",))
    assert not any("linear" in evaluation.scores for evaluation in off.values())
    with pytest.raises(ValueError, match="energy-gem"):
        evaluate_poolings(encoder, birds, poolings, probed=("energy-gem",))


def test_a_mask_over_the_batch_changes_other_poolings_by_rounding_alone(encoder: Encoder, birds: Path) -> None:
    assert encoder.config.rationale is not None
    batch = encoder.config.rationale.model_copy(update={"mask_range": VARIANTS["released"].mask_range})
    other = Encoder(encoder.config.model_copy(update={"rationale": batch}), encoder.backbone, encoder.branch)
    together = evaluate_poolings(other, birds, ("average", "rationale"), linear=False)
    alone = {name: evaluate(other, birds, pooling=name, linear=False) for name in together}
    same(together["rationale"], alone["rationale"])
    features = [which["average"].extracted.features["average"] for which in (together, alone)]
    np.testing.assert_allclose(*features, rtol=1e-4, atol=1e-6)


class Turned(Backbone):
    """A backbone whose feature map has 20,000 channels, with the same angles between features."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone.config, load=False)
        self.load_state_dict(backbone.state_dict())
        self.turn = torch.linalg.qr(torch.randn(20_000, self.channels, generator=torch.Generator().manual_seed(0)))[0].T
        self.channels = 20_000

    def forward(self, images: torch.Tensor, *, folded: bool = False) -> torch.Tensor:
        return torch.einsum("nchw,cd->ndhw", super().forward(images, folded=folded), self.turn)


@pytest.mark.parametrize("split", ["birds", "class_folders"])
def test_wide_features_score_as_the_narrow_ones_they_come_from(
    split: str, encoder: Encoder, request: pytest.FixtureRequest
) -> None:
    """With a split of their own, all images are searched."""
    data = request.getfixturevalue(split)
    plain = encoder.with_pooling("average")
    narrow = evaluate(plain, data, fractions=(100,))
    wide = evaluate(Encoder(plain.config, Turned(plain.backbone), None), data, fractions=(100,))
    assert isinstance(wide.extracted.features["average"], WideRows)
    assert wide.extracted.features["average"].shape == (len(wide.test), 20_000)
    assert wide.queries.queries == narrow.queries.queries
    np.testing.assert_allclose(wide.queries.per_query["mAP"], narrow.queries.per_query["mAP"], atol=0.05)
    top1 = [found.scores["linear"]["100"]["top1"] for found in (wide, narrow)]
    assert top1[0] == pytest.approx(top1[1], abs=250 / len(wide.test))


def test_an_encoder_without_a_branch(birds: Path) -> None:
    plain = frozen(BackboneConfig(name="test_resnet", weights="random", output_stride=8), 32)
    scored = evaluate_poolings(plain, birds, ("average", "energy", "box"), linear=False)
    assert scored["energy"].scores["localization"]["map"] == "attention"
    with pytest.raises(FineSightError, match="needs a trained rationale"):
        evaluate_poolings(plain, birds, ("average", "rationale"), linear=False)


# --- protocol, labels, classes ----------------------------------------------------------------------------------------


def test_label_files_are_shared(birds: Path, lcr: Path, tmp_path: Path) -> None:
    """Saved by one command and used by another, which then has the same scores; another draw has others."""
    file, table = tmp_path / "labels.json", tmp_path / "classes.csv"
    words = ("evaluate", lcr / "encoder", "--data", birds, "--fractions", "50,20", "--quiet", "--json")
    first = json.loads(succeeded(command(*words, "--seed", "5", "--save-labels", file, "--per-class", table)).out)
    again = json.loads(succeeded(command(*words, "--seed", "5", "--labels", file)).out)
    assert again["linear"] == first["linear"]
    assert again["setting"]["labels"] == "labels.json"
    assert len(table.read_text().splitlines()) == 1 + 4
    assert list(first["linear"]) == ["50", "20"]


def test_parts_given_are_those_fitted_to(encoder: Encoder, birds: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.json"
    evaluate(encoder, birds, fractions=(20,), protocol=FineSightProtocol(save_labels=few))
    told = json.loads(few.read_text())
    told["fractions"]["20"] = {name: paths[:1] for name, paths in told["fractions"]["20"].items()}
    few.write_text(json.dumps(told))
    scores = evaluate(encoder, birds, fractions=(20,), protocol=FineSightProtocol(labels=few)).scores
    assert scores["setting"]["validation"]["20"] == {"images": 0, "folds": 0}, "one image a class"
    assert (scores["linear"]["20"]["lr"], scores["linear"]["20"]["epochs"]) == (30, 100)
    assert "nothing to choose on at 20 %" in setting_words(scores)


def test_without_neighbors(encoder: Encoder, birds: Path) -> None:
    found = evaluate(encoder, birds, fractions=(20,), protocol=FineSightProtocol(knn=()))
    assert "knn" not in found.scores
    assert "knn" not in found.scores["ci"]
    quick = evaluate(encoder, birds, linear=False).scores
    assert list(quick) == ["retrieval", "localization", "ci", "setting"], "no features of train, no vote"
    check_intervals(quick)
    assert "linear" not in setting_words(quick)
    assert "probe" not in setting_words(quick)
    assert "Test was looked at once." in setting_words(quick)


def test_the_line_under_the_table(birds: Path, lcr: Path) -> None:
    done = succeeded(command("evaluate", lcr / "encoder", "--data", birds, "--fractions", "100", "--quiet"))
    lines = [" ".join(line.split()) for line in done.out.splitlines() if line.strip()]
    assert lines[-1].startswith(
        "Protocol finesight, lookalikes (not a published dataset), given split, 48 train and 24"
    )
    for words in (
        "chosen on train alone, by held-out 40 images in 5 folds at 100 %",
        "Test was looked at once",
        "95 %",
    ):
        assert words in lines[-1]
    assert re.search(r"\d\.\d \[\d+\.\d, \d+\.\d\]", done.out), "intervals beside the scores"
    assert "20-NN" in lines[0]


def test_a_part_of_a_published_dataset_is_called_one(encoder: Encoder, birds: Path) -> None:
    source = replace(open_source(birds), kind="cub")
    scores = evaluate(encoder, source, linear=False).scores
    assert scores["setting"]["incomplete"].startswith("not the official cub")
    assert "not the official cub: 5,946 of 5,994 train images missing" in setting_words(scores)
    assert scores["setting"]["split"] == "official"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fractions", "50,200"), ("--fractions", "1 to 100", "50,200")),
        (("--fractions", "half"), ("--fractions", "'half'")),
        (("--fractions", "50,50"), ("--fractions",)),
        (("--labels", "nowhere.json"), ("nowhere.json", "cannot be read")),
        (("--labels", "x.json", "--no-linear"), ("--labels is about the linear probe",)),
        (("--save-labels", "nowhere/x.json"), ("--save-labels", "does not exist")),
        (("--per-class", "."), ("--per-class", "is a folder")),
    ],
)
def test_wrong_options(birds: Path, lcr: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(command("evaluate", lcr, "--data", birds, *options), *words)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_no_labels_no_scores(lcr: Path, unlabeled: Path) -> None:
    refused(command("evaluate", lcr, "--data", unlabeled), "has no labels", "path,label", "finesight embed")


def test_no_boxes_no_oracle(encoder: Encoder, class_folders: Path, forwards: list[int]) -> None:
    with pytest.raises(FineSightError, match=r"'box'.*neither object masks nor boxes"):
        evaluate_poolings(encoder, class_folders, ("average", "box"), linear=False)
    assert not forwards, "said before the work"


def test_a_source_of_one_split(encoder: Encoder, birds: Path) -> None:
    train, test = (open_source(birds).split(name) for name in ("train", "test"))
    with pytest.raises(FineSightError, match="no readable test image"):
        evaluate(encoder, train)
    with pytest.raises(FineSightError, match="no train images"):
        evaluate(encoder, test)
    assert evaluate(encoder, test, linear=False).scores["retrieval"]["queries"] == 24


def test_one_class_or_one_image_each(encoder: Encoder, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 40), "red" if name == "a" else "blue").save(tmp_path / name / "only.png")
    with pytest.raises(FineSightError, match="--no-linear"):
        evaluate(encoder, tmp_path)
    with pytest.raises(FineSightError, match="Retrieval needs"):
        evaluate(encoder, tmp_path, linear=False)


def test_a_lone_class_is_in_the_test_images(encoder: Encoder, class_folders: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(class_folders, tmp_path / "classes"))
    (root / "zebra").mkdir()
    Image.new("RGB", (40, 40), "gray").save(root / "zebra" / "only.png")
    scores = evaluate(encoder, root, fractions=(20,)).scores
    assert scores["retrieval"]["lone"] == 1
    assert scores["retrieval"]["queries"] == 48
    assert (scores["setting"]["train_images"], scores["setting"]["test_images"]) == (32, 17)
