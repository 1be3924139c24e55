"""How far a run is: what the bar shows before anything is known, and ``progress.json`` for the page."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from finesight.data.cache import open_cache
from finesight.data.sources import open_source
from finesight.errors import FineSightError, Interrupted
from finesight.training.callbacks import Progress
from finesight.training.progress import Pace, RunProgress, rate_words, read_progress, time_words
from processes import TINY, Command, command, refused, trained

KEYS = {"phase", "words", "step", "total", "images_per_second", "seconds_left", "loss", "updated"}


def told(file: Path) -> dict[str, Any]:
    facts = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert facts.keys() == KEYS
    assert read_progress(file) == facts
    return dict(facts)


def test_before_the_first_step_ends_words_say_what_goes_on() -> None:
    for start, words in ((0, "first step, 128 images"), (40, "step 41")):
        shown = Console(width=120)
        with shown.capture() as capture:
            shown.print(Progress(RunProgress(None), 800, start, 128, show=True).bar)
        line = capture.get()
        assert words in line
        assert "s so far" in line
        for nothing in ("nan", "0 images/s", "0 %", "0%", "-:--"):
            assert nothing not in line


def test_a_phase_is_written_at_once_and_then_once_a_second(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    for _ in range(20):  # until the machine is quick enough for this to be within a second
        progress, began = RunProgress(file), time.monotonic()
        progress.tell("training", "first step", 0, 90)
        assert told(file)["loss"] is None
        progress.tell("training", "step 1 of 90", 1, 90, loss=2.5, seconds_left=float("inf"))
        if time.monotonic() - began < 1:
            break
    assert told(file)["step"] == 0, "within the same second"
    progress.tell("checking", "scoring")
    assert (told(file)["phase"], told(file)["step"], told(file)["total"]) == ("checking", 1, 90)
    progress.tell("training", "step 2 of 90", 2, 90, loss=float("nan"), seconds_left=3.0)
    assert (told(file)["loss"], told(file)["seconds_left"]) == (None, 3.0)
    progress.tell("training", "step 90 of 90", 90, 90)
    assert told(file)["step"] == 90, "the last step always counts"
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]


def test_decoding_is_told_image_by_image(unlabeled: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Watched(RunProgress):
        def tell_decoding(self, done: int, total: int) -> None:
            seen.append((done, total))
            super().tell_decoding(done, total)

    file = tmp_path / "progress.json"
    open_cache(
        open_source(unlabeled), 16, cache_dir=tmp_path, progress=False, shard_images=10,
        callback=Watched(file).tell_decoding,
    )  # fmt: skip
    assert seen == [(n, 25) for n in range(26)]
    last = told(file)
    assert (last["phase"], last["words"], last["step"], last["total"]) == ("decoding", "reading 25 images", 25, 25)
    assert last["images_per_second"] > 0
    assert last["seconds_left"] == 0


def test_how_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    for error, phase in ((Interrupted(signal.SIGINT, "Stopped."), "stopped"), (FineSightError("No disk."), "failed")):
        with pytest.raises(type(error)), RunProgress(file).ending():
            raise error
        assert (told(file)["phase"], told(file)["words"]) == (phase, str(error))
    file.write_text("{")
    assert read_progress(file) is None
    assert read_progress(tmp_path / "none") is None


def test_the_pace_of_the_last_steps_counts() -> None:
    clock = Pace(start=5, window=2)
    assert clock.seconds(6) >= 0
    assert [rate_words(rate) for rate in (0.043, 4.31, 43.1)] == ["0.04 images/s", "4.3 images/s", "43 images/s"]
    assert [time_words(seconds) for seconds in (0.2, 312, 90_000)] == ["0:00:01", "0:05:12", "1 day, 1:00:00"]


@pytest.mark.slow
def test_a_run_leaves_its_progress(birds: Path, tmp_path: Path) -> None:
    """Finished, stopped and failed, also without a bar."""
    trained(tmp_path / "done", "--data", birds, "--epochs", "1", *TINY)
    last = told(tmp_path / "done" / "progress.json")
    assert (last["phase"], last["step"], last["total"]) == ("done", 5, 5)

    out = tmp_path / "stopped"
    running = Command("train", "--data", birds, "--out", out, "--epochs", "4000", *TINY)
    running.until(lambda: (read_progress(out / "progress.json") or {}).get("loss") is not None)
    mid = told(out / "progress.json")
    assert (mid["phase"], mid["total"]) == ("training", 20_000)
    assert mid["images_per_second"] > 1
    assert mid["seconds_left"] > 1
    running.send(signal.SIGINT)
    assert running.wait().code == 130
    assert told(out / "progress.json")["phase"] == "stopped"

    refused(command("train", "--data", birds, "--out", tmp_path / "failed", "--epochs", "4", "--lr", "1e6", *TINY))
    last = told(tmp_path / "failed" / "progress.json")
    assert last["phase"] == "failed"
    assert "not a number" in last["words"]


def test_a_later_phase_knows_the_steps_of_those_before(lcr: Path) -> None:
    """``lcr`` wrote its report, with a progress of its own, after ten steps."""
    last = told(lcr / "progress.json")
    assert (last["phase"], last["step"], last["total"]) == ("done", 10, 10)
