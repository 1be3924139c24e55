"""Ctrl-C at any moment of ``finesight train`` ends it with one sentence, and the same command goes on."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from finesight.errors import Interrupted
from finesight.io.signals import stoppable
from finesight.training.progress import read_progress
from processes import TINY, Command, Finished, TooLate, in_time, succeeded


def stop_at_once(number: int) -> None:
    with stoppable(lambda: "Stopped here."):
        try:
            signal.raise_signal(number)
            time.sleep(1)
        except Exception:
            pytest.fail("caught by code that catches every Exception")


def test_a_signal_becomes_a_sentence_and_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        with pytest.raises(Interrupted, match="Stopped here") as stop:
            stop_at_once(number)
        assert stop.value.exit_code == 128 + number
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture
def large_photos(tmp_path: Path) -> Path:
    """Pictures that take a while to read."""
    folder, noise = tmp_path / "photos", np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    folder.mkdir()
    for number in range(24):
        Image.fromarray(np.roll(noise, number, axis=1)).save(folder / f"photo {number}.jpg")
    return folder


@pytest.mark.slow
def test_ctrl_c_in_every_phase(large_photos: Path, tmp_path: Path) -> None:
    """While images are read, the network is loaded, the first step runs, and after the last one."""
    in_time(lambda place: stop_in_every_phase(large_photos, place / "run", place / "cache"), tmp_path)


def stop_in_every_phase(photos: Path, out: Path, cache: Path) -> None:
    options = ("--data", photos, "--epochs", "40", "--cache-dir", cache, "--workers", "1", *TINY, "--preset", "paper")

    def now() -> dict[str, Any]:
        return read_progress(out / "progress.json") or {}

    def stopped(*phases: str, words: str = "") -> Finished:
        running = Command("train", "--out", out, *options)
        began = time.time()
        running.until(lambda: (known := now()).get("phase") in phases and known["updated"] > began)
        running.send(signal.SIGINT)
        done = running.wait()
        if now()["phase"] == "done" or words not in done.err:
            raise TooLate
        assert done.code == 130, done.err
        assert "Traceback" not in done.err
        assert done.err.count("finesight: Stopped") == 1
        assert done.err.rstrip().endswith("he same command continues."), done.err
        assert now()["phase"] == "stopped"
        return done

    stopped("decoding", words="(reading 24 images)")
    stopped("preparing", "training")
    stopped("training")
    steps = stopped("checking", "report").err
    assert (out / "encoder" / "encoder.json").exists()
    assert "comparing" in steps or "report" in steps
    done = succeeded(Command("train", "--out", out, *options).wait())
    assert (out / "report.html").exists()
    assert now()["phase"] == "done"
    assert "Traceback" not in done.err
