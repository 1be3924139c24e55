"""The routes of judging: questions that tell nothing of the candidates, answers, undo, pictures, and their schema."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import ITEMS, draw_birds
from PIL import Image
from starlette.testclient import TestClient

import finesight
from finesight.evaluation.judging import Judging, read_decision
from finesight.evaluation.judgments import Candidate
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder_folder import fingerprint
from finesight.search.engines import open_index
from finesight.search.watch import FolderWatch
from finesight.server.app import create_judge_app
from finesight.server.config import ServerConfig
from finesight.server.feature_sets import AFTER, BEFORE, FeatureSet
from finesight.server.judge_desk import JudgeDesk, JudgeRoom
from finesight.server.service import SearchService
from finesight.server.upkeep import Upkeep
from indexes import small_encoder
from serving import BASE, Web, drawn, indexed, refused

A, B = Candidate("frozen network", "f" * 32, "gem"), Candidate("trained network", "e" * 32, "gem")
IMAGES = 30


def make_desk(folder: Path, config: ServerConfig | None = None) -> JudgeDesk:
    """Thirty pictures; A finds the next one nearest, B the one after that."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    paths = [f"bird {number}.png" for number in range(IMAGES)]
    for number, name in enumerate(paths):
        (folder / "images" / name).write_bytes(drawn(seed=number))
    every = np.arange(IMAGES)
    nearest = (every + 1) % IMAGES, (every + 2) % IMAGES
    root = str(folder / "images")
    judging = Judging(A, B, nearest, paths, data=root, file=folder / "run" / "judgments.json", seed=5)
    return JudgeDesk(judging, root, config or ServerConfig(), on_end=lambda decision: f"kept: {decision.winner}")


def client(desk: JudgeDesk, **config: object) -> TestClient:
    room = JudgeRoom(lambda: desk, ServerConfig(**config))  # type: ignore[arg-type]
    return TestClient(create_judge_app(room), base_url=BASE, follow_redirects=False)


@pytest.fixture
def desk(tmp_path: Path) -> JudgeDesk:
    return make_desk(tmp_path)


@pytest.fixture
def judge(desk: JudgeDesk) -> TestClient:
    return client(desk)


def answer(judge: TestClient, choice: str, question: int | None = None) -> dict[str, Any]:
    number = judge.get("/api/judge").json()["question"]["number"] if question is None else question
    done = judge.post("/api/judge/answers", params={"question": number, "choice": choice})
    assert done.status_code == 200, done.text
    return done.json()


def side_of(question: dict[str, Any], step: int) -> str:
    """Where the candidate is that finds the picture ``step`` further on."""
    return "left" if question["left"] == (question["query"] + step) % IMAGES else "right"


def test_a_question_does_not_tell_who_is_who(judge: TestClient) -> None:
    state = judge.get("/api/judge").json()
    assert state["state"] == "asking"
    assert state["names"] is state["words"] is state["winner"] is None
    assert (state["images"], state["disagree"], state["answers"]) == (IMAGES, IMAGES, 0)
    question = state["question"]
    assert {(question["query"] + 1) % IMAGES, (question["query"] + 2) % IMAGES} == {question["left"], question["right"]}
    assert "network" not in json.dumps(state)
    assert judge.get("/api/judge", params={"reveal": "true"}).json()["names"]["b"] == "trained network"


def test_answers_decide_and_undo_reopens(judge: TestClient, tmp_path: Path) -> None:
    lows = []
    while (question := judge.get("/api/judge").json()["question"]) is not None:
        lows.append(answer(judge, side_of(question, 2))["low"])
    assert lows == sorted(lows)
    assert len(lows) == 10
    end = judge.get("/api/judge").json()
    assert (end["state"], end["winner"], end["names"]["for_b"]) == ("decided", "trained network", 10)
    assert "trained network is better" in end["words"]
    for _ in range(100):
        if (end := judge.get("/api/judge").json())["verdict"]:
            break
    assert end["verdict"] == "kept: trained network"
    again = judge.post("/api/judge/undo").json()
    assert (again["state"], again["answers"], again["question"]["number"]) == ("asking", 9, 10)
    assert again["names"] is None
    stored = json.loads((tmp_path / "run" / "judgments.json").read_text())
    assert len(stored["comparisons"][0]["judgments"]) == 9


def test_an_answer_that_came_too_late(judge: TestClient) -> None:
    refused(judge.post("/api/judge/undo"), 409, "no answer to take back")
    answer(judge, "both", 1)
    late = judge.post("/api/judge/answers", params={"question": 1, "choice": "left"})
    refused(late, 409, "not asked any more")
    wrong = judge.post("/api/judge/answers", params={"question": 2, "choice": "middle"})
    assert wrong.status_code == 422
    assert judge.get("/api/judge").json()["answers"] == 1


def test_pictures(judge: TestClient, tmp_path: Path) -> None:
    picture = judge.get("/api/judge/images/3")
    assert picture.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(picture.content)).size == (48, 36)
    refused(judge.get(f"/api/judge/images/{IMAGES}"), 404, "no such picture")
    (tmp_path / "images" / "bird 3.png").unlink()
    refused(judge.get("/api/judge/images/3"), 404, "no longer")
    outside = tmp_path / "secret.png"
    outside.write_bytes(drawn())
    (tmp_path / "images" / "bird 4.png").unlink()
    (tmp_path / "images" / "bird 4.png").symlink_to(outside)
    refused(judge.get("/api/judge/images/4"), 403, "outside")


def test_answers_as_files(judge: TestClient) -> None:
    answer(judge, "neither")
    table = judge.get("/api/judge/answers", params={"format": "csv"})
    assert table.headers["content-disposition"].endswith('filename="judgments.csv"')
    assert table.text.splitlines()[0].startswith("query,nearest_a")
    assert judge.get("/api/judge/answers", params={"format": "json"}).json()["judgments"][0]["choice"] == "neither"


def test_the_guard_stands_before_it(desk: JudgeDesk) -> None:
    guarded = client(desk, token="secret")
    assert guarded.get("/api/judge").status_code == 401
    assert guarded.get("/api/judge", headers={"Authorization": "Bearer secret"}).status_code == 200
    foreign = client(desk).post("/api/judge/undo", headers={"Origin": "https://elsewhere.example"})
    assert foreign.status_code == 403


def test_pages(judge: TestClient, web: Web) -> None:
    assert "Which of the two" in judge.get("/").text
    assert judge.get("/judge").text == judge.get("/").text == web.get("/judge").text
    refused(web.get("/api/judge"), 404, "nothing to judge")  # a search server with one set of features
    document = judge.get("/openapi.json").json()
    assert {"/api/judge", "/api/judge/answers", "/api/judge/undo", "/api/judge/images/{image}"} <= set(
        document["paths"]
    )
    assert "409" in document["paths"]["/api/judge/undo"]["post"]["responses"]


def test_the_index_is_not_needed(judge: TestClient) -> None:
    assert judge.get("/api/items").status_code == 404


# --- features before and after training, of ``finesight up`` ----------------------------------------------------------


def test_the_search_server_judges_what_it_has_before_and_after_training(tmp_path: Path) -> None:
    images = draw_birds(tmp_path / "birds")
    run = small_encoder(tmp_path / "run", seed=3)
    indexed(run, images)
    indexed(small_encoder(run / "frozen"), images)
    told: list[Path] = []
    upkeep = Upkeep(run, FolderWatch(images, 5), None, judged=lambda run: told.append(run) or "kept: trained")
    before, after = run / "frozen", run
    config = ServerConfig()
    service = SearchService(open_index(before / "index"), TorchEmbedder.load(before), config, upkeep, name=BEFORE)
    try:
        web = Web(service)
        web.refuses(404, "judge", "before and after training")
        service.features.put(AFTER, FeatureSet(open_index(after / "index"), TorchEmbedder.load(after)))
        assert web.ask("judge")["images"] == ITEMS
        names = web.ask("judge", reveal=True)["names"]
        assert (names["a"], names["b"]) == ("frozen", "trained")
        assert web.get(f"/api/judge/images/{ITEMS - 1}").status_code == 200
        record = web.service.judging.find().judging.record
        assert (record.a.fingerprint, record.b.fingerprint) == (fingerprint(before), fingerprint(after))
        nearest = web.service.judging.find().judging.nearest[1]
        while (question := web.ask("judge")["question"]) is not None:
            answer(web, "left" if nearest[question["query"]] == question["left"] else "right")
        decision = read_decision(run)
        assert decision is not None
        assert decision.winner == "trained"
        for _ in range(100):
            if web.ask("judge")["verdict"]:
                break
        assert told == [run]
        same = finesight.judge(run, data=images)  # the command goes on with the same answers
        assert same.judging.record.pair == record.pair
        assert same.decision.winner == "trained"
    finally:
        service.close(5)
