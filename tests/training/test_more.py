"""A finished run goes on: what it left can be used until something new takes its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import fingerprint
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.more import extend_run
from finesight.training.run_folder import RunFolder
from finesight.training.train import train
from finesight.training.verdict import read_verdict, trained_encoder, write_verdict
from processes import rows
from small import SMALL

CPU = RuntimeConfig(accelerator="cpu", progress=False, log_every=1)


@pytest.fixture
def run(birds: Path, tmp_path: Path) -> RunFolder:
    """One epoch of five steps; 48 train images, five of them held out."""
    return train(build_config({**SMALL, "data": str(birds), "batch_size": 8, "epochs": 1}), tmp_path / "run", CPU)


def test_the_former_encoder_is_there_until_the_new_one_is(run: RunFolder) -> None:
    former = fingerprint(run.root)
    extend_run(run)
    assert not run.is_finished
    assert fingerprint(run.root) == former
    Encoder.load(run.root)
    with pytest.raises(FineSightError, match="has not finished"):
        write_verdict(run, CPU)
    config = run.config()
    assert config.epochs == 2
    train(config, run.root, CPU)
    assert [int(row["step"]) for row in rows(run.root)] == list(range(10))
    assert run.is_finished
    assert fingerprint(run.root) != former
    again = fingerprint(run.root)
    train(config, run.root, CPU)  # nothing to do
    assert fingerprint(run.root) == again
    extend_run(run)
    assert run.config().epochs == 3, "by its first length"


def test_frozen_features_that_are_kept_stay_until_the_next_verdict(run: RunFolder) -> None:
    write_verdict(run, CPU, keep="frozen")
    kept, trained = fingerprint(run.root), fingerprint(trained_encoder(run))
    extend_run(run)
    assert (fingerprint(run.root), fingerprint(trained_encoder(run))) == (kept, trained)
    assert read_verdict(run) is not None
    train(run.config(), run.root, CPU)
    new = fingerprint(trained_encoder(run))
    assert new == fingerprint(run.root) != trained
    verdict = write_verdict(run, CPU)
    assert verdict is not None
    assert verdict.trained == new
    assert not verdict.chosen_by_user, "that choice was about other features"


def test_restart_begins_anew_and_without_a_checkpoint_nothing_goes_on(run: RunFolder) -> None:
    config = run.config()
    extend_run(run)
    train(config, run.root, CPU, restart=True)
    assert run.is_finished
    assert len(rows(run.root)) == 5
    shutil.rmtree(run.checkpoints)
    with pytest.raises(FineSightError, match="no checkpoint to go on from"):
        extend_run(run)
    assert run.is_finished
