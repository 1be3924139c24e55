"""The queue of past keys that serve as negatives."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAPER_QUEUE = 65536


def automatic_queue(images: int, batch_size: int) -> int:
    """Return half the number of images, at least two batches, at most the paper's 65536.

    A queue longer than the data holds stale keys of the query image itself, as negatives.
    """
    return min(PAPER_QUEUE, max(2 * batch_size, images // 2))


class Queue(nn.Module):
    """Unit vectors, random at first; ``push`` takes any number of keys, whatever the queue's size."""

    vectors: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.register_buffer("vectors", F.normalize(torch.randn(size, dim, generator=generator), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Replace the oldest keys by these; of more keys than the queue holds, the last ones stay."""
        size = len(self.vectors)
        start = self.pointer + max(0, len(keys) - size)
        slots = (start + torch.arange(min(len(keys), size), device=self.vectors.device)) % size
        self.vectors[slots] = keys[-size:].to(self.vectors.dtype)
        self.pointer.copy_((self.pointer + len(keys)) % size)
