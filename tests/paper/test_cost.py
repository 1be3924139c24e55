"""The estimate: what it counts, how it grows, and what it refuses on this very machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.paper import cost as module
from finesight.paper.cost import Cost, Work, available_memory, estimate, refuse_what_does_not_fit, saved_bytes, together
from finesight.training.config import RuntimeConfig, build_config

ALL = Work(trainings=3, networks=4, probes=20, rows=16)


def found(cub: Path, work: Work = ALL, **settings: Any) -> Cost:
    config = tiny.profile(**settings).config("lcr", data=str(cub), weights="random", seed=0)
    return estimate(config, open_source(cub), work)


# --- what is counted --------------------------------------------------------------------------------------------------


def test_saved_activations_of_one_convolution_and_relu() -> None:
    """A convolution keeps its input and a ReLU its output; weights are the module's own and not counted."""
    module = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.ReLU())
    images = torch.rand(2, 3, 8, 8)
    out, kept = saved_bytes(module, lambda: module(images))
    assert kept == 4 * (2 * 3 * 8 * 8 + 2 * 5 * 8 * 8)
    out.sum().backward()
    assert module[0].weight.grad is not None


def test_nothing_is_kept_without_gradient() -> None:
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()).requires_grad_(False)
    assert saved_bytes(module, lambda: module(torch.rand(1, 3, 8, 8)))[1] == 0


def test_what_is_saved_twice_is_counted_once() -> None:
    module = nn.Linear(4, 4, bias=False)
    x = torch.rand(6, 4)
    assert saved_bytes(module, lambda: module(x) + module(x))[1] == 4 * 6 * 4


def test_memory_grows_with_batch_and_resolution(cub: Path) -> None:
    plain, batch, pixels = found(cub), found(cub, batch_size=16), found(cub, **{"views.resolution": 64})
    fixed = plain.memory - (batch.memory - plain.memory)  # all but the activations, as these double
    assert batch.memory > plain.memory
    assert pixels.memory - fixed == pytest.approx(4 * (plain.memory - fixed), rel=0.25)


def test_freezing_spares_memory(cub: Path) -> None:
    assert found(cub, **{"backbone.freeze": 3}).memory < found(cub).memory


def test_time_grows_with_epochs_and_work(cub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of its own: the real one also sees what else the machine does."""

    def clocked(work: Any) -> float:
        work()
        return 0.5

    monkeypatch.setattr(module, "_seconds", clocked)
    one, ten = found(cub), found(cub, epochs=10)
    assert one.training == pytest.approx(48 * 0.5 / module.PROBE)  # 48 images a epoch, PROBE of them in half a second
    assert ten.training == pytest.approx(10 * one.training)
    assert one.scoring == pytest.approx(72 * 0.5)
    assert one.seconds == pytest.approx(3 * one.training + 4 * one.scoring + 20 * one.probing)
    assert found(cub, Work(0, 1, 0, 1)).seconds == pytest.approx(one.scoring)


def test_without_training_its_memory_and_disk_are_not_needed(cub: Path) -> None:
    work = Work(trainings=0, networks=1, probes=1, rows=1)
    assert found(cub, work, batch_size=32).memory < found(cub, batch_size=32).memory
    assert found(cub, work).runs_disk == 0
    assert found(cub, work).cache_disk > 0


def test_disk_is_at_least_what_a_run_really_leaves(done: Any) -> None:
    work = Work(trainings=1, networks=1, probes=1, rows=1)
    config = done.config("lcr", 0)
    need = estimate(config, open_source(done.data), work).runs_disk
    folder = done.run("lcr", 0).root
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


def wide(cub: Path, method: str, monkeypatch: pytest.MonkeyPatch, projections: int = 2048) -> Cost:
    """By a clock that counts: a second each time it is asked. The small network has 64 channels: 131,072 numbers."""
    monkeypatch.setattr(module, "_seconds", lambda work: (work(), 1.0)[1])
    more = {"rationale.projections": projections, "objective.hidden": 4, "objective.dim": 4}
    values = {**tiny.SETTINGS, **more, "data": str(cub), "method": method, "backbone.weights": "random"}
    return estimate(build_config(values), open_source(cub), Work(0, 1, 1, 1))


def test_bilinear_features_are_as_wide_as_all_projections() -> None:
    for method, width in (("sam-ssl-bilinear", 2048 * 32), ("lcr", 2048), ("sam-ssl", 2048)):
        assert module.feature_width(build_config({"data": "-", "method": method}), 2048) == width


def test_wide_features_cost_their_memory_and_comparisons(cub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, train, test = 72, 48, 24
    bilinear, plain = (wide(cub, method, monkeypatch) for method in ("sam-ssl-bilinear", "lcr"))
    channels = tiny_channels()
    width = 2048 * channels
    assert width > module.WIDE
    product = 1.0 / 512**3
    assert bilinear.scoring == pytest.approx(images * 1.0 + test**2 * width * product)
    assert plain.scoring == pytest.approx(images * 1.0)
    kept = images * width * 2 + module.GRAM_NUMBER * train**2 + module.BLOCKS
    assert module._features_memory(width, images, train, 1) == pytest.approx(kept)
    assert module._features_memory(channels, images, train, 3) == pytest.approx(1.5 * 3 * images * channels * 4)
    assert bilinear.memory > kept


def test_probes_of_wide_features_are_fitted_in_as_many_dimensions_as_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in all their own: the estimate took minutes a step, and gigabytes."""
    fitted = []
    fit = module.linear.fit
    monkeypatch.setattr(module.linear, "fit", lambda x, *rest: (fitted.append(x.shape[1]), fit(x, *rest))[1])
    labels = np.repeat(np.arange(4), 25)
    module._probe(65_536, labels)
    assert set(fitted) == {100, 52, 20}  # of 25 images a class: all, 13, 5
    fitted.clear()
    module._probe(64, labels)
    assert set(fitted) == {64, 20}, "where images are fewer than half the dimensions"


def test_what_every_step_takes_alike_is_not_multiplied_by_the_batch(cub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of many weights takes as long for two images as for eight."""

    def step(_: object, images: int = module.PROBE) -> tuple[float, float]:
        return 3.0 + 0.25 * images, 1.0

    monkeypatch.setattr(module, "_step", step)
    cost = found(cub, batch_size=16)
    assert cost.training == pytest.approx(48 // 16 * (3.0 + 0.25 * 16))


def test_parts_together() -> None:
    one = Cost(Work(1, 1, 2, 3), 100, 10, 1, 5, 7, 9)
    other = Cost(Work(3, 4, 0, 1), 20, 5, 50, 8, 2, 6)
    both = together([one, other])
    assert both.work == Work(4, 5, 2, 3)
    assert both.seconds == pytest.approx(one.seconds + other.seconds)
    assert (both.training, both.probing) == (pytest.approx(40), pytest.approx(1))
    assert (both.memory, both.runs_disk, both.cache_disk) == (8, 9, 9)


def tiny_channels() -> int:
    from finesight.nn.backbone import Backbone

    config = build_config({**tiny.SETTINGS, "data": "-", "backbone.weights": "random"})
    return Backbone(config.backbone).channels


# --- what is refused --------------------------------------------------------------------------------------------------


def need(memory: float = 0, runs: float = 0, cache: float = 0) -> Cost:
    return Cost(ALL, 1, 1, 1, memory, runs, cache)


def test_memory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    available = available_memory()
    assert available is not None
    assert 2**26 < available < 2**44
    refuse_what_does_not_fit(need(memory=available / 2), tmp_path, RuntimeConfig(cache_dir=tmp_path))
    with pytest.raises(FineSightError, match=r"needs .* GiB of memory and .* GiB are free\. Nothing was started"):
        refuse_what_does_not_fit(need(memory=2 * available), tmp_path, RuntimeConfig(cache_dir=tmp_path))


def test_disk_that_is_not_there_is_refused(tmp_path: Path) -> None:
    runtime, runs = RuntimeConfig(cache_dir=tmp_path / "cache"), tmp_path / "not" / "there" / "yet"
    free = shutil.disk_usage(tmp_path).free
    refuse_what_does_not_fit(need(runs=free / 4, cache=free / 4), runs, runtime)
    for cost in (need(runs=2 * free), need(cache=2 * free), need(runs=0.7 * free, cache=0.7 * free)):
        with pytest.raises(FineSightError, match=r"GiB of disk and .* has .* GiB free"):
            refuse_what_does_not_fit(cost, runs, runtime)
    assert not runs.exists()


def test_images_that_are_decoded_already_need_no_disk(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    shard = tmp_path / "cache" / "v1-side256" / "shard"
    shard.mkdir(parents=True)
    with (shard / "pixels.bin").open("wb") as file:
        file.truncate(2**30)  # a hole: no disk is taken
    runtime = RuntimeConfig(cache_dir=tmp_path / "cache")
    refuse_what_does_not_fit(need(cache=free * 0.9 + 2**30 * 0.9), tmp_path, runtime)
    with pytest.raises(FineSightError, match="of disk"):
        refuse_what_does_not_fit(need(cache=free * 1.1 + 2**30), tmp_path, runtime)


def test_both_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match=r"of memory .*; it needs .* of disk"):
        refuse_what_does_not_fit(need(memory=2.0**60, runs=2.0**60), tmp_path, RuntimeConfig(cache_dir=tmp_path))
