"""Distributed helpers; in a single process all of them change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from finesight.errors import FineSightError

T = TypeVar("T")


def world() -> tuple[int, int]:
    """Return the rank and the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@torch.no_grad()
def gather(x: Tensor) -> Tensor:
    """Return the rows of all ranks, in rank order, without gradient. Every rank must have as many rows."""
    _, processes = world()
    if processes == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(processes)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def from_first(make: Callable[[], T]) -> T:
    """Return on every rank what ``make`` returns on the first one; a ``FineSightError`` is raised on every rank."""
    rank, processes = world()
    if processes == 1:
        return make()
    made: list[T | FineSightError | None] = [None]
    if rank == 0:
        try:
            made = [make()]
        except FineSightError as error:
            made = [error]
    dist.broadcast_object_list(made, src=0)
    if isinstance(made[0], FineSightError):
        raise made[0]
    return made[0]  # type: ignore[return-value]


def gather_objects(own: T) -> list[T]:
    """Return what each rank has, in rank order, on every rank."""
    processes = world()[1]
    if processes == 1:
        return [own]
    found: list[T | None] = [None] * processes
    dist.all_gather_object(found, own)
    return found  # type: ignore[return-value]


@torch.no_grad()
def mean_over_ranks(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return each scalar's mean over the ranks; one message is sent for all."""
    _, processes = world()
    if processes == 1:
        return values
    joined = torch.stack(list(values.values())).detach()
    dist.all_reduce(joined)
    return dict(zip(values, joined / processes, strict=True))


@torch.no_grad()
def shuffled_forward(
    network: Callable[[Tensor], Tensor], images: Tensor, generator: torch.Generator, group: int | None = 32
) -> Tensor:
    """Run ``network`` on shuffled sub-batches, so that batch norm cannot tell a key which batch it came from.

    In several processes the joined batch is permuted over the ranks (MoCo's shuffle-BN); in one process it is permuted
    and cut into sub-batches of about ``group``, or left whole with None, for networks that use no statistics of the
    batch. The permutation depends on the step's seed alone, so all ranks agree.
    """
    rank, processes = world()
    joined = gather(images)
    order = torch.randperm(len(joined), generator=generator).to(images.device)  # always: others draw after it
    if processes > 1:
        mine = order.view(processes, -1)[rank]
        outputs = gather(network(joined[mine]))
    elif group is None:
        return network(images)
    else:
        # batch norm cannot train on a single image, so no sub-batch has fewer than two
        pieces = max(1, min(len(joined) // 2, max(2, round(len(joined) / group))))
        outputs = torch.cat([network(joined[part]) for part in order.tensor_split(pieces)])
    restored = torch.empty_like(outputs)
    restored[order] = outputs
    return own_rows(restored)


def gather_with_gradient(x: Tensor) -> Tensor:
    """Return the rows of all ranks, for losses in which the rows of other ranks get a gradient too."""
    if world()[1] == 1:
        return x
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(x.contiguous()))  # type: ignore[no-untyped-call]


def sum_over_ranks(x: Tensor) -> Tensor:
    """Return the elementwise sum, with gradient."""
    if world()[1] == 1:
        return x
    from torch.distributed.nn.functional import all_reduce

    total: Tensor = all_reduce(x)  # type: ignore[no-untyped-call]
    return total


def own_rows(x: Tensor) -> Tensor:
    """Return this rank's part of what ``gather`` joined."""
    rank, processes = world()
    return x.view(processes, -1, *x.shape[1:])[rank]
