"""Runs of every objective, as a real training leaves them: a few steps of a network of a few thousand weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from finesight.features.encoder import Encoder
from finesight.rationale.branch import FittingBranch
from finesight.training.checkpoints import save_checkpoint
from finesight.training.config_file import write_yaml
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import make_encoder
from small import small_module, take_step


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFolder]:
    """run_of("byol"): the folder of a run of two steps, with encoder and checkpoint. Not to be written to."""
    made: dict[str, RunFolder] = {}

    def make(method: str, **settings: Any) -> RunFolder:
        name = "-".join([method, *(f"{key}-{value}" for key, value in settings.items())]).replace("+", "-")
        if name not in made:
            run = RunFolder(tmp_path_factory.mktemp("explained") / name)
            run.root.mkdir()
            module = small_module(method, **settings)
            for step in range(2):
                take_step(module, step)
            write_yaml(module.config, run.config_file)
            save_checkpoint(run.checkpoints, 2, {"module": module.state_dict()})
            make_encoder(module.config, module).save(run.encoder)
            made[name] = run
        return made[name]

    return make


@pytest.fixture
def encoder(lcr: Path) -> Encoder:
    """LCR's, its branch stirred so that several projections win."""
    encoder = Encoder.load(lcr)
    assert isinstance(encoder.branch, FittingBranch)
    with torch.no_grad():
        weight = encoder.branch.filters.weight
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    return encoder
