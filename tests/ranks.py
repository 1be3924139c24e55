"""Two real processes joined by gloo, and ``finesight train`` on two devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed as dist
from torch.multiprocessing import start_processes

from finesight.training.config import build_config
from finesight.training.config_file import read_yaml
from finesight.training.save_encoder import frozen_encoder
from processes import TIMEOUT, environment, rows, start_server

RANKS = 2


def in_ranks(task: Callable[[int], object], folder: Path) -> list[Any]:
    """What ``task(rank)`` returns in each of the processes."""
    start_server()
    start_processes(_rank, (task, str(folder)), nprocs=RANKS, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def _rank(rank: int, task: Callable[[int], object], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    torch.save(task(rank), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def stopped_pair(out: Path, steps: int, stop: Callable[[int], None], *options: str) -> tuple[int, str]:
    """Train on two devices and call ``stop(process)`` after so many steps; return the exit code and standard error."""
    pair = subprocess.Popen(
        [sys.executable, "-m", "finesight", "train", "--out", str(out), "--devices", "2", *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + TIMEOUT
        while len(rows(out)) < steps and pair.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        stop(pair.pid)
        _, err = pair.communicate(timeout=TIMEOUT)
    finally:
        if pair.poll() is None:
            os.killpg(pair.pid, signal.SIGKILL)
    return pair.returncode, err


def assert_same_training(one: Path, two: Path) -> None:
    for row, other in zip(rows(one), rows(two), strict=True):
        assert row.keys() == other.keys()
        assert row["step"] == other["step"]
        for name in row:
            assert bool(row[name]) == bool(other[name])
            if row[name]:
                assert float(other[name]) == pytest.approx(float(row[name]), rel=1e-4, abs=1e-6), (name, row["step"])
    start = frozen_encoder(build_config(read_yaml(one / "config.yaml"))).backbone.state_dict()
    first, second = (load_file(run / "encoder" / "encoder.safetensors") for run in (one, two))
    assert first.keys() == second.keys()
    moved = sum(float((first[f"backbone.{name}"] - weight).square().sum()) for name, weight in start.items()) ** 0.5
    apart = sum(float((first[name] - second[name]).square().sum()) for name in first) ** 0.5
    assert moved > 0.01
    assert apart < 1e-3 * moved, "the updates are not the same"
