"""The estimate: what it counts, how it grows, and what it refuses on this very machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.paper.benchmark import Benchmark
from finesight.paper.cost import (
    BLOCKS,
    GRAM_NUMBER,
    PROBE,
    Cost,
    Timer,
    Work,
    available_memory,
    check_fits,
    estimate,
    feature_width,
    features_memory,
    probe_seconds,
    saved_bytes,
    total_cost,
)
from finesight.paper.experiment import Run
from finesight.training.config import RuntimeConfig, build_config

ALL = Work(trainings=3, networks=4, probes=20, rows=16)


def found(cub: Path, work: Work = ALL, timer: Timer | None = None, **settings: Any) -> Cost:
    config = tiny.bench(cub, cub, tiny.profile(**settings)).config("lcr", 0)
    return estimate(config, open_source(cub), work, timer=timer)


def half_a_second(work: Callable[[], object]) -> float:
    """A clock of its own: the real one also sees what else the machine does."""
    work()
    return 0.5


# --- what is counted --------------------------------------------------------------------------------------------------


def test_saved_activations_of_one_convolution_and_relu() -> None:
    """A convolution keeps its input and a ReLU its output; weights are the module's own and not counted."""
    module = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.ReLU())
    images = torch.rand(2, 3, 8, 8)
    out, kept = saved_bytes(module, lambda: module(images))
    assert kept == 4 * (2 * 3 * 8 * 8 + 2 * 5 * 8 * 8)
    out.sum().backward()
    assert module[0].weight.grad is not None


def test_what_is_saved_twice_is_counted_once_and_nothing_is_without_gradient() -> None:
    module = nn.Linear(4, 4, bias=False)
    x = torch.rand(6, 4)
    assert saved_bytes(module, lambda: module(x) + module(x))[1] == 4 * 6 * 4
    module.requires_grad_(False)
    assert saved_bytes(module, lambda: module(x))[1] == 0


def test_memory_grows_with_batch_and_resolution_and_freezing_spares_it(cub: Path) -> None:
    plain, batch, pixels = found(cub), found(cub, batch_size=16), found(cub, **{"views.resolution": 64})
    fixed = plain.memory - (batch.memory - plain.memory)  # all but the activations, as these double
    assert batch.memory > plain.memory
    assert pixels.memory - fixed == pytest.approx(4 * (plain.memory - fixed), rel=0.25)
    assert found(cub, **{"backbone.freeze": 3}).memory < plain.memory


def test_time_grows_with_epochs_and_work(cub: Path) -> None:
    one, ten = (found(cub, timer=half_a_second, epochs=epochs) for epochs in (1, 10))
    assert one.training == pytest.approx(6 * 0.5), "steps that take the same whatever the batch size"
    assert ten.training == pytest.approx(10 * one.training)
    assert one.scoring == pytest.approx(72 * 0.5 / 32), "32 small images at a time"
    assert one.seconds == pytest.approx(3 * one.training + 4 * one.scoring + 20 * one.probing)
    assert found(cub, Work(0, 1, 0, 1), half_a_second).seconds == pytest.approx(one.scoring)


def test_what_every_step_takes_alike_is_not_multiplied_by_the_batch(cub: Path) -> None:
    """A head of many weights takes as long for two images as for eight."""
    steps = iter([0.0, 3.0 + 0.25 * 2, 3.0 + 0.25 * PROBE])

    def timer(work: Callable[[], object]) -> float:
        work()
        return next(steps, 0.0)

    assert found(cub, timer=timer, batch_size=16).training == pytest.approx(48 // 16 * (3.0 + 0.25 * 16))


@pytest.mark.slow
def test_without_training_its_memory_and_disk_are_not_needed(cub: Path) -> None:
    work = Work(trainings=0, networks=1, probes=1, rows=1)
    assert found(cub, work, batch_size=32).memory < found(cub, batch_size=32).memory
    assert found(cub, work).runs_disk == 0
    assert found(cub, work).cache_disk > 0


def test_disk_is_at_least_what_a_run_really_leaves(done: Benchmark) -> None:
    work = Work(trainings=1, networks=1, probes=1, rows=1)
    need = estimate(done.config("lcr", 0), open_source(done.data), work).runs_disk
    folder = done.folder(Run("lcr", 0)).root
    kept = [*folder.glob("checkpoints/*.pt"), *folder.glob("encoder/*"), folder / "study.safetensors"]
    left = sum(file.stat().st_size for file in kept)
    assert left < need < 6 * left


def test_the_words_have_all_of_it(cub: Path) -> None:
    words = Cost(ALL, 3600 * 2, 600, 30, 3 * 2**30, 2**30, 2**29).words()
    for part in ("3 trainings of about 2.0 h", "4 networks", "10 min each", "20 linear probes of about 30 s"):
        assert part in words
    assert "6.8 h in all" in words
    assert "3.0 GiB of memory, 1.0 GiB of disk for the runs and 0.5 GiB for decoded images" in words


# --- wide features, heavy heads, several networks ---------------------------------------------------------------------


def wide(cub: Path, method: str) -> Cost:
    """The small network has 96 channels: 196,608 numbers."""
    more = {"rationale.projections": 2048, "objective.hidden": 4, "objective.dim": 4}
    values = {**tiny.SETTINGS, **more, "data": str(cub), "method": method, "backbone.weights": "random"}
    return estimate(build_config(values), open_source(cub), Work(0, 1, 1, 1), timer=half_a_second)


def test_bilinear_features_are_as_wide_as_all_projections() -> None:
    for method, width in (("sam-ssl-bilinear", 2048 * 32), ("lcr", 2048), ("sam-ssl", 2048)):
        assert feature_width(build_config({"data": "-", "method": method}), 2048) == width


def test_wide_features_cost_their_memory_and_comparisons(cub: Path) -> None:
    images, train, test, width = 72, 48, 24, 2048 * 96
    bilinear, plain = (wide(cub, method) for method in ("sam-ssl-bilinear", "lcr"))
    assert bilinear.scoring == pytest.approx(images * 0.5 / 32 + test**2 * width * 0.5 / 512**3)
    assert plain.scoring == pytest.approx(images * 0.5 / 32)
    kept = images * width * 2 + GRAM_NUMBER * train**2 + BLOCKS
    assert features_memory(width, images, train, 1) == pytest.approx(kept)
    assert features_memory(96, images, train, 3) == pytest.approx(1.5 * 3 * images * 96 * 4)
    assert bilinear.memory > kept


def test_probes_of_few_images_cost_as_much_as_half_as_many_dimensions() -> None:
    """Not in all their own: the estimate took minutes a step, and gigabytes."""
    labels = np.repeat(np.arange(4), 25)
    fitted: list[int] = []

    def timer(work: Any) -> float:
        fitted.extend([work.args[0].shape[1]] if hasattr(work, "args") else [])
        return 0.0

    probe_seconds(65_536, labels, timer)
    assert fitted == [50, 50, 26, 26, 10, 10]  # of 25 images a class: all, 13, 5; to choose, then to fit
    fitted.clear()
    probe_seconds(40, labels, timer)
    assert fitted == [50, 40, 26, 26, 10, 10], "but not where dimensions are fewer"


def test_parts_together() -> None:
    one = Cost(Work(1, 1, 2, 3), 100, 10, 1, 5, 7, 9)
    other = Cost(Work(3, 4, 0, 1), 20, 5, 50, 8, 2, 6)
    both = total_cost([one, other])
    assert both.work == Work(4, 5, 2, 3)
    assert both.seconds == pytest.approx(one.seconds + other.seconds)
    assert (both.training, both.probing) == (pytest.approx(40), pytest.approx(1))
    assert (both.memory, both.runs_disk, both.cache_disk) == (8, 9, 9)


# --- what is refused --------------------------------------------------------------------------------------------------


def need(memory: float = 0, runs: float = 0, cache: float = 0) -> Cost:
    return Cost(ALL, 1, 1, 1, memory, runs, cache)


def test_memory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    available = available_memory()
    assert available is not None
    assert 2**26 < available < 2**44
    check_fits(need(memory=available / 2), tmp_path, RuntimeConfig(cache_dir=tmp_path))
    with pytest.raises(FineSightError, match=r"needs .* GiB of memory and .* GiB are free\. Nothing was started"):
        check_fits(need(memory=2 * available), tmp_path, RuntimeConfig(cache_dir=tmp_path))
    with pytest.raises(FineSightError, match=r"of memory .*; it needs .* of disk"):
        check_fits(need(memory=2.0**60, runs=2.0**60), tmp_path, RuntimeConfig(cache_dir=tmp_path))


def test_disk_that_is_not_there_is_refused(tmp_path: Path) -> None:
    runtime, runs = RuntimeConfig(cache_dir=tmp_path / "cache"), tmp_path / "not" / "there" / "yet"
    free = shutil.disk_usage(tmp_path).free
    check_fits(need(runs=free / 4, cache=free / 4), runs, runtime)
    for cost in (need(runs=2 * free), need(cache=2 * free), need(runs=0.7 * free, cache=0.7 * free)):
        with pytest.raises(FineSightError, match=r"GiB of disk and .* has .* GiB free"):
            check_fits(cost, runs, runtime)
    assert not runs.exists()


def test_images_that_are_decoded_already_need_no_disk(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    shard = tmp_path / "cache" / "v1-side256" / "shard"
    shard.mkdir(parents=True)
    with (shard / "pixels.bin").open("wb") as file:
        file.truncate(2**30)  # a hole: no disk is taken
    runtime = RuntimeConfig(cache_dir=tmp_path / "cache")
    check_fits(need(cache=free * 0.9 + 2**30 * 0.9), tmp_path, runtime)
    with pytest.raises(FineSightError, match="of disk"):
        check_fits(need(cache=free * 1.1 + 2**30), tmp_path, runtime)
