"""One optimiser with two kinds of groups: SGD for the encoder, Adam for the branch.

The branch needs a step of its own (ν times the encoder's lets it crawl or diverge). Two groups in one optimiser, rather
than two optimisers, leave accumulation, clipping and loss scaling to Lightning's automatic optimisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class SgdAdam(Optimizer):
    """Groups with ``adam=True`` take Adam steps (no decay), the others SGD with momentum and weight decay."""

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float, weight_decay: float) -> None:
        defaults = {
            "lr": 0.0,
            "base_lr": 0.0,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "adam": False,
            "backbone": False,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["lr"] == 0:  # a group that waits gathers no momentum either
                continue
            update = self._adam if group["adam"] else self._sgd
            update(group, [p for p in group["params"] if p.grad is not None])
        return loss

    def _sgd(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if not params:
            return
        grads = torch._foreach_add([p.grad for p in params if p.grad is not None], params, alpha=group["weight_decay"])
        buffers = [self.state[p].setdefault("momentum", torch.zeros_like(p)) for p in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, grads)
        torch._foreach_add_(params, buffers, alpha=-group["lr"])

    def _adam(self, group: dict[str, Any], params: list[Tensor]) -> None:
        first, second = group["betas"]
        for p in params:
            assert p.grad is not None
            state = self.state[p]
            if not state:
                state.update(count=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
            state["count"] += 1
            state["mean"].lerp_(p.grad, 1 - first)
            state["square"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
            mean = state["mean"] / (1 - first ** state["count"])
            root = (state["square"] / (1 - second ** state["count"])).sqrt_().add_(group["eps"])
            p.addcdiv_(mean, root, value=-group["lr"])
