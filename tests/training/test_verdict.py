"""Did training help? Runs planted to be better, worse and undecidable; what is kept; kills in between."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from finesight.evaluation.judgments import Candidate, Judgment, Record, update_record
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import fingerprint
from finesight.report.train import train_and_report
from finesight.training.config import RuntimeConfig, TrainConfig, build_config
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import FROZEN_POOLINGS, frozen_encoder
from finesight.training.verdict import MIN_QUERIES, Score, answer, read_verdict, trained_encoder, write_verdict
from processes import command, succeeded
from small import SMALL

QUIET = RuntimeConfig(progress=False)
COLORS = ((200, 40, 40), (40, 160, 60), (60, 60, 200))


@pytest.fixture(scope="module")
def colored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 noisy pictures in each of three colors: any network that lets color through tells them apart."""
    root, rng = tmp_path_factory.mktemp("colored"), np.random.default_rng(0)
    for label, color in enumerate(COLORS):
        (root / f"color-{label}").mkdir()
        for number in range(40):
            noise = rng.normal(0, 25, (36, 36, 3)) + np.array(color)
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(root / f"color-{label}" / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A network that lets color through, and one whose features are the same for every picture."""
    folder = tmp_path_factory.mktemp("weights")
    backbone = frozen_encoder(build_config({**SMALL, "method": "moco-v2"})).backbone
    good = {name: value.contiguous() for name, value in backbone.model.state_dict().items()}
    blind = {name: value * 0 if name.startswith("conv1") else value for name, value in good.items()}
    files = {"good": folder / "good.safetensors", "blind": folder / "blind.safetensors"}
    save_file(good, files["good"])
    save_file(blind, files["blind"])
    return files


def planted(out: Path, data: Path, begins: Path, ends: Path, **settings: Any) -> tuple[RunFolder, TrainConfig]:
    """A finished run that began with one weight file and ended with another."""
    own = {**SMALL, "method": "moco-v2", "data": str(data), "validation.fraction": 0.6, **settings}
    config = build_config({**own, "backbone.weights": str(begins)})
    run = RunFolder(out)
    with run.locked():
        run.enter(config, restart=False)
    encoder = frozen_encoder(build_config({**own, "backbone.weights": str(ends)}), "average")
    trained = Encoder(encoder.config.model_copy(update={"method": "moco-v2"}), encoder.backbone)
    trained.save(run.encoder)
    return run, config


def kept_method(run: RunFolder) -> str:
    return Encoder.load(run.root).config.method


# --- by labels --------------------------------------------------------------------------------------------------------


def test_a_run_that_lost_everything_is_worse_and_the_frozen_features_are_kept(
    tmp_path: Path, colored: Path, weights: dict[str, Path]
) -> None:
    run, config = planted(tmp_path / "run", colored, weights["good"], weights["blind"])
    before = fingerprint(run.encoder)
    verdict = write_verdict(run, QUIET)
    assert verdict is not None
    assert (verdict.verdict, verdict.by, verdict.kept) == ("worse", "labels", "frozen")
    assert verdict.labels.best is not None
    assert verdict.labels.same is not None
    assert verdict.labels.same.pooling == "average"
    assert verdict.labels.best.pooling in FROZEN_POOLINGS
    for key in ("rank1", "mAP"):
        score = verdict.labels.best.scores[key]
        assert score.low <= score.difference <= score.high < 0
        assert score.difference == pytest.approx(score.trained - score.frozen)
    assert verdict.words.startswith("Training did not help: on 7")
    assert f"finesight verdict {run.root} --keep trained" in verdict.words
    kept = Encoder.load(run.root)
    assert (kept.config.method, kept.config.pooling) == ("frozen", verdict.labels.best.pooling)
    expected = frozen_encoder(config).backbone.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in kept.backbone.state_dict().items())
    assert fingerprint(run.trained_encoder) == before
    assert read_verdict(run.root) == verdict
    assert json.loads((run.root / "verdict.json").read_text())["verdict"] == "worse"


def test_a_run_that_learned_to_see_is_better(tmp_path: Path, colored: Path, weights: dict[str, Path]) -> None:
    run, _ = planted(tmp_path / "run", colored, weights["blind"], weights["good"])
    verdict = write_verdict(run, QUIET)
    assert verdict is not None
    assert (verdict.verdict, verdict.by, verdict.kept) == ("better", "labels", "trained")
    assert verdict.words.startswith("Training helped: on 7")
    assert kept_method(run) == "moco-v2"
    assert not run.trained_encoder.exists()


def test_a_run_that_changed_nothing_cannot_be_told(tmp_path: Path, colored: Path, weights: dict[str, Path]) -> None:
    run, _ = planted(tmp_path / "run", colored, weights["blind"], weights["blind"])
    verdict = write_verdict(run, QUIET)
    assert verdict is not None
    assert (verdict.verdict, verdict.by, verdict.kept) == ("cannot tell", "labels", "trained")
    assert verdict.words.startswith("Cannot tell whether training helped")


def test_what_decides() -> None:
    def score(low: float, high: float) -> Score:
        return Score(frozen=50.0, trained=50.0, difference=(low + high) / 2, low=low, high=high)

    higher, lower, either = score(0.5, 2), score(-2, -0.5), score(-1, 1)
    assert answer([higher, either]) == answer([either, higher]) == answer([higher, higher]) == "better"
    assert answer([lower, either]) == answer([either, lower]) == "worse"
    assert answer([higher, lower]) == answer([either, either]) == answer([score(0, 0), score(0, 1)]) == "cannot tell"


@pytest.mark.parametrize(
    ("settings", "labeled", "reason"),
    [
        ({"validation.fraction": 0.0}, True, "validation.fraction is 0"),
        ({"validation.fraction": 0.2}, True, f"at least {MIN_QUERIES} are needed"),
        ({}, False, "there are no labels"),
    ],
)
def test_too_little_to_tell_by_is_said(
    tmp_path: Path, colored: Path, weights: dict[str, Path], settings: dict[str, Any], labeled: bool, reason: str
) -> None:
    data = colored
    if not labeled:
        data = tmp_path / "flat"
        data.mkdir()
        for file in colored.glob("*/*.png"):
            shutil.copy(file, data / f"{file.parent.name}-{file.name}")
    run, _ = planted(tmp_path / "run", data, weights["good"], weights["blind"], **settings)
    verdict = write_verdict(run, QUIET)
    assert verdict is not None
    assert (verdict.verdict, verdict.by, verdict.kept) == ("cannot tell", "nothing", "trained")
    assert reason in verdict.words
    assert kept_method(run) == "moco-v2"


def test_a_method_that_trains_nothing_has_no_verdict(tmp_path: Path, colored: Path) -> None:
    run = train_and_report(build_config({**SMALL, "method": "frozen", "data": str(colored)}), tmp_path / "run", QUIET)
    assert write_verdict(run, QUIET) is None
    assert read_verdict(run) is None


# --- by clicks --------------------------------------------------------------------------------------------------------


def clicked(run: RunFolder, *clicks: str) -> None:
    """Clicks about the frozen network and what the run holds as trained, in their file."""
    ours = Candidate("trained", fingerprint(trained_encoder(run)), "average")
    record = Record(Candidate("frozen", "the frozen one", "energy-gem"), ours, "data", 100, 100, 0)
    answers = tuple(Judgment(f"{i}.png", "a.png", "b.png", "a", one, "") for i, one in enumerate(clicks))  # type: ignore[arg-type]
    update_record(run.root / "judgments.json", record, lambda _: answers)


def test_clicks_decide_where_labels_do_not(tmp_path: Path, colored: Path, weights: dict[str, Path]) -> None:
    """And a verdict by clicks is taken back with the clicks."""
    run, _ = planted(tmp_path / "run", colored, weights["good"], weights["good"], **{"validation.fraction": 0.0})
    trained = fingerprint(run.encoder)
    cases: dict[tuple[str, ...], tuple[str, str, str]] = {
        (): ("cannot tell", "nothing", "trained"),
        ("left", "right", "both"): ("cannot tell", "nothing", "trained"),
        ("left",) * 30: ("worse", "clicks", "frozen"),  # A, the frozen one, is at the left
        ("right",) * 30: ("better", "clicks", "trained"),
    }
    for clicks, expected in cases.items():
        clicked(run, *clicks)
        verdict = write_verdict(run, QUIET)
        assert verdict is not None
        assert (verdict.verdict, verdict.by, verdict.kept) == expected
        assert kept_method(run) == ("frozen" if verdict.kept == "frozen" else "moco-v2")
        assert fingerprint(trained_encoder(run)) == trained
        assert ("finesight judge" in verdict.words) == (verdict.verdict == "cannot tell")


def test_labels_that_decide_win_over_clicks(tmp_path: Path, colored: Path, weights: dict[str, Path]) -> None:
    run, _ = planted(tmp_path / "run", colored, weights["good"], weights["blind"])
    clicked(run, *("right",) * 30)
    verdict = write_verdict(run, QUIET)
    assert verdict is not None
    assert (verdict.verdict, verdict.by) == ("worse", "labels")


# --- again, killed, and the user's own choice -------------------------------------------------------------------------


def times(run: RunFolder) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in run.root.rglob("*") if file.is_file() and file.suffix != ".lock"}


def test_a_second_call_changes_nothing_and_embeds_nothing(
    tmp_path: Path, colored: Path, weights: dict[str, Path]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(colored, data)
    run, _ = planted(tmp_path / "run", data, weights["good"], weights["blind"])
    first = write_verdict(run, QUIET)
    before = times(run)
    shutil.rmtree(data)
    assert write_verdict(run, QUIET) == first
    assert times(run) == before


@pytest.mark.parametrize("killed", ["before the swap", "before verdict.json"])
def test_killed_in_the_middle_it_ends_as_if_it_had_not_been(
    tmp_path: Path, colored: Path, weights: dict[str, Path], killed: str
) -> None:
    run, config = planted(tmp_path / "run", colored, weights["good"], weights["blind"])
    trained = fingerprint(run.encoder)
    shutil.copytree(run.encoder, run.trained_encoder)
    if killed == "before verdict.json":
        frozen_encoder(config, "gem").save(run.encoder)
    verdict = write_verdict(run, QUIET)
    assert verdict is not None
    assert (verdict.verdict, verdict.kept) == ("worse", "frozen")
    assert fingerprint(run.trained_encoder) == verdict.trained == trained
    kept = Encoder.load(run.root).config
    assert (kept.method, kept.pooling) == ("frozen", verdict.frozen_pooling)


def test_the_user_has_the_last_word(tmp_path: Path, colored: Path, weights: dict[str, Path]) -> None:
    run, _ = planted(tmp_path / "run", colored, weights["good"], weights["blind"])
    trained = fingerprint(run.encoder)
    write_verdict(run, QUIET)
    for _ in range(2):  # and it stays so
        verdict = write_verdict(run, QUIET, keep="trained") if _ == 0 else write_verdict(run, QUIET)
        assert verdict is not None
        assert (verdict.verdict, verdict.kept, verdict.chosen_by_user) == ("worse", "trained", True)
        assert fingerprint(run.root) == fingerprint(trained_encoder(run)) == trained
        assert not run.trained_encoder.exists()
    verdict = write_verdict(run, QUIET, keep="frozen")
    assert verdict is not None
    assert verdict.kept == "frozen"
    assert kept_method(run) == "frozen"


def test_another_training_in_the_same_folder_is_judged_anew(
    tmp_path: Path, colored: Path, weights: dict[str, Path]
) -> None:
    run, _ = planted(tmp_path / "run", colored, weights["good"], weights["blind"])
    write_verdict(run, QUIET)
    other, _ = planted(tmp_path / "other", colored, weights["good"], weights["good"])
    shutil.rmtree(run.encoder)  # trained further
    shutil.copytree(other.encoder, run.encoder)
    verdict = write_verdict(run, QUIET)
    assert verdict is not None
    assert (verdict.verdict, verdict.kept) == ("cannot tell", "trained")
    assert verdict.trained == fingerprint(run.encoder) == fingerprint(other.encoder)
    assert not run.trained_encoder.exists()


# --- where it is seen -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_and_the_report_show_it(lcr_copy: Path, birds: Path) -> None:
    verdict = read_verdict(lcr_copy)
    assert verdict is not None, "`finesight train` leaves a verdict"
    page = (lcr_copy / "report.html").read_text()
    assert "Did training help?" in page
    assert "Cannot tell yet whether training helped: only" in page
    shown = succeeded(command("verdict", lcr_copy, "--json"))
    told = json.loads(shown.out)
    assert str(lcr_copy) in told.pop("words"), "the words name the folder of the copy"
    assert told == verdict.model_dump(mode="json", exclude={"words"})
    chosen = succeeded(command("verdict", lcr_copy, "--keep", "frozen"))
    assert "The frozen features are kept, as you chose" in chosen.out
    assert "The frozen features are kept, as you chose" in (lcr_copy / "report.html").read_text()
    assert Encoder.load(lcr_copy).config.method == "frozen"
    succeeded(command("evaluate", lcr_copy, "--data", birds, "--no-linear"))
    assert "The frozen features are kept, as you chose" in (lcr_copy / "report.html").read_text()


def test_labels_do_not_reach_training(tmp_path: Path, colored: Path) -> None:
    """The same pictures with their labels shuffled: the same weights to the last bit."""
    files = sorted(colored.glob("*/*.png"))
    rng, runs = np.random.default_rng(0), []
    for name, order in (("true", np.arange(len(files))), ("shuffled", rng.permutation(len(files)))):
        with open(tmp_path / f"{name}.csv", "w", newline="") as out:
            rows = [(file, files[other].parent.name) for file, other in zip(files, order, strict=True)]
            csv.writer(out).writerows([("path", "label"), *rows])
        settings = {**SMALL, "epochs": 1, "validation.fraction": 0.6, "data": str(tmp_path / f"{name}.csv")}
        runs.append(train_and_report(build_config(settings), tmp_path / name, QUIET))
    true, shuffled = (load_file(trained_encoder(run) / "encoder.safetensors") for run in runs)
    assert all(torch.equal(value, shuffled[name]) for name, value in true.items())
    scores = [read_verdict(run) for run in runs]
    assert all(verdict is not None and verdict.by == "labels" for verdict in scores)
