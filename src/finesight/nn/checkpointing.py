"""Activation checkpointing: the backward pass computes again what the forward pass did not keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from finesight.errors import FineSightError

_FORWARD: ContextVar[bool] = ContextVar("forward", default=False)


@contextmanager
def forward_pass() -> Iterator[None]:
    """Mark a forward pass: blocks that are called outside of one are called again by a backward pass."""
    before = _FORWARD.set(True)
    try:
        yield
    finally:
        _FORWARD.reset(before)


def checkpoint_blocks(model: Any, name: str) -> None:
    """Let a timm model keep only what goes from block to block. Batch norms count each batch once all the same.

    Raises ``FineSightError`` if the model cannot.
    """
    try:
        model.set_grad_checkpointing(True)
    except (AttributeError, AssertionError, NotImplementedError, TypeError):
        raise FineSightError(
            f"timm has no activation checkpointing for '{name}': leave out --checkpoint-activations. "
            "A smaller --batch-size with --accumulate-grad-batches needs less memory too."
        ) from None
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            module.register_forward_pre_hook(_hold_statistics)
            module.register_forward_hook(_release_statistics, always_call=True)


def _hold_statistics(norm: Any, _: Any) -> None:
    """Give a norm that is called again copies of its statistics to change."""
    if norm.training and not _FORWARD.get():
        norm.held = dict(norm.named_buffers(recurse=False))
        for name, values in norm.held.items():
            setattr(norm, name, values.clone())


def _release_statistics(norm: Any, *_: Any) -> None:
    for name, values in vars(norm).pop("held", {}).items():
        setattr(norm, name, values)
