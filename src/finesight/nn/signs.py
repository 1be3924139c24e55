"""Whether a map has negative values that say something, found from the operations that make it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# By names of ATen operations. Never below zero, or as little as SiLU and GELU are (-0.28 at the lowest):
_RECTIFIERS = {
    "relu",
    "silu",
    "gelu",
    "hardswish",
    "mish",
    "sigmoid",
    "hardsigmoid",
    "_softmax",
    "exp",
    "abs",
    "square",
}
# Not below zero if nothing that they take is:
_KEEPERS = {
    *("add", "mul", "cat", "mean", "sum", "amax", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"),
    *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "slice", "select", "clone", "_to_copy", "expand"),
    *("unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "native_dropout", "constant_pad_nd", "detach"),
    *("upsample_nearest2d", "upsample_bilinear2d", "roll", "div", "empty_like", "alias", "copy"),
}


class SignTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows a forward pass, on any device, and knows of each tensor whether it can be far below zero."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rectified: dict[int, Tensor] = {}  # kept, or another tensor might get the id of one that is gone

    def is_signed(self, tensor: Tensor) -> bool:
        """Return whether values may be negative by more than SiLU and GELU leave."""
        return id(tensor) not in self._rectified

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        name = name if name.startswith("_") and not name.endswith("_") else name.rstrip("_")
        rectified = name in _RECTIFIERS
        if name in ("hardtanh", "clamp", "clamp_min"):  # hardtanh from 0 to 6 is ReLU6
            rectified = len(args) > 1 and isinstance(args[1], int | float) and args[1] >= 0
        elif name in _KEEPERS:
            rectified = not any(self._is_negative(value) for value in _flat(args))
        for tensor in (one for one in _flat([made]) if isinstance(one, Tensor)):
            self._rectified.pop(id(tensor), None)  # an operation in place gives the same tensor again
            if rectified:
                self._rectified[id(tensor)] = tensor
        return made

    def _is_negative(self, value: Any) -> bool:
        return self.is_signed(value) if isinstance(value, Tensor) else False


def gives_signed(model: Any, images: Tensor) -> bool:
    """Return whether ``forward_features`` of a model gives values on both sides of zero."""
    tracker = SignTracker()
    with torch.no_grad(), tracker:
        given = model.forward_features(images)
    return tracker.is_signed(given)


def _flat(values: Any) -> list[Any]:
    """Return what is in lists of lists, and in tuples."""
    if not isinstance(values, list | tuple):
        return [values]
    return [one for value in values for one in _flat(value)]
