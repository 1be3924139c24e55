"""Every row of the paper's tables on drawn birds: estimated by real steps, and from nothing to a result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from finesight.paper.benchmark import Benchmark
from finesight.paper.experiment import Run, branch_is_detached
from finesight.paper.rows import BIRD_ROWS, OBJECTIVES, TRAININGS, Training
from finesight.paper.store import REQUIRED
from finesight.paper.tables import TABLES
from small import small_module, small_settings, take_step

pytestmark = pytest.mark.slow

ROWS = sorted({name for table in TABLES.values() for name in table.rows} - BIRD_ROWS.keys())


@pytest.fixture(scope="module")
def job(cub: Path, tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """One benchmark for all rows; their heads are a few hundred weights."""
    trainings = {name: TRAININGS.get(name) or Training(name) for name in ROWS}
    small = {name: replace(entry, settings=small_settings(entry.method or "")) for name, entry in trainings.items()}
    setting = tiny.profile(rationale={}, **{"objective.momentum": 0.9})
    return tiny.bench(cub, tmp_path_factory.mktemp("rows"), setting, ROWS, trainings=small)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_estimated_by_real_steps(job: Benchmark, name: str) -> None:
    assert job.config(name, 0).pooling == job.rows[name].pooling
    cost = job.estimate({Run(name, 1): [name]})
    assert (cost.work.trainings, cost.work.networks, cost.work.probes) == (1, 1, 1)
    assert cost.training > 0
    assert not job.folder(Run(name, 1)).root.exists()


@pytest.mark.parametrize("method", ["moco-v2", *OBJECTIVES])
def test_the_rationale_beside_an_objective_leaves_its_encoder_as_it_is(method: str) -> None:
    """To the last bit: that is why one training gives the rows with and without it."""
    alone, beside = small_module(method), small_module(method, **{"rationale.variant": "finesight"})
    assert branch_is_detached(beside.config)
    for step in range(3):
        take_step(alone, step)
        take_step(beside, step)
    after = beside.objective.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in alone.objective.state_dict().items())


def test_the_cheapest_runs_come_first(cub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setting = tiny.profile(rationale={}, seeds=(0, 1))
    small = {name: Training(name, small_settings(name)) for name in ("lewel", "moco-bilinear")}
    job = tiny.bench(cub, tmp_path, setting, ["lewel", "moco-bilinear", "frozen-gem"], trainings=small)
    plan = tiny.plan(job)
    assert next(iter(plan)).training == "frozen"
    shuffled = dict(reversed(plan.items()))
    job.estimate(shuffled)
    assert shuffled == plan
    assert [run.seed for run in shuffled] == [0, 0, 0, 1, 1]
    assert next(iter(shuffled)) == Run("frozen", 0), "nothing to train"
    lines = [line for line in capsys.readouterr().err.splitlines() if "(" in line and "): " in line]
    assert lines[0].startswith("frozen (frozen-gem): 0 trainings")


TRAINED_AS = {  # heads of others differ here
    "byol": "byol-lcr",
    "supervised": "supervised-lcr",
    "contrastive-crop": "lcr+contrastive-crop",
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_trained_and_scored(job: Benchmark, name: str) -> None:
    only = replace(job, rows={name: job.rows[name]})
    tiny.run(only)
    row, config = json.loads(job.store.file(name, 0).read_text()), job.config(name, 0)
    assert not [key for key in REQUIRED if key not in row]
    assert row["settings"]["method"] == config.method
    assert row["pooling"] == config.pooling
    assert 0 <= row["retrieval"]["rank1"] <= 100
    assert set(row["linear"]) == {"100", "50", "20"}
    assert row["seconds"] > 0
    assert row["trained_as"] == TRAINED_AS.get(name, name)
    assert row["health"].keys() == {"embedding_spread", "effective_rank", "collapsed"}
    has_queue = hasattr(config.objective, "queue")
    assert row["profile"]["queue"] == (24 if has_queue else None)  # half of the train images
    assert row["profile"]["ema"] == (0.9 if hasattr(config.objective, "momentum") else None)
    assert tiny.plan(only) == {}, "it is done"
