"""A whole bench on drawn birds: written, skipped, scored again, killed, stopped, shared by two processes."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.evaluation import evaluate
from finesight.features.encoder import Encoder
from finesight.paper import engine
from finesight.paper.results import REQUIRED
from finesight.paper.systems import NETWORKS, SYSTEMS
from processes import rows

SOME = ("moco-v2", "lcr-mask", "lcr")


def files(folder: Path) -> dict[str, int]:
    """When each was last written."""
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def result(job: engine.Bench, system: str, seed: int = 0) -> dict[str, Any]:
    return json.loads(job.results.file(system, seed).read_text())


def copied(done: engine.Bench, folder: Path) -> engine.Bench:
    """The finished bench, to change."""
    origin = done.runs.parent
    shutil.copytree(origin, folder, dirs_exist_ok=True)
    return tiny.bench(done.data, folder, done.profile)


# --- what it leaves ---------------------------------------------------------------------------------------------------


def test_every_row_is_written_with_all_its_keys(done: engine.Bench) -> None:
    assert {file.name for file in done.results.folder.glob("*.json")} == {f"{name}-seed0.json" for name in SYSTEMS}
    for name, system in SYSTEMS.items():
        row = result(done, name)
        assert not [key for key in REQUIRED if key not in row], name
        assert row["method"] == name
        assert row["dataset"] == "CUB-200-2011"
        assert row["classes"] == 4
        assert row["images"] == {"train": 48, "test": 24}
        assert 0 <= row["retrieval"]["rank1"] <= row["retrieval"]["rank5"] <= 100
        assert (row["linear"] is not None) == system.probe
        assert row["peak_memory_mb"] > 50
        assert (row["seconds"] > 0) == (NETWORKS[system.network].method is not None)
        assert row["profile"]["queue"] == 24  # half of the train images
        assert "CUB_200_2011" in row["command"]
        assert row["commit"] == ""  # nobody was asked, see conftest
        assert str(done.data.parent) not in json.dumps(row), "a path of this machine"
        assert done.results.per_query(name, 0)["hit1"].mean() * 100 == pytest.approx(row["retrieval"]["rank1"])


def test_where_it_looks_is_told_but_not_of_those_who_are_told_where(done: engine.Bench) -> None:
    for name, system in SYSTEMS.items():
        assert (result(done, name)["localization"] is None) == system.pooling.startswith("box"), name
    assert result(done, "moco-v2")["localization"]["map"] == "uniform"


def test_the_rows_of_one_network_differ_by_their_pooling_and_those_of_others_by_more(done: engine.Bench) -> None:
    scores = {
        name: tuple(done.results.per_query(name, 0)["ap"]) for name in ("moco-v2", "moco-v2-gem", "lcr-k1", "lcr")
    }
    assert len(set(scores.values())) == len(scores)


def test_again_does_nothing(done: engine.Bench) -> None:
    before = files(done.runs.parent)
    assert engine.plan(done).rows == {}
    tiny.run(done)
    assert files(done.runs.parent) == before


# --- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["file", "queries"])
def test_a_lost_row_is_scored_again_without_training(done: engine.Bench, tmp_path: Path, lost: str) -> None:
    job = copied(done, tmp_path)
    whole = result(job, "lcr-mask")
    gone = getattr(job.results, lost)("lcr-mask", 0)
    gone.unlink()
    todo = engine.plan(job)
    assert {key: list(found) for key, found in todo.rows.items()} == {("lcr", 0): ["lcr-mask"]}
    assert todo.trainings(job) == []
    before = files(tmp_path)
    engine.run(job, todo)
    after = files(tmp_path)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {f"results/{tiny.NAME}/lcr-mask-seed0.json", f"results/{tiny.NAME}/queries/lcr-mask-seed0.npz"}
    again = result(job, "lcr-mask")
    for key in ("retrieval", "linear", "localization", "seconds", "settings"):
        assert again[key] == whole[key], key


def test_a_frozen_network_belongs_to_seed_0(done: engine.Bench, tmp_path: Path) -> None:
    job = tiny.bench(done.data, tmp_path)
    assert set(engine.plan(job, ["frozen", "lcr"], [0, 1, 2]).rows) == {
        ("frozen", 0),
        ("lcr", 0),
        ("lcr", 1),
        ("lcr", 2),
    }
    assert engine.plan(job, ["frozen"], [1, 2]).rows == {}


def test_all_seeds_of_the_profile_are_planned(done: engine.Bench, tmp_path: Path) -> None:
    job = tiny.bench(done.data, tmp_path, tiny.profile(seeds=(0, 3)))
    networks = [name for name in NETWORKS if any(system.network == name for system in SYSTEMS.values())]
    assert set(engine.plan(job).rows) == {(name, 0) for name in networks} | {
        (name, 3) for name in networks if NETWORKS[name].method is not None
    }


def test_a_damaged_result_is_named_before_anything_long(done: engine.Bench, tmp_path: Path) -> None:
    job = copied(done, tmp_path)
    file = job.results.file("lcr", 0)
    file.write_text(file.read_text()[:100])
    with pytest.raises(FineSightError, match=r"lcr-seed0.json cannot be read: .*Delete it to run it again"):
        engine.plan(job, ["moco-v2"])


# --- settings that changed meanwhile ----------------------------------------------------------------------------------


def test_results_of_other_settings_are_refused(done: engine.Bench) -> None:
    job = tiny.bench(done.data, done.runs.parent, tiny.profile(epochs=2))
    with pytest.raises(FineSightError, match=r"moco-v2-seed0.json has other settings:\n  epochs: 1 then, 2 now\n"):
        engine.plan(job, ["moco-v2"])
    assert engine.plan(job, ["frozen"]).rows == {}  # it has no epochs
    job = tiny.bench(done.data, done.runs.parent, tiny.profile(rationale={**tiny.MIXED, "rationale.tau": 0.1}))
    with pytest.raises(FineSightError, match=r"rationale.tau: 0.4 then, 0.1 now"):
        engine.plan(job, ["lcr"])
    assert engine.plan(job, ["moco-v2"]).rows == {}  # it has no rationale


def test_a_finished_run_of_other_settings_is_not_scored(done: engine.Bench, tmp_path: Path) -> None:
    copied(done, tmp_path)
    shutil.rmtree(tmp_path / "results")
    job = tiny.bench(done.data, tmp_path, tiny.profile(epochs=2))
    with pytest.raises(
        FineSightError, match=r"moco-v2-seed0 was trained with other settings:\n  epochs: 1 then, 2 now\n"
    ):
        tiny.run(job, ["moco-v2"])


def test_data_and_weights_may_move(done: engine.Bench, tmp_path: Path) -> None:
    copied(done, tmp_path / "bench")
    moved = Path(shutil.copytree(done.data, tmp_path / "elsewhere" / "CUB_200_2011"))
    job = tiny.bench(moved, tmp_path / "bench")
    job.results.file("lcr", 0).unlink()
    tiny.run(job, ["lcr"])
    assert result(job, "lcr")["retrieval"] == result(done, "lcr")["retrieval"]


# --- one training for two networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rationale", "more", "shared"),
    [
        (tiny.APART, {}, True),
        (tiny.MIXED, {}, False),
        ({**tiny.APART, "rationale.detach_target": False}, {}, False),
        ({**tiny.APART, "rationale.lam": 0.5}, {}, False),
        ({**tiny.APART, "rationale.projector": "3-layer-bn"}, {}, False),
        (tiny.APART, {"optim.clip_grad_norm": 1.0}, False),
    ],
)
def test_when_one_training_serves_both(
    cub: Path, tmp_path: Path, rationale: dict[str, Any], more: dict[str, Any], shared: bool
) -> None:
    job = tiny.bench(cub, tmp_path, tiny.profile(rationale=rationale, **more))
    assert job.training("moco-v2") == ("lcr" if shared else "moco-v2")
    assert job.training("lcr") == "lcr"
    assert job.training("lcr-paper") == "lcr-paper"
    assert set(engine.plan(job, SOME).rows) == ({("lcr", 0)} if shared else {("lcr", 0), ("moco-v2", 0)})


def test_the_shared_training_gives_what_mocos_own_would(done: engine.Bench, tmp_path: Path) -> None:
    job = tiny.bench(done.data, tmp_path, tiny.profile(rationale=tiny.APART))
    tiny.run(job, SOME)
    assert [path.name for path in (job.runs / tiny.NAME).iterdir()] == ["lcr-seed0"]
    assert job.run("moco-v2", 0).root == job.run("lcr", 0).root
    row = result(job, "moco-v2")
    assert row["trained_as"] == "lcr"
    assert row["network"] == "moco-v2"
    for key in ("retrieval", "linear", "localization", "settings"):
        assert row[key] == result(done, "moco-v2")[key], key
    one, other = (Encoder.load(place.run("moco-v2", 0).root).backbone.state_dict() for place in (job, done))
    assert all(torch.equal(one[name], other[name]) for name in one)


# --- cut off ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_in_training_it_ends_as_if_it_had_not_been(cub: Path, tmp_path: Path) -> None:
    long, two = tiny.profile(epochs=4), ["lcr-mask", "lcr"]
    whole, killed = tiny.bench(cub, tmp_path / "whole", long), tiny.bench(cub, tmp_path / "killed", long)
    tiny.run(whole, two)
    folder = killed.run("lcr", 0).root
    tiny.Running(killed, two, [0]).kill_when(lambda: len(rows(folder)) >= 8)
    assert not (folder / "encoder").exists()
    assert killed.results.read() == {}
    tiny.run(killed, two)
    for name in two:
        assert result(killed, name)["retrieval"] == result(whole, name)["retrieval"], name
        assert result(killed, name)["linear"] == result(whole, name)["linear"], name
    assert len(rows(folder)) == len(rows(whole.run("lcr", 0).root)) == 24


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_hand_it_says_so_and_continues(cub: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    setting = tiny.profile(epochs=20)
    args = ("bench", "birds", "--data", cub, "--weights", "random", "--methods", "moco-v2", "--quiet")
    places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results", "--cache-dir", tmp_path / "cache")
    folder = tmp_path / "runs" / tiny.NAME / "moco-v2-seed0"
    stopped = tiny.TinyCommand(setting, *args, *places)
    stopped.until(lambda: len(rows(folder)) >= 5)
    stopped.send(number)
    end = stopped.wait()
    assert end.code == code, end.err
    assert "Traceback" not in end.err
    assert "The same command continues." in end.err
    spent = json.loads((folder / "bench.json").read_text())["seconds"]
    assert spent > 0
    again = tiny.TinyCommand(setting, *args, *places).wait()
    assert again.code == 0, again.err
    assert "Continuing at step" in again.err
    row = json.loads((tmp_path / "results" / tiny.NAME / "moco-v2-seed0.json").read_text())
    assert row["seconds"] >= round(spent, 1), "both starts count"


@pytest.mark.slow
def test_two_processes_on_different_seeds(done: engine.Bench, tmp_path: Path) -> None:
    job = tiny.bench(done.data, tmp_path)
    both = [tiny.Running(job, ["frozen", "lcr-mask", "lcr"], [seed]) for seed in (0, 1)]
    assert [one.code() for one in both] == [0, 0]
    found = job.results.read()
    assert {name: sorted(seeds) for name, seeds in found.items()} == {"frozen": [0], "lcr-mask": [0, 1], "lcr": [0, 1]}
    for name in found:
        assert result(job, name)["retrieval"] == result(done, name)["retrieval"], name
    assert not list(tmp_path.rglob("*.tmp"))


def test_two_processes_on_one_seed(done: engine.Bench, tmp_path: Path) -> None:
    """The second is refused and leaves nothing in the folder of the first, which would no longer be a run's."""
    job = tiny.bench(done.data, tmp_path)
    run = job.run("moco-v2", 0)
    with run.locked():
        with pytest.raises(FineSightError, match="Another process is training"):
            tiny.run(job, ["moco-v2"])
        assert {file.name for file in run.root.iterdir()} == {".lock"}
    tiny.run(job, ["moco-v2"])
    assert result(job, "moco-v2")["retrieval"] == result(done, "moco-v2")["retrieval"]


@pytest.mark.slow
def test_several_devices(done: engine.Bench, tmp_path: Path) -> None:
    """Each training is a command of its own then."""
    job = tiny.bench(done.data, tmp_path)
    job = replace(job, runtime=job.runtime.model_copy(update={"devices": 2}))
    tiny.run(job, ["moco-v2"])
    assert rows(job.run("moco-v2", 0).root)[-1]["step"] == "5"
    assert result(job, "moco-v2")["settings"] == result(done, "moco-v2")["settings"]
    shutil.rmtree(job.run("moco-v2", 0).root)
    job.results.file("moco-v2", 0).unlink()
    with pytest.raises(FineSightError, match="has failed; its message is above"):
        tiny.run(replace(job, weights="no-such.pth"), ["moco-v2"])


# --- what it is given -------------------------------------------------------------------------------------------------


def test_other_data_is_refused(class_folders: Path, tmp_path: Path) -> None:
    job = tiny.bench(class_folders, tmp_path)
    for work in (engine.dry_run, engine.run):
        with pytest.raises(FineSightError, match=r"needs CUB_200_2011 in its official layout; this is class folders"):
            work(job, engine.plan(job, ["frozen"]))
    job = tiny.bench(tmp_path / "nowhere", tmp_path)
    with pytest.raises(FineSightError, match="does not exist"):
        engine.dry_run(job, engine.plan(job, ["frozen"]))
    assert not (tmp_path / "runs").exists()


def test_missing_weights_are_an_error_before_anything_long(cub: Path, tmp_path: Path) -> None:
    job = tiny.bench(cub, tmp_path, weights=str(tmp_path / "none.pth"))
    with pytest.raises(FineSightError, match=r"none.pth': no such file"):
        engine.dry_run(job, engine.plan(job))
    assert not job.runs.exists()


def test_the_estimate_counts_what_is_left(done: engine.Bench, tmp_path: Path) -> None:
    job = tiny.bench(done.data, tmp_path)
    cost = engine.dry_run(job, engine.plan(job))
    trained = [name for name, network in NETWORKS.items() if network.method is not None]
    assert cost.work.trainings == len(trained)
    assert cost.work.networks == len(NETWORKS)
    assert cost.work.probes == sum(system.probe for system in SYSTEMS.values())
    assert cost.seconds > 0
    assert not job.runs.exists()
    assert engine.plan(done).work(done).trainings == 0


def test_rows_are_written_as_soon_as_they_are_known(cub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes are the slow part: whoever is killed in one finds every row that needed none, and those before."""
    job = tiny.bench(cub, tmp_path)
    rows = ["frozen", "frozen-gem", "frozen-box", "frozen-box-gem"]
    probe, probed = evaluate.linear_probe, []

    def killed_in_the_second(*args: Any, **options: Any) -> Any:
        probed.append(True)
        if len(probed) > 1:
            raise KeyboardInterrupt
        return probe(*args, **options)

    monkeypatch.setattr(evaluate, "linear_probe", killed_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        tiny.run(job, rows)
    assert set(job.results.read()) == {"frozen", "frozen-box", "frozen-box-gem"}
    assert list(engine.plan(job, rows).rows.values()) == [{"frozen-gem": SYSTEMS["frozen-gem"]}]
    monkeypatch.undo()
    tiny.run(job, rows)
    assert set(job.results.read()) == set(rows)


def test_a_profile_can_name_the_rows_that_are_probed(cub: Path, tmp_path: Path) -> None:
    """Rows of one network and pooling share their scores: then the probe of one is the probe of both."""
    setting = tiny.profile(rationale=tiny.APART).model_copy(
        update={"probed": ("frozen-gem", "moco-v2", "lcr-untrained")}
    )
    job = tiny.bench(cub, tmp_path, setting)
    rows = ["frozen", "frozen-gem", "moco-v2", "lcr-multitask", "lcr-untrained", "lcr"]
    todo = engine.plan(job, rows)
    assert todo.work(job).probes == 2
    engine.run(job, todo)
    found = {name: job.results.read()[name][0]["linear"] for name in rows}
    assert {name for name, linear in found.items() if linear} == {"frozen-gem", "moco-v2", "lcr-multitask"}
    assert found["moco-v2"] == found["lcr-multitask"]


def test_the_drawn_birds_are_cub(cub: Path) -> None:
    source = open_source(cub)
    assert source.kind == "cub"
    assert "72 images, 4 classes, 48 train + 24 test, boxes, 1 part" in source.describe()
