"""Many images are embedded by a copy of the encoder on a GPU, in half precision where the features agree."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from finesight.features.encoder import Encoder
    from finesight.features.map_pooler import EncoderOutput

SOME = 100  # images that are worth a copy of the network
LEAST_COSINE = 0.999  # between the features of an image in half and in full precision
TRIED = 32  # images of the first batch that they are compared on


class GpuCopy:
    """A copy of an encoder on a GPU, for as long as the weights of the encoder are the same.

    What it returns is on the CPU. ``half`` is the type of half precision, None for full precision only.
    """

    def __init__(self, encoder: Encoder, device: str = "cuda", half: torch.dtype | None = torch.float16) -> None:
        self._original, self._state = encoder, weight_state(encoder)
        self._encoder, self._half = copy.deepcopy(encoder).to(device), half
        self._encoder.pooler.extra_branches = {
            name: copy.deepcopy(branch).to(device) for name, branch in encoder.extra_branches.items()
        }

    def fits(self) -> bool:
        """Return whether the encoder still has the weights that were copied."""
        return self._state == weight_state(self._original)

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the original is without: its weights may go another way

    def encode(
        self, views: Tensor, poolings: Sequence[str], objects: Tensor | None, regions: Tensor | None
    ) -> EncoderOutput:
        """``Encoder.encode`` of normalized views, which are sent while the GPU still works on others."""
        on_gpu = self._encoder.device.type == "cuda"
        moved = (views.pin_memory() if on_gpu else views).to(self._encoder.device, non_blocking=True)
        if self._half is not None:
            try_half(self._encoder, moved, self._half)
            self._half = None
        return self._encoder.encode(moved, poolings, objects, regions)


def try_half(encoder: Encoder, views: Tensor, half: torch.dtype) -> bool:
    """Let the encoder compute maps in half precision if the features of the first views agree; return whether so."""
    views = views[:TRIED]
    encoder.runner.half_type = None
    full = encoder.embed(views, "average")
    encoder.runner.half_type = half
    if not agree(full, encoder.embed(views, "average")):
        encoder.runner.half_type = None
    return encoder.runner.half_type is not None


def agree(full: Tensor, half: Tensor) -> bool:
    """Return whether every two rows point the same way, to a cosine of 0.999; numbers that are not finite do not."""
    return bool((nn.functional.cosine_similarity(full.double(), half.double()) >= LEAST_COSINE).all())


def weight_state(module: nn.Module) -> list[tuple[int, int]]:
    """Return what changes with the weights: where each tensor is, and how often it was written to.

    Torch's own iterators make a name for each tensor, which takes as long as embedding an image with a small network.
    """
    found, left = [], [module]
    while left:
        part = left.pop()
        tensors = (*part._parameters.values(), *part._buffers.values())
        found += [(one.data_ptr(), one._version) for one in tensors if one is not None]
        left += [child for child in part._modules.values() if child is not None]
    return found
