"""The few distributed helpers; all of them do nothing in a single process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist


def world() -> tuple[int, int]:
    """(rank, number of processes)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@torch.no_grad()
def gather(x: Tensor) -> Tensor:
    """Rows of all ranks, in rank order, without gradient. Every rank must bring as many rows."""
    _, processes = world()
    if processes == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(processes)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


@torch.no_grad()
def shuffled_forward(
    network: Callable[[Tensor], Tensor], images: Tensor, generator: torch.Generator, group: int = 32
) -> Tensor:
    """Run ``network`` on shuffled sub-batches, so that batch norm cannot tell a key which batch it came from.

    In several processes the joined batch is permuted over the ranks (MoCo's shuffle-BN); in one process it is permuted
    and cut into sub-batches of about ``group``. The permutation depends on the step's seed alone, so all ranks agree.
    """
    rank, processes = world()
    joined = gather(images)
    order = torch.randperm(len(joined), generator=generator).to(images.device)
    if processes > 1:
        mine = order.view(processes, -1)[rank]
        outputs = gather(network(joined[mine]))
    else:
        pieces = max(2, round(len(joined) / group)) if len(joined) >= 4 else 1
        outputs = torch.cat([network(joined[part]) for part in order.chunk(pieces)])
    restored = torch.empty_like(outputs)
    restored[order] = outputs
    return restored.view(processes, -1, *outputs.shape[1:])[rank]
