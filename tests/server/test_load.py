"""benchmarks/load.py in short: a server at its limit answers right or refuses in a sentence, and stays small."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import TIMEOUT, environment
from serving import drawn

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "load.py"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Twenty seconds of it, with a small network and drawn pictures."""
    folder = tmp_path_factory.mktemp("load")
    photos = folder / "photos"
    photos.mkdir()
    for number in range(64):
        (photos / f"{number:02d}.jpg").write_bytes(drawn("JPEG", (96, 72), seed=number))
    network = ["--backbone", "test_resnet", "--weights", "random", "--output-stride", "8", "--resolution", "64"]
    size = ["--images", "44", "--uploads", "12", "--asked", "16", "--minutes", "0.333"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(photos), *network, *size, "-o", str(folder / "load.json")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / "load.json").read_text()))


@pytest.mark.slow
def test_no_wrong_answer(result: dict[str, Any]) -> None:
    """An answer is also wrong if a refusal has no sentence or does not say when to come again."""
    assert (result["wrong"], result["errors"], result["words"]) == (0, 0, [])
    assert result["answered"] > 100
    right, asked = result["right_after_the_load"]
    assert right == asked >= 100
    assert [(one["added"], one["removed"]) for one in result["index_changes"]] == [(4, 2), (2, 4)]
    assert len(result["routes"]) >= 16


@pytest.mark.slow
def test_it_refuses_what_is_too_much(result: dict[str, Any]) -> None:
    assert result["refused"] > 0, "the line was never full: nothing was tested"
    assert result["levels"]["96"]["refused"] > result["levels"]["8"]["refused"]
    assert len(result["attacks"]) > 10


@pytest.mark.slow
def test_it_stays_small(result: dict[str, Any]) -> None:
    samples, after = result["samples"], result["idle"]["after"]
    assert len(samples["at"]) >= 6
    assert max(samples["memory_mb"]) < result["idle"]["before"]["memory_mb"] + 300
    assert max(samples["threads"]) < 40
    assert after["files"] <= result["idle"]["before"]["files"] + 5
    assert result["log"]["tracebacks"] == 0
    assert result["end"]["exit_code"] in (0, 130)


# --- its checks can fail ----------------------------------------------------------------------------------------------


def answers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("load_answers")


def test_wrong_hits_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = answers(monkeypatch)
    known = {str(n): 1 - n / 100 for n in range(60)}
    right = dict(list(known.items())[:24])
    assert checks.same_hits(right, known) == ""
    assert checks.same_hits({**right, "3": right["3"] + 2e-5}, known) != ""
    assert checks.same_hits({**right, "3": right["3"] + 5e-6}, known) == ""
    assert checks.same_hits({("70" if n == "3" else n): score for n, score in right.items()}, known) != ""
    assert checks.same_hits(dict(list(right.items())[1:]), known) != ""
    swapped = dict(sorted(right.items(), key=lambda hit: (hit[0] != "1", -hit[1])))
    assert checks.same_hits(swapped, known) != ""


def test_while_the_index_changes_only_what_changes_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = answers(monkeypatch)
    scores = {str(n): 1 - n / 100 for n in range(80)}
    first, second = scores.keys() - {"1", "3"}, scores.keys() - {"2"}  # 2 goes; 1 and 3 come
    world = checks.World(set(first), set(second), changing=True)
    known = [{n: score for n, score in scores.items() if n in part} for part in (first, second)]
    between = {n: score for n, score in scores.items() if n not in ("1", "2")}  # 2 has gone and 1 has not come yet
    hits = dict(list(between.items())[:24])
    assert checks.hits_between(hits, known, world) == ""
    lost = {n: score for n, score in between.items() if n != "5"}
    assert checks.hits_between(dict(list(lost.items())[:24]), known, world) != ""
    assert checks.hits_between({**hits, "4": 0.5}, known, world) != ""
    assert checks.hits_between({**hits, "foreign": 0.5}, known, world) != ""
