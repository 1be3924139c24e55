"""``bench defaults``: features that are embedded once, the bar, and the command as a user types it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from finesight import api
from finesight.data.sources import open_source
from finesight.errors import FineSightError, Interrupted
from finesight.evaluation.retrieval import RetrievalScores
from finesight.features.encoder import Encoder
from finesight.paper.bench import run_defaults
from finesight.paper.defaults import POOLINGS, DefaultsBench, Task, queries_file
from finesight.paper.defaults_scores import TestImages, feature_key
from finesight.paper.defaults_table import bar_rows, blocks, read_results, score_rows
from finesight.paper.markdown import update_text
from finesight.paper.processes import run_commands
from finesight.paper.store import write_queries
from finesight.training.run_folder import RunFolder
from finesight.training.verdict import write_verdict
from networks import small_encoder
from processes import command, refused, succeeded

ROOT = Path(__file__).resolve().parents[2]


def bench(folder: Path, **options: Any) -> DefaultsBench:
    places: dict[str, Any] = {"results": folder / "results", "work": folder, "runtime": tiny.runtime(folder)}
    return DefaultsBench(**{"data": {}, "weights": "random", "quick": True, "minutes": 0, **places, **options})


# --- features ---------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_evaluate_and_no_image_is_embedded_twice(birds: Path, tmp_path: Path) -> None:
    encoder, runtime = small_encoder("rationale", "finesight"), tiny.runtime(tmp_path)
    images = TestImages.open(open_source(birds), encoder.config.framing, tmp_path / "features", runtime)
    names = ["gem", "rationale"]
    scored = images.score(encoder, names)
    for name in names:
        options: dict[str, Any] = {"linear": False, "cache_dir": runtime.cache_dir, "progress": False}
        known = api.evaluate(encoder, birds, pooling=name, **options).scores["retrieval"]
        assert scored[name].summary() == known
    files = sorted((tmp_path / "features").iterdir())
    assert len(files) == 2
    for file in files:  # a network that finds each image's class at once
        labels = images.cache.source.labels
        assert labels is not None
        np.save(file, np.eye(labels.max() + 1, dtype=np.float32)[labels])
    assert images.score(encoder, names)["gem"].score("mAP") == 100
    assert images.score(encoder.with_pooling("gem"), ["gem"])["gem"].score("mAP") == 100, "its branch is not used"
    assert sorted((tmp_path / "features").iterdir()) == files


def test_a_network_that_was_kept_has_the_features_of_the_frozen_one(birds: Path, tmp_path: Path) -> None:
    frozen = small_encoder("average", None)
    images = TestImages.open(open_source(birds), frozen.config.framing, tmp_path, tiny.runtime(tmp_path))
    key = feature_key(frozen, images.cache, "gem")
    config = frozen.config.model_copy(update={"pooling": "gem", "method": "lcr"})
    backbone = frozen.backbone
    kept = Encoder(config, backbone)
    assert feature_key(kept, images.cache, "gem") == key
    assert feature_key(kept, images.cache, "average") != key
    other = Encoder(config.model_copy(update={"resolution": 48}), backbone)
    assert feature_key(other, images.cache, "gem") != key
    next(backbone.parameters()).data.mul_(1.001)
    assert feature_key(kept, images.cache, "gem") != key


# --- the bar ----------------------------------------------------------------------------------------------------------


def write_results(folder: Path, domain: str, frozen: Sequence[float], trained: Sequence[float]) -> None:
    """Frozen scores by pooling and those of three or fewer seeds; mAP is half of rank-1."""

    def result(task: Task, scores: dict[str, float], **more: Any) -> None:
        for name, score in scores.items():
            hits = np.arange(1000) < 10 * score
            queries = RetrievalScores({"rank1": hits, "rank5": hits, "mAP": hits / 2})
            write_queries(queries_file(folder, task, name), queries)
        made = {name: {"rank1": one, "rank5": one, "mAP": one / 2} for name, one in scores.items()}
        facts = {"domain": task.domain, "seed": task.seed, "setting": {"minutes": 20.0}, "retrieval": made}
        words = {key: "-" for key in ("command", "date", "machine")}
        file = folder / domain / f"{task.name}.json"
        file.write_text(json.dumps({**facts, "pooling": None, **words, **more}))

    result(Task(domain), dict(zip(POOLINGS, frozen, strict=True)))
    plan = {"steps": 9, "batch_size": 8, "resolution": 128, "colors": {"hue": 0.1}}
    facts = {"pooling": "rationale-gem", "plan": plan, "minutes": 19.5, "verdict": None, "resolution": 224}
    for seed, score in enumerate(trained):
        result(Task(domain, seed), {"rationale-gem": score}, **facts)


@pytest.mark.parametrize(
    ("domain", "trained", "words"),
    [
        ("birds", (73.1, 73.0, 72.9), "pass"),
        ("birds", (73.1, 73.0, 72.8), "fail: rank-1 +2.97, +3 wanted"),
        ("drawn", (69.0, 70.0, 70.0), "pass"),  # 0.33 below, deviation 0.58
        ("drawn", (69.5, 69.5, 69.4), "fail: rank-1 0.53 below frozen, deviation 0.06; mAP 0.27 below"),
        ("cars", (80.0, 80.0), "open: 2 of 3 seeds"),
    ],
)
def test_the_bar(tmp_path: Path, domain: str, trained: Sequence[float], words: str) -> None:
    write_results(tmp_path, domain, (60, 70, 65, 68), trained)
    found = read_results(tmp_path)
    assert list(found) == [domain]
    (row,) = bar_rows(found)
    assert row["gain"] == domain
    assert row["bar"].startswith(words)
    mean, std = np.mean(trained) - 70, np.std(trained, ddof=1)
    assert row["rank-1"].startswith(f"{mean:+.2f} ± {std:.2f} [")
    assert row["worst seed, rank-1"] == f"{min(trained) - 70:+.2f}"
    labels = [row["features"] for row in score_rows(found)]
    assert "frozen, GeM (best rank-1, mAP)" in labels
    assert labels[-1] == "finesight train --minutes 20, rationale-gem"


def test_the_docs_show_the_committed_results() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    shown = blocks(read_results(ROOT / "results" / "defaults"))
    assert update_text(text, shown) == text, "run `finesight bench defaults --show --update docs/results.md`"
    for name in shown:
        assert f"<!-- bench:{name} -->" in text


# --- the command ------------------------------------------------------------------------------------------------------


def test_bad_input(birds: Path, class_folders: Path, tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match="Give --data-cars the folder of Stanford Cars, or leave cars out"):
        bench(tmp_path, data={"birds": str(birds)}).missing(["birds", "cars"], [0])
    with pytest.raises(FineSightError, match="needs labeled train and test images; this is class folders"):
        bench(tmp_path, data={"cars": str(class_folders)}).missing(["cars"], [0])
    with pytest.raises(FineSightError, match=r"no domain 'bird'\. Nearest: birds"):
        run_defaults(bench(tmp_path), seeds=[0], domains=["bird"])
    with pytest.raises(FineSightError, match="There are no results in"):
        run_defaults(bench(tmp_path), seeds=[0], show=True)
    for text in ("fish:frozen", "birds:melted", "birds"):
        with pytest.raises(FineSightError, match="There is no task"):
            Task.parse(text)
    assert Task.parse("cars:seed-12") == Task("cars", 12)
    assert Task.parse("drawn:frozen") == Task("drawn")


def test_a_result_of_other_settings_is_refused(birds: Path, tmp_path: Path) -> None:
    write_results(tmp_path / "results", "birds", (1, 2, 3, 4), [5])
    job = bench(tmp_path, data={"birds": str(birds)}, quick=False, minutes=5.0)
    with pytest.raises(FineSightError, match=r"minutes: 20\.0 then, 5\.0 now"):
        job.missing(["birds"], [0])
    assert job.missing(["birds"], [1]) == [Task("birds", 1)]


@pytest.mark.slow
def test_results_are_made_once_and_follow_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, results = bench(tmp_path), tmp_path / "results" / "drawn"
    assert job.missing(["drawn"], [0]) == [Task("drawn"), Task("drawn", 0)]
    run_defaults(job, seeds=[0], dry_run=True)
    assert "2 results to make, 1 training of 0 minutes among them" in " ".join(capsys.readouterr().err.split())
    job.make([Task("drawn")])  # in a process of its own, as the command does
    job.make_one(Task("drawn", 0))  # `finesight train` in a process of its own
    result = read(results / "seed-0.json")
    options: dict[str, Any] = {"linear": False, "cache_dir": tmp_path / "cache", "progress": False}
    evaluated = api.evaluate(tmp_path / "drawn" / "seed-0", tmp_path / "data" / "drawn", **options)
    assert result["pooling"] == evaluated.pooling
    assert result["retrieval"][result["pooling"]] == evaluated.scores["retrieval"]
    assert result["setting"]["train_images"] == 24
    assert result["train"].startswith("finesight train --data drawn")
    assert result["minutes"] > 0
    assert result["plan"]["steps"] == 2
    assert result["plan"]["reasons"]
    assert result["verdict"]["kept"] == "trained"

    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.*")}
    capsys.readouterr()
    run_defaults(job, seeds=[0], json_output=True)
    printed = capsys.readouterr()
    assert "All of it is done" in printed.err
    tables = json.loads(printed.out)
    assert [row["domain"] for row in tables["scores"]] == ["drawn"] * 5
    assert tables["bar"][0]["bar"] == "open: 1 of 3 seeds"
    assert tables["plans"][0]["training"] == "drawn, seed 0"
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.*")} == stamps

    embedded = {file: file.stat().st_mtime_ns for file in (tmp_path / "features").iterdir()}
    verdict = write_verdict(RunFolder(tmp_path / "drawn" / "seed-0"), keep="frozen")
    assert verdict is not None
    job.make_one(Task("drawn", 0))
    kept, frozen = read(results / "seed-0.json"), read(results / "frozen.json")
    assert kept["verdict"]["kept"] == "frozen"
    assert str(tmp_path) not in json.dumps(kept), "nothing of where it was made"
    assert kept["pooling"] == verdict.frozen_pooling
    assert kept["retrieval"] == frozen["retrieval"]
    assert kept["not_kept"]["retrieval"] == {result["pooling"]: result["retrieval"][result["pooling"]]}
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "features").iterdir()} == embedded


def read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content


@pytest.mark.slow
def test_the_command_as_typed(tmp_path: Path) -> None:
    words = ("bench", "defaults", "--quick", "--results", tmp_path, "--show")
    assert "There are no results" in refused(command(*words))
    write_results(tmp_path, "birds", (60, 70, 65, 68), (74, 74, 74))
    assert "pass" in succeeded(command(*words)).out


SCRIPT = f"""#!{sys.executable}
import pathlib, signal, sys, time
place = pathlib.Path(sys.argv[4])
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
(place / f"{{sys.argv[3]}}.began").touch()
deadline = time.monotonic() + float(sys.argv[5])
while time.monotonic() < deadline:
    time.sleep(0.01)
sys.exit(int(sys.argv[6]))
"""


@pytest.fixture
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of ``python -m finesight``: its words are a name, a folder, seconds and an exit code."""
    script = tmp_path / "python"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return tmp_path


def begun(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.began"))


def test_a_failure_is_told_when_all_others_are_done(fake_python: Path) -> None:
    commands = [[name, str(fake_python), "0", "3" if name == "b" else "0"] for name in "abc"]
    with pytest.raises(FineSightError, match="it broke"):
        run_commands(commands, "it broke")
    assert begun(fake_python) == ["a", "b", "c"]


def test_a_signal_reaches_all_that_run_and_ends_the_rest(fake_python: Path) -> None:
    def stop() -> None:
        while begun(fake_python) != ["a", "b"]:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted) as stopped:
        run_commands([[name, str(fake_python), "60", "0"] for name in "abc"], "it broke", jobs=2)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert begun(fake_python) == ["a", "b"]
