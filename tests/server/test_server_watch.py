"""A folder that grows: ``finesight index --watch`` and ``finesight up --watch``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import httpx
import pytest
from test_server_up import QUICK, SMALL, TRAINING, photos, settled, trained, until

from finesight.features.embedder import TorchEmbedder
from finesight.search.engines import open_index
from finesight.training.verdict import read_verdict
from indexes import small_encoder
from serving import Serving, drawn, form

pytestmark = pytest.mark.slow

__all__ = ["photos"]  # the fixture
WATCH = ("--watch", "--interval", "0.2")


def test_index_watch(photos: Path, tmp_path: Path) -> None:
    run = small_encoder(tmp_path / "run")
    with Serving("index", run, photos, "--json", "--quiet", *WATCH) as running:

        def reports() -> list[dict[str, int]]:
            return [json.loads(line) for line in running.said().splitlines()]

        def told(count: int) -> dict[str, int]:
            running.until(lambda: running.said().endswith("\n") and sum(one["added"] for one in reports()) >= count)
            return reports()[-1]

        assert told(12)["items"] == 12
        (photos / "new.png").write_bytes(drawn(seed=77))
        (photos / "03.png").unlink()
        last = told(13)
        assert last["items"] == 12
        assert len(open_index(run)) == 12
        code, _, err = running.stop()
    assert code == 130
    assert "Stopped." in err
    assert "Traceback" not in err


def test_up_watch(photos: Path, tmp_path: Path) -> None:
    with Serving("up", photos, "--no-train", *SMALL, *WATCH, *QUICK) as running:
        settled(running, 12)
        (photos / "more").mkdir()
        (photos / "more" / "new.png").write_bytes(drawn(seed=77))
        settled(running, 13)
        hits = httpx.post(f"{running.url}api/search", files=form(drawn(seed=77)), timeout=30).json()["hits"]
        assert hits[0]["path"] == "more/new.png"
        (photos / "00.png").unlink()
        (photos / "01.png").unlink()
        (photos / "02.png").write_bytes(drawn(seed=88))  # another picture under the same name
        settled(running, 11)

        def changed(health: object) -> bool:
            hits = httpx.post(f"{running.url}api/search", files=form(drawn(seed=88)), timeout=30).json()["hits"]
            return bool(hits[0]["path"] == "02.png" and hits[0]["score"] > 0.999)

        until(running, changed)
        # a folder that is emptied or away may come back: its index stays
        away = photos.rename(tmp_path / "away")
        health = until(running, lambda health: health["problem"] is not None)
        assert "does not exist" in health["problem"]
        photos.mkdir()
        until(running, lambda health: "is empty" in (health["problem"] or ""))
        assert httpx.post(f"{running.url}api/search", files=form(drawn(seed=77)), timeout=30).json()["hits"]
        shutil.copytree(away, photos, dirs_exist_ok=True)
        until(running, lambda health: health["problem"] is None and health["items"] == 11)
        code, _, _ = running.stop(signal.SIGTERM)
    assert code in (0, -signal.SIGTERM)


def test_a_file_that_gets_its_content_late_is_found(photos: Path, tmp_path: Path) -> None:
    """Its size and its time are those of the whole file from the beginning."""
    whole, old = drawn(seed=77), time.time() - 100

    def write(content: bytes) -> None:
        """In one step: a name that appears has this content, and this time."""
        scratch = tmp_path / "scratch"
        scratch.write_bytes(content)
        os.utime(scratch, (old, old))
        scratch.rename(photos / "late.png")

    run = small_encoder(tmp_path / "run")
    for file in photos.iterdir():
        os.utime(file, (old, old))  # or it may seem to be still under way
    write(whole[:40].ljust(len(whole), b"\0"))
    with (
        Serving("up", photos, "--no-train", "--out", tmp_path / "up", *SMALL, *WATCH, *QUICK) as up,
        Serving("index", run, photos, "--json", "--quiet", *WATCH) as index,
    ):
        settled(up, 12)
        index.until(lambda: index.said().endswith("\n"))
        assert json.loads(index.said().splitlines()[0])["skipped"] == 1
        time.sleep(4)  # it is read again meanwhile, in vain
        write(whole)
        settled(up, 13)
        index.until(lambda: index.said().endswith("\n") and json.loads(index.said().splitlines()[-1])["items"] == 13)
        hits = httpx.post(f"{up.url}api/search", files=form(whole), timeout=30).json()["hits"]
        assert hits[0]["path"] == "late.png"
        _, _, err = up.stop()
        index.stop()
        told = [line for line in err.splitlines() if line.startswith("The index is up to date")]
    assert told == [
        "The index is up to date: 12 added, 0 changed, 0 removed, 0 as before, 1 file left out.",
        "The index is up to date: 1 added, 0 changed, 0 removed, 12 as before.",
    ], "a retry that finds nothing is not told"


def test_training_goes_on_with_new_photos(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "finesight-photos"
    with Serving("up", photos, *SMALL, *TRAINING, *WATCH, *QUICK) as running:
        first = trained(running, run)
        assert first["training"]["state"] == "done", first["training"]
        assert not first["training"]["can_start"]
        assert httpx.post(f"{running.url}api/training", timeout=30).status_code == 409
        (photos / "new.png").write_bytes(drawn(seed=77))  # less than a tenth: on request only
        now = until(running, lambda health: health["training"]["new_images"] == 1)
        assert now["training"]["can_start"]
        assert now["training"]["state"] == "done"
        assert httpx.post(f"{running.url}api/training", timeout=30).status_code == 200

        def other(health: dict[str, object], before: dict[str, object]) -> bool:
            """Whether the features after training are new ones, of all images."""
            done = health["training"]["state"] == "done" and health["training"]["new_images"] == 0  # type: ignore[index]
            return done and health["features"][1]["encoder"] != before["features"][1]["encoder"]  # type: ignore[index]

        before = TorchEmbedder.load(run).fingerprint, read_verdict(run)
        running.until(lambda: not (run / "report.html").exists())
        # it has begun to go on: until it has ended, all is as it was
        assert (TorchEmbedder.load(run).fingerprint, read_verdict(run)) == before
        (run / "report.html").touch()
        second = until(running, lambda health: other(health, first))
        assert [one["items"] for one in second["features"]] == [13, 13]
        assert TorchEmbedder.load(run).fingerprint != before[0]
        (photos / "a.png").write_bytes(drawn(seed=78))
        (photos / "b.png").write_bytes(drawn(seed=79))  # more than a tenth: by itself
        running.until(lambda: not (run / "report.html").exists())
        (run / "report.html").touch()
        third = until(running, lambda health: other(health, second))
        assert [one["items"] for one in third["features"]] == [15, 15]
        running.stop()
    assert "epochs: 3" in (run / "config.yaml").read_text()
    with Serving("up", photos, *SMALL, *TRAINING, *QUICK) as running:  # the same command, with its --epochs 1
        again = until(running, lambda health: health["training"]["state"] == "done" and len(health["features"]) == 2)
        assert again["features"][1]["encoder"] == third["features"][1]["encoder"]
        assert again["training"]["new_images"] == 0
        running.stop()
