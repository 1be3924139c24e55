"""The short form of ``make chaos``: two minutes of kills, full disks and flipped bits, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import Report
from chaos.faults import SENTENCE, SURVIVED, NoGroup, compared, judge, limited_group
from chaos.kills import Trial
from processes import TIMEOUT, Finished, environment

TESTS = str(Path(__file__).parents[1])
EARLIER = 300  # kills that the file has already


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``python -m chaos`` found in a short run, with a file that has more kills than it is to make."""
    out = tmp_path_factory.mktemp("chaos") / "chaos.json"
    before = Report(
        out, [Trial("up", ["1.000 s"] * EARLIER)], runs=[{"command": "an earlier form", "date": "2026-11-18"}]
    )
    before.write()
    path = os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ("--seed", "1", "--kills", "16", "--each", "2", "--minutes", "1", "--without", "up", "index-milvus")
    faults = ("--faults", "disk", "read-only", "images", "bits", "--faults-for", "cache", "train-lcr", "index")
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *options, *faults, "--count", "1", "--all-faults", "--out", out],
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.slow
def test_killed_at_random_moments(report: dict[str, Any]) -> None:
    assert [trial for trial in report["raw"]["trials"] if trial["problems"]] == []
    assert EARLIER + 4 <= report["kills"] <= EARLIER + 17  # 16 more, if the machine is not too busy
    assert report["raw"]["runs"][-1]["kills"] == report["kills"] - EARLIER
    assert {trial["run"] for trial in report["raw"]["trials"][1:]} == {1}
    assert report["most_steps_repeated"] <= 1


@pytest.mark.slow
def test_faults(report: dict[str, Any]) -> None:
    good = ("survived", "sentence", "skipped")
    assert [fault for fault in report["raw"]["faults"] if fault["outcome"] not in good] == []
    assert report["faults"] >= 21


def test_a_run_that_was_ended_goes_on_and_another_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    first = Report(out)
    first.begin("python -m chaos --kills 5")
    first.add_trial(Trial("index", ["write 3", "write 1"]))
    first.add_faults("clock index", [])
    first.write()

    again = Report.read(out)
    run = again.begin("python -m chaos --kills 5")
    assert (len(again.runs), run["kills"], run["parts"], run["seed"]) == (1, 2, ["clock index"], 0)

    other = Report.read(out)
    assert other.begin("python -m chaos --kills 6")["kills"] == 0, "another command is another run"
    assert other.run["seed"] == 1, "with other faults"

    again.run["ended"] = True
    again.write()
    new = Report.read(out)
    assert new.begin("python -m chaos --kills 5")["kills"] == 0, "it had ended: these are five more"
    assert len(new.runs) == 2
    assert new.kills == {"index": 2}
    assert new.run["commit"]
    assert new.run["date"]


def test_what_counts_as_a_sentence() -> None:
    def outcome(words: str) -> str:
        return judge("full disk", "index", Finished(2, "", f"finesight: {words}\n")).outcome

    assert outcome("x.npz cannot be written: no space left on device; make room.") == SENTENCE
    paths = "[('a/encoder.safetensors', 'b/encoder.safetensors', \"[errno 28] no space left on device: 'b'\")]"
    assert outcome(f"The index b cannot be written: {paths}") == "not a sentence"
    assert outcome("[Errno 28] No space left on device: 'b'") == "not a sentence"
    assert outcome("it failed: OSError(28, 'No space left on device')") == "not a sentence"


def test_images_that_were_changed_are_left_out_or_those_of_an_image() -> None:
    right = {"a": "1", "b": "2", "c": "3"}
    assert compared(right, right, set()) == SURVIVED
    assert compared({"a": "1", "c": "3"}, right, {"b"}) == SURVIVED, "left out"
    assert compared({"a": "1", "b": "1", "c": "3"}, right, {"b"}) == SURVIVED, "replaced by a copy of a"
    assert "no image" in compared({"a": "1", "b": "9", "c": "3"}, right, {"b"})
    assert "no image" in compared({"a": "2", "b": "2", "c": "3"}, right, {"b"}), "that of another one"
    assert "not there" in compared({"a": "1", "b": "2"}, right, {"b"})


def test_a_group_of_version_2(tmp_path: Path) -> None:
    """Its files, in a folder that is none: most machines have one version only."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    with limited_group(300, tmp_path) as group:
        assert group.parent == tmp_path
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
        limit = group / "memory.max"
        assert limit.read_text() == str(300 * 2**20)
        limit.unlink()  # the files of a real group go with it
    assert not group.exists()


def test_a_group_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    with limited_group(300, tmp_path) as group:
        limit = group / "memory.limit_in_bytes"
        assert limit.read_text() == str(300 * 2**20)
        limit.unlink()
    assert not group.exists()


def test_no_group_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoGroup, match="no memory controller"), limited_group(300, tmp_path):
        pass
    (tmp_path / "memory").write_text("")
    with pytest.raises(NoGroup, match="no memory controller"), limited_group(300, tmp_path):
        pass
    (tmp_path / "cgroup.controllers").write_text("memory\n")  # without the rest: nothing can be set
    with pytest.raises(NoGroup, match="no group can be made"), limited_group(300, tmp_path):
        pass
