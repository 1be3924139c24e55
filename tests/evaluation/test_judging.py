"""Judging two candidates: which pictures are asked about, what a judge with labels finds, and the file of clicks."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.evaluation.judging import Judging, decide, nearest_images, read_decision
from finesight.evaluation.judgments import Candidate, Judgment, Record, as_csv, read_records
from finesight.features.encoder_folder import fingerprint
from indexes import small_encoder
from reference import judging as reference

A, B = Candidate("frozen", "f" * 32, "gem"), Candidate("trained", "e" * 32, "rationale-gem")
LABELS = np.repeat(np.arange(8), 8)


def features(seed: int, noise: float = 1.2) -> np.ndarray:
    """Eight groups of eight with noise of their own."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((8, 6))
    return (centers[LABELS] + noise * rng.standard_normal((64, 6))).astype(np.float32)


def judging(file: Path | None = None, *, a: Candidate = A, b: Candidate = B, seed: int | None = 7) -> Judging:
    pair = nearest_images(features(1)), nearest_images(features(2, noise=0.6))
    return Judging(a, b, pair, [f"{i:02}.jpg" for i in range(64)], data="/birds", file=file, seed=seed)


def say(session: Judging, right: bool = True) -> str:
    """What a judge who knows the labels answers to the question that is asked."""
    question = session.question
    assert question is not None
    left, other = (LABELS[image] == LABELS[question.query] for image in (question.left, question.right))
    return "both" if left and other else "neither" if not left and not other else "left" if left == right else "right"


def test_exactly_the_queries_with_different_answers_are_asked_and_clicks_are_the_rank1_difference() -> None:
    session = judging()
    nearest = reference.nearest(features(1).tolist()), reference.nearest(features(2, noise=0.6).tolist())
    said, rank1_a, rank1_b = reference.preferences(*nearest, LABELS.tolist())
    assert [list(found) for found in session.nearest] == [nearest[0], nearest[1]]
    assert session.record.disagree == len(said)
    asked, prefers = [], []
    for query in range(len(said)):  # clicks after the decision are not weighed, so they are looked at one by one
        one = judging(seed=100 + query)
        question = one.question
        assert question is not None
        asked.append(question.query)
        one.answer(say(one))
        prefers.append(one.record.judgments[0].prefers)
    disagreeing = [i for i in range(64) if nearest[0][i] != nearest[1][i]]
    assert set(asked) <= set(disagreeing)
    assert len(set(asked)) > len(disagreeing) / 3  # the order is drawn
    for query, side in zip(asked, prefers, strict=True):
        click = said[disagreeing.index(query)]
        assert side == {1: "b", -1: "a", 0: None}[click]
    full = Record(A, B, "/birds", 64, len(said), 0)
    assert rank1_b - rank1_a == pytest.approx(100 * sum(said) / 64)
    assert full.disagree * np.mean(said) / full.images * 100 == pytest.approx(rank1_b - rank1_a)


def test_the_better_candidate_is_chosen_and_nothing_is_asked_afterwards() -> None:
    session = judging()
    while session.question is not None:
        session.answer(say(session))
    decision = session.decision
    assert (decision.state, decision.winner) == ("decided", "trained")
    assert decision.low > 0
    assert decision.e_value >= 20
    assert decision.clicks == decision.for_a + decision.for_b + decision.ties < 64
    assert "trained is better than frozen" in decision.words
    with pytest.raises(FineSightError, match="not asked any more"):
        session.answer("left")


def test_sides_are_drawn_and_do_not_tell_who_is_who() -> None:
    lefts = []
    for seed in range(60):
        session = judging(seed=seed)
        question = session.question
        assert question is not None
        lefts.append(question.left == session.nearest[0][question.query])
    assert 15 < sum(lefts) < 45


def test_answers_survive_and_undo_takes_back_the_last(tmp_path: Path) -> None:
    file = tmp_path / "run" / "judgments.json"
    session = judging(file, seed=None)
    for choice in ("left", "both", "neither", "right"):
        session.answer(choice)
    again = judging(file, seed=None)
    assert again.question == session.question
    assert again.decision == session.decision
    assert [one.choice for one in again.record.judgments] == ["left", "both", "neither", "right"]
    before = judging(file).record.judgments[:3]
    again.undo()
    question = again.question
    assert question is not None
    assert question.number == 4
    assert again.paths[question.query] == session.record.judgments[3].query
    assert read_records(file)[0].judgments == before
    for _ in range(3):
        again.undo()
    with pytest.raises(FineSightError, match="no answer to take back"):
        again.undo()
    assert again.decision.clicks == 0


def test_an_answer_to_another_question_is_refused() -> None:
    session = judging()
    session.answer("left", number=1)
    with pytest.raises(FineSightError, match="not asked any more"):
        session.answer("left", number=1)  # a double click
    with pytest.raises(FineSightError, match="no answer 'middle'"):
        session.answer("middle")
    assert session.decision.clicks == 1


def test_two_sessions_on_one_file_lose_no_click(tmp_path: Path) -> None:
    file = tmp_path / "judgments.json"
    one, other = judging(file), judging(file, b=Candidate("other", "d" * 32, "gem"))
    one.answer("left")
    other.answer("right")
    one.answer("both")
    assert [len(record.judgments) for record in read_records(file)] == [1, 2]


def test_a_killed_process_leaves_the_clicks_before(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from finesight.evaluation.judgments import Candidate, Judgment, Record, update_record\n"
        "pair = Candidate('frozen', 'f' * 32, 'gem'), Candidate('trained', 'e' * 32, 'rationale-gem')\n"
        "record = Record(*pair, '/birds', 64, 40, 7)\n"
        "for choice in ('left', 'neither'):\n"
        "    click = Judgment(choice, 'x', 'y', 'a', choice, '')\n"
        "    record = update_record(Path(sys.argv[1]), record, lambda known: (*known, click))\n"
        "assert 'torch' not in sys.modules\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "judgments.json")], check=False)
    assert done.returncode == -9
    assert [one.choice for one in judging(tmp_path / "judgments.json").record.judgments] == ["left", "neither"]


def test_no_disagreement_is_an_answer() -> None:
    same = nearest_images(features(1))
    session = Judging(A, B, (same, same), [str(i) for i in range(64)], data="/birds")
    assert session.question is None
    decision = session.decision
    assert (decision.state, decision.winner, decision.low, decision.high) == ("exhausted", None, 0, 0)
    assert "nothing to judge" in decision.words


def test_only_ties_end_with_an_interval_around_zero() -> None:
    session = judging()
    while session.question is not None:
        session.answer("both")
    decision = session.decision
    assert (decision.state, decision.winner, decision.e_value, decision.clicks_left) == ("exhausted", None, 1, None)
    assert decision.low < 0 < decision.high
    assert decision.ties == decision.clicks == session.record.disagree


def test_judging_is_called_off_when_it_would_take_too_many_clicks() -> None:
    record = Record(A, B, "/birds", 2000, 1000, 0, judging_clicks("abt" * 40))
    far = decide(record)
    assert (far.state, far.clicks, far.winner) == ("far", 120, None)
    assert "worth more clicks" in far.words
    assert far.leader is None
    ahead = decide(Record(A, B, "/birds", 2000, 1000, 0, judging_clicks("abtbb")))
    assert (ahead.leader, ahead.winner) == ("trained", None)
    assert "trained leads" in ahead.words
    assert decide(Record(A, B, "/birds", 2000, 1000, 0, judging_clicks("abt" * 39))).state == "asking"
    small = decide(Record(A, B, "/birds", 2000, 50, 0, judging_clicks("t" * 40)))
    assert (small.state, small.share) == ("equal", 2.5)
    assert max(-small.low, small.high) <= 1


def judging_clicks(prefers: str) -> tuple[Judgment, ...]:
    choices = {"a": "left", "b": "right", "t": "both"}
    return tuple(Judgment(str(n), "x", "y", "a", choices[one], "") for n, one in enumerate(prefers))


# --- the decision about a run ---------------------------------------------------------------------------------------


def test_the_decision_is_about_the_encoder_that_the_run_holds(tmp_path: Path) -> None:
    run = small_encoder(tmp_path / "run")
    assert read_decision(run) is None
    trained = Candidate("trained", fingerprint(run), "average")
    session = judging(run / "judgments.json", b=trained)
    assert read_decision(run) is None
    while session.question is not None:
        session.answer(say(session))
    decision = read_decision(run)
    assert decision == session.decision
    assert decision is not None
    assert decision.winner == "trained"
    (run / "encoder").rename(run / "encoder-trained")  # the verdict keeps another one
    small_encoder(tmp_path / "other", seed=1)
    shutil.copytree(tmp_path / "other" / "encoder", run / "encoder")
    assert read_decision(run) == decision
    (run / "encoder-trained").rename(tmp_path / "away")  # trained anew
    assert read_decision(run) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for content in ("{", "[]", json.dumps({"format": 2}), json.dumps({"format": 1, "comparisons": [{}]})):
        (tmp_path / "judgments.json").write_text(content)
        with pytest.raises(FineSightError, match=r"judgments\.json cannot be read"):
            judging(tmp_path / "judgments.json")


def test_clicks_as_a_table() -> None:
    session = judging()
    session.answer("left")
    session.answer("neither")
    rows = list(csv.DictReader(io.StringIO(as_csv(session.record))))
    assert [row["choice"] for row in rows] == ["left", "neither"]
    assert rows[0]["prefers"] == rows[0]["left"]
    assert rows[1]["prefers"] == ""
    nearest = session.nearest[0][int(rows[0]["query"][:2])]
    assert rows[0]["nearest_a"] == session.paths[int(nearest)]


def test_too_few_images() -> None:
    with pytest.raises(FineSightError, match="at least 3"):
        Judging(A, B, (np.array([1, 0]), np.array([1, 0])), ["a", "b"], data="/birds")
