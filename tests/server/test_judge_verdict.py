"""From training to a choice by clicks: a real run, answers through the routes of the page, what the run then holds."""

from __future__ import annotations

import time
from pathlib import Path

from starlette.testclient import TestClient

import finesight
from finesight.report.judge import rewrite_verdict
from finesight.server.app import create_judge_app
from finesight.server.config import ServerConfig
from finesight.server.judge_desk import JudgeDesk, JudgeRoom
from finesight.training.config import RuntimeConfig
from finesight.training.run_folder import RunFolder
from finesight.training.verdict import read_verdict
from serving import BASE
from small import SMALL

QUIET = RuntimeConfig(accelerator="cpu", progress=False)


def state_of(run: Path) -> tuple[str, str, str, str]:
    """The verdict, what it rests on, what is kept by it, and what the encoder of the run is."""
    found = read_verdict(run)
    assert found is not None
    return found.verdict, found.by, found.kept, finesight.load(run).config.method


def wait_for(run: Path, by: str, words: str = "") -> None:
    """The verdict is written after the answer was taken, and its file last of all."""
    end = time.monotonic() + 60
    while (found := read_verdict(run)) is None or found.by != by or words not in found.words:
        assert time.monotonic() < end, found
        time.sleep(0.05)


def test_clicks_choose_what_a_run_keeps_and_undoing_them_takes_it_back(unlabeled: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {key: value for key, value in SMALL.items() if key != "data"}
    finesight.train(unlabeled, run, runtime=QUIET, **settings, **{"rationale.projections": 2})
    before = state_of(run)
    assert before == ("cannot tell", "nothing", "trained", "lcr")
    session = finesight.judge(run, runtime=QUIET)
    frozen = session.judging.nearest[0]
    desk = JudgeDesk(
        session.judging,
        str(session.source.root),
        ServerConfig(),
        on_end=lambda decision: rewrite_verdict(RunFolder(run), QUIET),
    )
    web = TestClient(create_judge_app(JudgeRoom(lambda: desk, ServerConfig())), base_url=BASE)

    def click(choice: str | None = None) -> dict[str, object]:
        """By default, for the frozen network."""
        question = web.get("/api/judge").json()["question"]
        side = "left" if question["left"] == frozen[question["query"]] else "right"
        done = web.post("/api/judge/answers", params={"question": question["number"], "choice": choice or side})
        assert done.status_code == 200, done.text
        return done.json()

    while (answered := click())["state"] == "asking":
        assert state_of(run) == before, "nothing changes until it is decided"
    assert (answered["state"], answered["winner"]) == ("decided", "frozen")
    wait_for(run, "clicks")
    assert state_of(run) == ("worse", "clicks", "frozen", "frozen")
    while not (told := web.get("/api/judge").json()["verdict"]):
        time.sleep(0.05)
    assert "The frozen features are kept" in told
    assert "Training did not help" in (run / "report.html").read_text()

    assert web.post("/api/judge/undo").json()["state"] == "asking"
    wait_for(run, "nothing")
    assert state_of(run) == before
    assert not (run / "encoder-trained").exists()

    assert click()["winner"] == "frozen", "decided again"
    wait_for(run, "clicks")
    assert state_of(run) == ("worse", "clicks", "frozen", "frozen")
    assert finesight.judge(run, runtime=QUIET).decision.winner == "frozen", "a later session knows the answers"

    while web.get("/api/judge").json()["answers"]:
        web.post("/api/judge/undo")
    while click("both")["state"] == "asking":
        pass
    wait_for(run, "nothing", "Clicks: ")  # an end without a winner is told, too
    assert state_of(run) == before
