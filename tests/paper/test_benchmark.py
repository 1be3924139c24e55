"""A whole benchmark on drawn birds: written, skipped, scored again, killed, shared by two processes."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.paper.benchmark import Benchmark
from finesight.paper.datasets import DATASETS
from finesight.paper.experiment import Run
from finesight.paper.rows import BIRD_ROWS
from finesight.paper.selection import is_frozen
from finesight.paper.store import REQUIRED
from finesight.training.color_rule import MILD, STRONG
from processes import TooLate, in_time, rows

pytestmark = pytest.mark.slow

TRAININGS = list(dict.fromkeys(row.training for row in BIRD_ROWS.values()))


def files(folder: Path) -> dict[str, int]:
    """When each was last written."""
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def result(job: Benchmark, name: str, seed: int = 0) -> dict[str, Any]:
    return json.loads(job.store.file(name, seed).read_text())


def copied(done: Benchmark, folder: Path, *names: str, setting: Any = None) -> Benchmark:
    """The finished benchmark, to change."""
    shutil.copytree(done.runs.parent, folder, dirs_exist_ok=True)
    return tiny.bench(done.data, folder, setting or done.profile, names)


# --- what it leaves ---------------------------------------------------------------------------------------------------


def test_every_row_is_written_with_all_its_keys(done: Benchmark) -> None:
    assert {file.name for file in done.store.folder.glob("*.json")} == {f"{name}-seed0.json" for name in BIRD_ROWS}
    for name, row in BIRD_ROWS.items():
        found = result(done, name)
        assert not [key for key in REQUIRED if key not in found], name
        assert found["method"] == name
        assert found["dataset"] == "CUB-200-2011"
        assert found["classes"] == 4
        assert found["images"] == {"train": 48, "test": 24}
        assert 0 <= found["retrieval"]["rank1"] <= found["retrieval"]["rank5"] <= 100
        assert (found["linear"] is not None) == (name in tiny.PROBED)
        assert (found["localization"] is None) == row.pooling.startswith("box"), "these are told where it is"
        assert found["peak_memory_mb"] > 50
        assert (found["seconds"] > 0) != is_frozen(row.training)
        assert found["profile"]["queue"] == 24  # half of the train images
        assert "CUB_200_2011" in found["command"]
        assert found["commit"] == ""  # there is no git, see conftest
        assert str(done.data.parent) not in json.dumps(found), "a path of this machine"
        assert done.store.per_query(name, 0)["rank1"].mean() * 100 == pytest.approx(found["retrieval"]["rank1"])
    scores = {tuple(done.store.per_query(name, 0)["mAP"]) for name in ("moco-v2", "moco-v2-gem", "lcr-k1", "lcr")}
    assert len(scores) == 4, "trainings and poolings differ"


def test_again_does_nothing(done: Benchmark) -> None:
    before = files(done.runs.parent)
    assert tiny.plan(done) == {}
    tiny.run(done)
    assert files(done.runs.parent) == before


# --- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["file", "queries"])
def test_a_lost_row_is_scored_again_without_training(done: Benchmark, tmp_path: Path, lost: str) -> None:
    job = copied(done, tmp_path)
    whole = result(job, "frozen-box")
    getattr(job.store, lost)("frozen-box", 0).unlink()
    plan = tiny.plan(job)
    assert plan == {Run("frozen", 0): ["frozen-box"]}
    assert job.work(plan).trainings == 0
    before = files(tmp_path)
    job.make(plan)
    after = files(tmp_path)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {
        f"results/{tiny.NAME}/{part}" for part in ("frozen-box-seed0.json", "queries/frozen-box-seed0.npz")
    }
    again = result(job, "frozen-box")
    for key in ("retrieval", "linear", "localization", "seconds", "settings"):
        assert again[key] == whole[key], key


def test_seeds_and_frozen_rows(cub: Path, tmp_path: Path) -> None:
    """What nothing trains has no seed: it is scored once, as seed 0."""
    job = tiny.bench(cub, tmp_path, tiny.profile(seeds=(0, 3)))
    trained = {Run(name, seed) for name in TRAININGS for seed in (0, 3) if not is_frozen(name)}
    assert set(tiny.plan(job)) == trained | {Run("frozen", 0)}
    assert tiny.plan(tiny.bench(cub, tmp_path, names=["frozen"]), [1, 2]) == {}


def test_a_damaged_result_is_named_before_anything_long(done: Benchmark, tmp_path: Path) -> None:
    job = copied(done, tmp_path, "moco-v2")
    file = job.store.file("lcr", 0)
    file.write_text(file.read_text()[:100])
    with pytest.raises(FineSightError, match=r"lcr-seed0.json cannot be read: .*Delete it to run it again"):
        tiny.plan(job)


# --- settings that changed meanwhile ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "refused", "words", "unaffected"),
    [
        ({"epochs": 2}, "moco-v2", r"epochs: 1 then, 2 now\n", "frozen"),
        ({"rationale": {**tiny.MIXED, "rationale.tau": 0.1}}, "lcr", r"rationale.tau: 0.4 then, 0.1 now\n", "moco-v2"),
    ],
)
def test_results_and_runs_of_other_settings_are_refused(
    done: Benchmark, tmp_path: Path, setting: dict[str, Any], refused: str, words: str, unaffected: str
) -> None:
    other = tiny.profile(**setting)
    with pytest.raises(FineSightError, match=f"{refused}-seed0.json has other settings:\n  {words}.*--results"):
        tiny.plan(tiny.bench(done.data, done.runs.parent, other, [refused]))
    assert tiny.plan(tiny.bench(done.data, done.runs.parent, other, [unaffected])) == {}
    job = tiny.bench(done.data, tmp_path, other, [refused], runs=done.runs)
    with pytest.raises(FineSightError, match=f"{refused}-seed0 has other settings:\n  {words}.*--runs"):
        tiny.plan(job)


def test_data_and_weights_may_move(done: Benchmark, tmp_path: Path) -> None:
    copied(done, tmp_path / "bench")
    moved = Path(shutil.copytree(done.data, tmp_path / "elsewhere" / "birds"))
    job = tiny.bench(moved, tmp_path / "bench", names=["lcr-mask"])
    assert tiny.plan(job) == {}
    shutil.rmtree(job.store.folder)
    moved = moved.rename(moved.with_name("CUB_200_2011"))
    job = tiny.bench(moved, tmp_path / "bench", names=["lcr-mask"])
    tiny.run(job)
    assert result(job, "lcr-mask")["retrieval"] == result(done, "lcr-mask")["retrieval"]


# --- one training for two networks ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(cub: Path, tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """MoCo v2 and LCR by one training. Not to be written to."""
    setting = tiny.profile(rationale=tiny.APART).model_copy(update={"probed": ("moco-v2", "lcr-untrained")})
    names = ["moco-v2", "lcr-multitask", "lcr-untrained", "lcr"]
    job = tiny.bench(cub, tmp_path_factory.mktemp("shared"), setting, names)
    tiny.run(job)
    return job


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
    assert job.run("moco-v2", 0) == Run("lcr" if shared else "moco-v2", 0)


def test_a_shared_training_is_that_of_moco_to_the_last_bit(shared: Benchmark, done: Benchmark) -> None:
    assert [path.name for path in (shared.runs / tiny.NAME).iterdir()] == ["lcr-seed0"]
    row = result(shared, "moco-v2")
    assert (row["trained_as"], row["network"]) == ("lcr", "moco-v2")
    for key in ("retrieval", "localization", "settings"):
        assert row[key] == result(done, "moco-v2")[key], key
    roots = (shared.folder(Run("lcr", 0)).root, done.folder(Run("moco-v2", 0)).root)
    one, other = (Encoder.load(root).backbone.state_dict() for root in roots)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_profile_can_name_the_rows_that_are_probed(shared: Benchmark) -> None:
    """Rows of one run and pooling share their scores: then the probe of one is the probe of both."""
    linear = {name: seeds[0]["linear"] for name, seeds in shared.store.read().items()}
    assert {name for name, scores in linear.items() if scores} == {"moco-v2", "lcr-multitask"}
    assert linear["moco-v2"] == linear["lcr-multitask"]


# --- cut off ----------------------------------------------------------------------------------------------------------


def test_killed_in_training_it_ends_as_if_it_had_not_been(cub: Path, tmp_path: Path) -> None:
    long, two = tiny.profile(epochs=4), ["lcr-mask", "lcr"]
    whole = tiny.bench(cub, tmp_path / "whole", long, two)
    tiny.run(whole)
    in_time(lambda place: kill_and_continue(tiny.bench(cub, place, long, two), whole, two), tmp_path)


def kill_and_continue(killed: Benchmark, whole: Benchmark, two: list[str]) -> None:
    folder = killed.folder(Run("lcr", 0)).root
    code = tiny.Running(tiny.run, killed).send_when(signal.SIGKILL, lambda: len(rows(folder)) >= 8)
    assert code == -signal.SIGKILL
    if len(rows(folder)) == 24:
        raise TooLate
    assert not (folder / "encoder").exists()
    assert killed.store.read() == {}
    tiny.run(killed)
    for name in two:
        assert result(killed, name)["retrieval"] == result(whole, name)["retrieval"], name
        assert result(killed, name)["linear"] == result(whole, name)["linear"], name
    assert len(rows(folder)) == len(rows(whole.folder(Run("lcr", 0)).root)) == 24


def test_two_processes_on_different_seeds(done: Benchmark, tmp_path: Path) -> None:
    job = tiny.bench(done.data, tmp_path, names=["frozen", "lcr-mask", "lcr"])
    both = [tiny.Running(tiny.run, job, [seed]) for seed in (0, 1)]
    assert [one.code() for one in both] == [0, 0]
    found = job.store.read()
    assert {name: sorted(seeds) for name, seeds in found.items()} == {"frozen": [0], "lcr-mask": [0, 1], "lcr": [0, 1]}
    for name in found:
        assert result(job, name)["retrieval"] == result(done, name)["retrieval"], name
    assert not list(tmp_path.rglob("*.tmp"))


def test_two_processes_on_one_seed(done: Benchmark, tmp_path: Path) -> None:
    """The second is refused and leaves nothing in the folder of the first, which would no longer be a run's."""
    job = tiny.bench(done.data, tmp_path, names=["moco-v2"])
    run = job.folder(Run("moco-v2", 0))
    with run.locked():
        with pytest.raises(FineSightError, match="Another process is training"):
            tiny.run(job)
        assert {file.name for file in run.root.iterdir()} == {".lock"}


def test_several_devices(done: Benchmark, tmp_path: Path) -> None:
    """Each training is a command of its own then."""
    job = tiny.bench(done.data, tmp_path, names=["moco-v2"])
    job = replace(job, runtime=job.runtime.model_copy(update={"devices": 2}))
    tiny.run(job)
    folder = job.folder(Run("moco-v2", 0)).root
    assert rows(folder)[-1]["step"] == "5"
    assert result(job, "moco-v2")["settings"] == result(done, "moco-v2")["settings"]
    shutil.rmtree(folder)
    job.store.file("moco-v2", 0).unlink()
    with pytest.raises(FineSightError, match="has failed; its message is above"):
        tiny.run(replace(job, weights="no-such.pth"))


# --- what it is given -------------------------------------------------------------------------------------------------


def test_wrong_data_and_weights_are_errors_before_anything_long(class_folders: Path, cub: Path, tmp_path: Path) -> None:
    other = tiny.bench(class_folders, tmp_path, names=["frozen"])
    for work in (other.estimate, other.make):
        with pytest.raises(FineSightError, match=r"needs CUB_200_2011 in its official layout; this is class folders"):
            work(tiny.plan(other))
    for data, weights, words in (
        (tmp_path / "nowhere", "random", "does not exist"),
        (cub, "none.pth", "none.pth': no such"),
    ):
        job = tiny.bench(data, tmp_path, names=["frozen"], weights=weights)
        with pytest.raises(FineSightError, match=words):
            job.estimate(tiny.plan(job))
    assert not (tmp_path / "runs").exists()


def test_the_estimate_counts_what_is_left(done: Benchmark, tmp_path: Path) -> None:
    job = tiny.bench(done.data, tmp_path)
    cost = job.estimate(tiny.plan(job))
    assert cost.work.trainings == len(TRAININGS) - 1
    assert cost.work.networks == len(TRAININGS)
    assert cost.work.probes == len(tiny.PROBED)
    assert cost.seconds > 0
    assert not job.runs.exists()
    assert done.work(tiny.plan(done)).trainings == 0


def test_rows_are_written_as_soon_as_they_are_known(cub: Path, tmp_path: Path) -> None:
    """Probes are the slow part: whoever stops in one finds every row that needed none."""
    names = ["frozen", "frozen-gem", "frozen-box", "frozen-box-gem"]
    job = tiny.bench(cub, tmp_path, names=names)
    blocked = job.store.file("frozen", 0)
    blocked.mkdir(parents=True)  # it cannot be written, the only row with a probe
    with pytest.raises(OSError, match="directory"):
        job.make({Run("frozen", 0): names})
    blocked.rmdir()
    assert set(job.store.read()) == {*names} - {"frozen"}
    assert tiny.plan(job) == {Run("frozen", 0): ["frozen"]}


# --- another dataset than birds ---------------------------------------------------------------------------------------


def draw_cars(root: Path, *, train_gray: bool) -> Path:
    """Two classes: gray patterns that a mirror changes, or areas of one color; test images are the other kind."""
    random = np.random.default_rng(0)
    for split, count, gray in (("train", 12, train_gray), ("test", 3, not train_gray)):
        for name in ("Audi TTS Coupe 2012", "BMW M3 Coupe 2012"):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                area = random.integers(0, 256, (5, 5, 1) if gray else (1, 1, 3), dtype=np.uint8)
                picture = Image.fromarray(np.broadcast_to(area, (5, 5, 3)).copy())
                picture.resize((48, 40), Image.Resampling.NEAREST).save(root / split / name / f"{i}.png")
    return root


@pytest.mark.parametrize(("gray", "colors"), [(True, STRONG), (False, MILD)], ids=["gray", "colored"])
def test_colors_of_other_data_are_decided_by_its_train_images(
    gray: bool, colors: Mapping[str, float], cub: Path, tmp_path: Path
) -> None:
    data = draw_cars(tmp_path / "cars", train_gray=gray)
    setting = tiny.profile(**MILD, rationale=tiny.APART)
    job = tiny.bench(data, tmp_path, setting, ["frozen-gem", "lcr-mask"], dataset=DATASETS["cars"])
    settings = job.settings("lcr")
    assert {key: settings[key] for key in colors} == dict(colors)
    assert tiny.bench(cub, tmp_path, setting).settings("lcr")["views.hue"] == MILD["views.hue"]  # as the profile says
    plain = tiny.bench(data, tmp_path, tiny.profile(), dataset=DATASETS["cars"])
    assert plain.settings("lcr")["views.hue"] == STRONG["views.hue"]  # MoCo v2's: nothing was chosen on birds
    tiny.run(job)
    result = job.store.read()["lcr-mask"][0]
    assert (result["dataset"], result["classes"], result["image_side"]) == ("Stanford Cars", 2, 40)
    assert result["colors"]["settings"] == dict(colors)
    assert result["settings"]["views.hue"] == colors["views.hue"]
    assert not tiny.plan(job)
