"""Two real processes joined by gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.multiprocessing import start_processes

from processes import start_server

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
