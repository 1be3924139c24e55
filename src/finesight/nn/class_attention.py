"""What the class token of a vision transformer attends to in its last block: the mean over the heads.

Fused attention gives no weights. Queries and keys are caught as attention is called with them, after their norms and
rotary embeddings, and the weights of the class token are computed from them once more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from finesight.nn.pooling import upcast

_SOFTMAXES = (Tensor.softmax, torch.softmax, F.softmax)


class AttentionCatcher(TorchFunctionMode):
    """Keeps the last attention of a forward pass: its queries and keys, or its weights where it is not fused."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Any, ...] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._last = (args, kwargs)
            self.caught(args[0].shape[-2], args[1].shape[-2], plain=not kwargs.get("is_causal"))
        elif func in _SOFTMAXES and made.ndim == 4:
            self._last = (made,)
            over = kwargs["dim"] if "dim" in kwargs else args[1]
            self.caught(*made.shape[-2:], plain=over in (-1, 3))
        return made

    def caught(self, queries: int, keys: int, *, plain: bool) -> None:
        """Note an attention of so many queries over keys; ``plain`` unless it is over something else."""

    def class_weights(self) -> Tensor:
        """Return the weights of the first query. -> (N, heads, keys)"""
        if len(self._last) == 1:
            return upcast(self._last[0][:, :, 0])
        args, kwargs = self._last
        return _first_weights(*args, **kwargs)


def _first_weights(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: float | None = None, **_: Any
) -> Tensor:
    """Return what fused attention weighs the values by, for the first query alone."""
    with torch.autocast(query.device.type, enabled=False):
        scores = upcast(query[:, :, :1]) @ upcast(key).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if attn_mask is not None:
            row = attn_mask[..., :1, :]
            scores = scores.masked_fill(~row, -torch.inf) if row.dtype == torch.bool else scores + row
        return scores.softmax(-1)[:, :, 0]


class _Watcher(AttentionCatcher):
    """Notes which module calls which attention."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: list[tuple[str, int, int, bool]] = []
        self._inside: list[str] = []
        self._handles = []
        for name, module in model.named_modules():
            self._handles += [
                module.register_forward_pre_hook(partial(self._enter, name)),
                module.register_forward_hook(self._leave),
            ]

    def _enter(self, name: str, *_: Any) -> None:
        self._inside.append(name)

    def _leave(self, *_: Any) -> None:
        self._inside.pop()

    def caught(self, queries: int, keys: int, *, plain: bool) -> None:
        self.calls.append((self._inside[-1] if self._inside else "", queries, keys, plain))

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()


def has_class_attention(model: Any, images: Tensor, tokens: int) -> bool:
    """Return whether a model's last attention is that of its class token to all of so many tokens.

    Not if its last block has several (parallel or differential attention), or one of another kind.
    """
    watcher = _Watcher(model)
    try:
        with torch.no_grad(), watcher:
            model.forward_features(images)
    finally:
        watcher.stop()
    if not watcher.calls:
        return False
    last, queries, keys, plain = watcher.calls[-1]
    block = ".".join(last.split(".")[:2]) + "."
    same_block = [name for name, *_ in watcher.calls if f"{name}.".startswith(block)]
    return plain and keys == tokens and queries in (1, tokens) and len(same_block) == 1
