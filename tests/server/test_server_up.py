"""``finesight up``: a folder in, a page out; the second time, with what is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from finesight.cli.up import run_folder, up
from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.io.atomic import write_atomic
from finesight.search.engines import open_index
from finesight.training.config import build_config
from finesight.training.config_file import write_yaml
from indexes import small_encoder
from processes import refused
from serving import Serving, drawn, form, indexed

pytestmark = pytest.mark.slow

SMALL = ("--backbone", "test_resnet", "--weights", "random", "--resolution", "32", "--set", "backbone.output_stride=8")
TRAINING = (
    *("--epochs", "1", "--batch-size", "4", "--set", "rationale.projections=4", "--set", "objective.dim=8"),
    *("--preset", "paper"),
)
QUICK = ("--port", "0", "--no-open", "--quiet")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}.png").write_bytes(drawn(seed=number))
    return folder


def until(running: Serving, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Its health once it is as wanted."""
    found: dict[str, Any] = {}

    def met() -> bool:
        found.update(httpx.get(f"{running.url}api/health", timeout=30).json())
        time.sleep(0.05)
        return condition(found)

    running.until(met)
    return found


def settled(running: Serving, items: int) -> dict[str, Any]:
    """Its health once the index is complete."""
    return until(running, lambda health: health["status"] == "ok" and health["items"] == items)


def trained(running: Serving, run: Path) -> dict[str, Any]:
    """Its health once training has ended, without the report: drawing it takes longer than the run."""
    running.until(lambda: (run / "config.yaml").exists())
    (run / "report.html").touch()
    return until(running, lambda health: health["training"]["state"] in ("done", "failed", "stopped"))


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.rglob("*")}


def test_without_training(photos: Path, tmp_path: Path) -> None:
    before = everything(photos)
    run = tmp_path / "finesight-photos"
    with Serving("up", photos, "--method", "frozen", *SMALL, *QUICK) as running:
        health = settled(running, 12)
        assert health["encoder"]["method"] == "frozen"
        assert health["training"]["state"] == "off"
        hits = httpx.post(f"{running.url}api/search", files=form(drawn(seed=3)), timeout=30).json()["hits"]
        assert hits[0]["path"] == "03.png"
        assert httpx.post(f"{running.url}api/training", timeout=30).status_code == 409
        code, _, err = running.stop()
    assert code in (0, 130)
    assert "12 added" in err
    assert everything(photos) == before
    weights = everything(run / "frozen" / "encoder")
    assert TorchEmbedder.load(run).fingerprint == TorchEmbedder.load(run / "frozen").fingerprint
    assert len(open_index(run)) == 12
    # once more, with one image more and one less: nothing else is embedded, and no setting need be given again
    (photos / "03.png").unlink()
    (photos / "new.png").write_bytes(drawn(seed=99))
    with Serving("up", photos, *QUICK) as running:
        assert settled(running, 12)["training"]["state"] == "off"
        _, _, err = running.stop()
    assert "1 added, 0 changed, 1 removed, 11 as before" in err
    assert everything(run / "frozen" / "encoder") == weights
    # other settings are not mixed with these
    done = Serving("up", photos, "--method", "frozen", *SMALL, "--resolution", "64", *QUICK).wait()
    refused(done, "another configuration", "views.resolution: 32 there, 64 now")


def test_before_and_after_training(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    with Serving("up", photos, "--out", run, *SMALL, *TRAINING, *QUICK) as running:
        first = settled(running, 12)
        assert first["default_features"] == "before"
        assert first["encoder"]["method"] == "frozen"
        health = trained(running, run)
        assert health["training"]["state"] == "done", health["training"]
        assert [one["name"] for one in health["features"]] == ["before", "after"]
        assert health["features"][1]["encoder"]["method"] == "lcr"
        assert health["features"][1]["projections"] == 4
        with httpx.Client(base_url=running.url, timeout=30) as web:
            answers = {
                name: web.post("api/search", files=form(drawn(seed=3)), data={"features": name, "k": "12"}).json()
                for name in ("before", "after")
            }
            for name, answer in answers.items():
                assert answer["features"] == name
                assert answer["hits"][0]["path"] == "03.png"
                again = web.get("api/search", params={"query": answer["query"]["id"], "features": name, "k": 12}).json()
                assert [hit["score"] for hit in again["hits"]] == [hit["score"] for hit in answer["hits"]]
                # the upload of the one is embedded by the other when it is asked
                other = {"before": "after", "after": "before"}[name]
                found = web.get(
                    "api/search", params={"query": answer["query"]["id"], "features": other, "k": 12}
                ).json()
                assert [hit["score"] for hit in found["hits"]] == [hit["score"] for hit in answers[other]["hits"]]
            scores = [[hit["score"] for hit in answer["hits"]] for answer in answers.values()]
            assert scores[0] != scores[1]
            # the default follows the verdict, without a restart
            for facts, default in (
                ({"verdict": "better", "kept": "trained"}, "after"),
                ({"verdict": "worse", "kept": "frozen"}, "before"),
                ({"verdict": "cannot tell", "kept": "trained"}, "before"),
                ({"verdict": "better", "kept": "trained"}, "after"),
            ):
                write_atomic(run / "verdict.json", json.dumps({**facts, "by": "clicks", "words": "So it is."}))
                now = web.get("api/health").json()
                assert now["default_features"] == default
                assert now["verdict"]["words"] == "So it is."
                assert web.post("api/search", files=form(drawn(seed=3))).json()["features"] == default
        running.stop()
    with Serving("up", photos, "--out", run, *QUICK) as running:  # nothing is trained twice
        states: list[str] = []

        def is_done(health: dict[str, Any]) -> bool:
            states.append(health["training"]["state"])
            return states[-1] == "done"

        health = until(running, is_done)
        assert {"indexing", "done"} >= set(states)
        assert health["default_features"] == "after"
        code, _, err = running.stop()
    assert code in (0, 130)
    assert err.count("0 added, 0 changed, 0 removed, 12 as before") == 2


def test_a_run_of_a_former_version(photos: Path, tmp_path: Path) -> None:
    """It has an encoder and an index of it, and nothing of a frozen network."""
    run = small_encoder(tmp_path / "finesight-photos")
    indexed(run, photos)
    config = build_config({"data": str(photos), "backbone.name": "test_resnet", "backbone.weights": "random"})
    write_yaml(config, run / "config.yaml")
    (run / "report.html").touch()
    with Serving("up", photos, *QUICK) as running:
        health = until(running, lambda health: health["training"]["state"] == "done")
        assert (health["status"], health["items"]) == ("ok", 12)
        assert [one["name"] for one in health["features"]] == ["after"]
        running.stop()
    assert not (run / "frozen").exists()


def test_where_a_run_goes(photos: Path, tmp_path: Path) -> None:
    assert run_folder(photos, None) == tmp_path / "finesight-photos"
    assert run_folder(tmp_path / "list.txt", None).name.startswith("finesight-list")
    for inside in (photos, photos / "run", photos / ".." / "photos" / "x"):
        with pytest.raises(FineSightError, match="inside"):
            run_folder(photos, inside)
    assert run_folder(photos, tmp_path / "photos-run") == tmp_path / "photos-run"
    with pytest.raises(FineSightError, match="--out"):
        run_folder(Path("/"), None)


def test_too_few_minutes_are_refused_before_anything_starts(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "finesight-photos"
    words = ("up", photos, *SMALL, "--cache-dir", tmp_path / "cache", *QUICK)
    done = Serving(*words, "--minutes", "0.01").wait()
    refused(done, "0.01 minutes are too few for these 12 images", "Give --minutes")
    assert not run.exists()
    with Serving(*words, "--minutes", "19") as running:
        running.until(lambda: (run / "frozen" / "options.json").exists())
        settled(running, 12)
        _, _, err = running.stop()
    assert err.index("Timing a few steps") < err.index("The index is up to date")
    with Serving(*words, "--minutes", "19", "--no-train") as running:  # it is not asked again
        settled(running, 12)
        _, _, err = running.stop()
    assert "Timing" not in err


def test_what_cannot_be_started(tmp_path: Path, photos: Path) -> None:
    for folder, options, words in (
        (tmp_path / "nowhere", {}, "does not exist"),
        (photos, {"method": "frozen", "weights": str(tmp_path / "none.safetensors")}, "none.safetensors"),
        (photos, {"method": "froze"}, "froze"),
    ):
        with pytest.raises(FineSightError, match=words):
            up(folder, port=0, open_page=False, quiet=True, **options)
    assert not list(photos.glob("*.y*ml"))
