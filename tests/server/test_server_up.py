"""``finesight up``: a folder in, a page out; the second time, with what is there."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import httpx
import pytest

from finesight.cli.up import run_folder, training_config, up
from finesight.errors import FineSightError
from finesight.training.run_folder import RunFolder
from processes import refused
from serving import Serving, drawn, form

pytestmark = pytest.mark.slow

SMALL = ("--backbone", "test_resnet", "--weights", "random", "--resolution", "32", "--set", "backbone.output_stride=8")
QUICK = ("--port", "0", "--no-open", "--quiet")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}.png").write_bytes(drawn(seed=number))
    return folder


def settled(running: Serving, items: int) -> dict[str, object]:
    """Its health once the index is complete."""
    found: dict[str, object] = {}

    def complete() -> bool:
        found.update(httpx.get(f"{running.url}api/health", timeout=30).json())
        time.sleep(0.05)
        return found["status"] == "ok" and found["items"] == items

    running.until(complete)
    return found


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.rglob("*")}


def test_without_training(photos: Path, tmp_path: Path) -> None:
    before = everything(photos)
    run = tmp_path / "finesight-photos"
    with Serving("up", photos, "--method", "frozen", *SMALL, *QUICK) as running:
        health = settled(running, 12)
        assert health["encoder"]["method"] == "frozen"  # type: ignore[index]
        hits = httpx.post(f"{running.url}api/search", files=form(drawn(seed=3)), timeout=30).json()["hits"]
        assert hits[0]["path"] == "03.png"
        code, _, err = running.stop()
    assert code in (0, 130)
    assert "12 added" in err
    assert everything(photos) == before
    weights = everything(run / "encoder")
    # once more, with one image more and one less: nothing else is embedded, and no setting need be given again
    (photos / "03.png").unlink()
    (photos / "new.png").write_bytes(drawn(seed=99))
    with Serving("up", photos, *QUICK) as running:
        settled(running, 12)
        _, _, err = running.stop()
    assert "1 added, 0 changed, 1 removed, 11 as before" in err
    assert "Using the encoder" in err
    assert everything(run / "encoder") == weights
    # other settings are not mixed with these
    done = Serving("up", photos, "--method", "frozen", *SMALL, "--resolution", "64", *QUICK).wait()
    refused(done, "another configuration", "views.resolution: 32 there, 64 now")


def test_with_training(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    training = ("--epochs", "1", "--batch-size", "4", "--set", "rationale.projections=4", "--set", "objective.dim=8")
    with Serving("up", photos, "--out", run, *SMALL, *training, *QUICK) as running:
        health = settled(running, 12)
        assert health["encoder"]["method"] == "lcr"  # type: ignore[index]
        assert health["projections"] == 4
        running.stop()
    assert (run / "report.html").exists()
    shutil.rmtree(run / "index")  # the run stays, the index is made anew
    with Serving("up", photos, "--out", run, *QUICK) as running:
        settled(running, 12)
        code, _, _ = running.stop()
    assert code in (0, 130)


def test_where_a_run_goes(photos: Path, tmp_path: Path) -> None:
    assert run_folder(photos, None) == tmp_path / "finesight-photos"
    assert run_folder(tmp_path / "list.txt", None).name.startswith("finesight-list")
    for inside in (photos, photos / "run", photos / ".." / "photos" / "x"):
        with pytest.raises(FineSightError, match="inside"):
            run_folder(photos, inside)
    assert run_folder(photos, tmp_path / "photos-run") == tmp_path / "photos-run"
    with pytest.raises(FineSightError, match="--out"):
        run_folder(Path("/"), None)


def test_a_batch_that_a_small_folder_fills(photos: Path, tmp_path: Path) -> None:
    new = RunFolder(tmp_path / "new")
    assert training_config(new, photos, 12, {}).batch_size == 10
    assert training_config(new, photos, 5000, {}).batch_size == 128
    assert training_config(new, photos, 12, {"batch_size": 4}).batch_size == 4
    assert training_config(new, photos, 12, {}).method == "lcr"


def test_what_cannot_be_started(tmp_path: Path, photos: Path) -> None:
    for folder, options, words in (
        (tmp_path / "nowhere", {}, "does not exist"),
        (photos, {"method": "frozen", "weights": str(tmp_path / "none.safetensors")}, "none.safetensors"),
        (photos, {"method": "froze"}, "froze"),
    ):
        with pytest.raises(FineSightError, match=words):
            up(folder, port=0, open_page=False, quiet=True, **options)
    assert not list(photos.glob("*.y*ml"))
