"""Judging runs from files: which candidates there are, the command in a terminal, and in a notebook."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import finesight
from finesight.cli.main import app
from finesight.errors import FineSightError
from finesight.evaluation.judging import read_decision
from finesight.evaluation.judgments import read_records
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import fingerprint
from finesight.training.candidates import CandidateName, candidate_names, memory_fingerprint
from indexes import small_encoder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("judged")
    return small_encoder(root / "a"), small_encoder(root / "b", seed=3)


@pytest.fixture
def pair(runs: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies that a test may write to."""
    return tuple(Path(shutil.copytree(run, tmp_path / run.name)) for run in runs)  # type: ignore[return-value]


def judged(*args: str | Path, keys: str = "") -> Result:
    result = CliRunner().invoke(app, ["judge", *map(str, args), "--quiet"], input=keys, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_answers_by_keys_are_kept_shown_and_exported(pair: tuple[Path, Path], unlabeled: Path, tmp_path: Path) -> None:
    a, b = pair
    said = judged(a, b, "--data", unlabeled, "--terminal", keys="l\nboth\nwhat\nu\nn\nright\nq\n").output
    assert "after 3 clicks" in said
    record = read_records(b / "judgments.json")[0]
    assert [one.choice for one in record.judgments] == ["left", "neither", "right"]
    assert (record.a.name, record.b.name, record.images) == (str(a), str(b), 24)  # two files are no images
    assert (record.a.fingerprint, record.b.fingerprint) == (fingerprint(a), fingerprint(b))
    assert not (b / "judging.png").exists()
    facts = json.loads(judged(a, b, "--show", "--json").stdout)
    assert (facts["clicks"], facts["ties"], facts["winner"]) == (3, 1, None)
    judged(a, b, "--export", tmp_path / "clicks.csv")
    judged(a, b, "--export", tmp_path / "clicks.json")
    rows = list(csv.DictReader((tmp_path / "clicks.csv").open()))
    assert [row["choice"] for row in rows] == ["left", "neither", "right"]
    assert len(json.loads((tmp_path / "clicks.json").read_text())["judgments"]) == 3
    judged(a, b, "--data", unlabeled, "--terminal", keys="b\n")  # goes on, and ends with the input
    assert len(read_records(b / "judgments.json")[0].judgments) == 4


def test_one_network_under_two_poolings(pair: tuple[Path, Path], unlabeled: Path) -> None:
    a, _ = pair
    judged(f"{a}:gem", f"{a}:average", "--data", unlabeled, "--terminal", "--images", "12", keys="q\n")
    session = finesight.judge(f"{a}:gem", f"{a}:average", unlabeled, images=12)
    assert (session.decision.a, session.decision.b) == ("trained:gem", "trained:average")
    assert len(session.judging.paths) == 12
    features = Encoder.load(a).embed([session.source.file(i) for i in range(12)], "gem").numpy()
    unit = features / (features**2).sum(1, keepdims=True) ** 0.5
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -1)
    assert session.judging.nearest[0].tolist() == cosines.argmax(1).tolist()


def test_a_notebook_shows_the_question_and_never_who_is_who(pair: tuple[Path, Path], unlabeled: Path) -> None:
    a, b = pair
    session = finesight.judge(a, b, unlabeled)
    shown = session._repr_html_()
    assert shown.startswith('<img src="data:image/jpeg;base64,')
    assert str(a) not in shown
    assert session.answer("left") is session
    assert session.decision.clicks == 1
    session.undo()
    assert session.decision.clicks == 0
    question = session.next()
    assert question is not None
    assert session.sheet(question).size[0] > 1000
    while session.next() is not None:
        session.answer("both")
    assert str(a) in session._repr_html_()  # at the end the names are told


@pytest.mark.slow
def test_trained_against_frozen_of_one_run(lcr: Path, birds: Path, tmp_path: Path) -> None:
    """Without --data: what the run was trained on. The verdict of the run can read the result."""
    run = Path(shutil.copytree(lcr, tmp_path / "run"))
    session = finesight.judge(run)
    assert (session.decision.a, session.decision.b) == ("frozen", "trained")
    assert session.judging.record.data == str(birds)
    assert session.judging.record.images == 24  # the test images
    trained = session.judging.nearest[1]
    while (question := session.next()) is not None:
        session.answer("left" if question.left == trained[question.query] else "right")
    assert session.decision.winner == "trained"
    decision = read_decision(run)
    assert decision is not None
    assert decision.winner == "trained"
    frozen = finesight.judge(f"{run}:frozen", run, images=10).judging.record.a
    assert frozen == session.judging.record.a


def test_a_fingerprint_is_known_before_the_encoder_is_saved(runs: tuple[Path, Path]) -> None:
    assert memory_fingerprint(Encoder.load(runs[0])) == fingerprint(runs[0])


def test_names_of_candidates(tmp_path: Path) -> None:
    run = tmp_path / "runs:odd"
    run.mkdir()
    assert CandidateName.parse(str(run)) == CandidateName(run)
    assert CandidateName.parse(f"{run}:frozen:gem") == CandidateName(run, "frozen", "gem")
    assert candidate_names(str(run), None) == (CandidateName(run, "frozen"), CandidateName(run))
    with pytest.raises(FineSightError, match="neither frozen nor a pooling"):
        CandidateName.parse(f"{run}:gme")
    with pytest.raises(FineSightError, match="one candidate"):
        candidate_names(f"{run}:frozen", None)


def test_refusals(pair: tuple[Path, Path], unlabeled: Path, tmp_path: Path) -> None:
    a, b = pair
    with pytest.raises(FineSightError, match="same features"):
        finesight.judge(a, f"{a}:rationale-gem", unlabeled)
    with pytest.raises(FineSightError, match="no encoder"):
        finesight.judge(tmp_path, b, unlabeled)
    with pytest.raises(FineSightError, match="is not a run"):
        finesight.judge(a, data=unlabeled)  # nobody knows what it began with
    for options, words in (
        (["--show"], "no answers about"),
        (["--export", "clicks.txt"], "no answers about"),
    ):
        refused = CliRunner().invoke(app, ["judge", str(a), str(b), *options])
        assert isinstance(refused.exception, FineSightError)
        assert words in str(refused.exception)
    finesight.judge(a, b, unlabeled).answer("left")
    refused = CliRunner().invoke(app, ["judge", str(a), str(b), "--export", str(tmp_path / "clicks.txt")])
    assert "ends in .csv or .json" in str(refused.exception)
