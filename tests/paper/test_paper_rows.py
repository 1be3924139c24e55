"""Every row of the paper's tables on drawn birds: estimated by real steps, and from nothing to a result.

All eighteen from end to end take more than a minute: three unlike ones always do, the others where slow tests are run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny

from finesight.paper import engine, systems
from finesight.paper.results import REQUIRED
from finesight.paper.systems import OTHER_NETWORKS, OTHER_SYSTEMS
from small import small_settings

ALWAYS = ("supervised", "cvsa", "sam-ssl-bilinear")  # labels; objects and backgrounds; wide features by a branch


@pytest.fixture(scope="module")
def job(cub: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Bench]:
    """One bench for all rows; their heads are a few hundred weights."""
    small = {}
    for name, network in OTHER_NETWORKS.items():
        small[name] = replace(network, settings=small_settings(network.method or ""))
    setting = tiny.profile(rationale={}, **{"objective.momentum": 0.9})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(systems, "OTHER_NETWORKS", small)
        yield tiny.bench(cub, tmp_path_factory.mktemp("rows"), setting)


@pytest.mark.parametrize("name", OTHER_SYSTEMS)
def test_a_row_is_estimated_by_real_steps(job: engine.Bench, name: str) -> None:
    config = job.config(name, 0)
    assert config.method == OTHER_NETWORKS[name].method
    assert config.pooling == OTHER_SYSTEMS[name].pooling
    todo = engine.Plan({(name, 1): {name: OTHER_SYSTEMS[name]}})
    cost = engine.dry_run(job, todo)
    assert (cost.work.trainings, cost.work.networks, cost.work.probes) == (1, 1, 1)
    assert cost.training > 0
    assert not job.run(name, 1).root.exists()


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in OTHER_SYSTEMS]
)
def test_a_row_is_trained_and_scored(job: engine.Bench, name: str) -> None:
    todo = engine.plan(job, [name], [0], OTHER_SYSTEMS)
    assert list(todo.rows) == [(name, 0)]
    engine.run(job, todo)
    row = json.loads(job.results.file(name, 0).read_text())
    config = job.config(name, 0)
    assert not [key for key in REQUIRED if key not in row]
    assert row["settings"]["method"] == config.method
    assert row["pooling"] == config.pooling
    assert 0 <= row["retrieval"]["rank1"] <= 100
    assert set(row["linear"]) == {"100", "50", "20"}
    assert row["seconds"] > 0
    assert row["trained_as"] == name
    assert row["health"].keys() == {"embedding_spread", "effective_rank", "collapsed"}
    has_queue = hasattr(config.objective, "queue")
    assert row["profile"]["queue"] == (24 if has_queue else None)  # half of the train images
    assert row["profile"]["ema"] == (0.9 if hasattr(config.objective, "momentum") else None)
    assert engine.plan(job, [name], [0], OTHER_SYSTEMS).rows == {}, "it is done"
