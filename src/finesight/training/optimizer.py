"""One optimizer whose groups step by different rules: SGD, LARS or AdamW for the encoder, Adam for the branch.

The branch needs a step of its own (ν times the encoder's lets it crawl or diverge). Groups of one optimizer, rather
than several optimizers, leave accumulation, clipping and loss scaling to Lightning's automatic optimization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

RENAMED = {  # keys of parameter groups in checkpoints of earlier versions -> the keys now
    "rule": "optimizer",
    "hold_epochs": "freeze_epochs",
    "bias_share": "bias_lr_ratio",
    "clip_each": "clip_grad_norm_per_tensor",
}
TRUST = 1e-3  # LARS: the length of a step, as a share of that of the weights it changes


class GroupedOptimizer(Optimizer):
    """Each group's ``optimizer`` is sgd (momentum, weight decay), lars (You et al., 2017), adam (no decay) or adamw.

    AdamW's decay is decoupled from the gradient (Loshchilov and Hutter, 2019).
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        momentum: float,
        weight_decay: float,
        bias_lr_ratio: float = 1.0,
        clip_grad_norm_per_tensor: float | None = None,
        *,
        decay_biases: bool = True,
    ) -> None:
        defaults = {
            "optimizer": "sgd",
            "lr": 0.0,
            "base_lr": 0.0,
            "freeze_epochs": 0.0,  # the rate is zero before this
            "constant": False,  # it does not follow the schedule
            "momentum": momentum,
            "weight_decay": weight_decay,
            "decay_biases": decay_biases,
            "bias_lr_ratio": bias_lr_ratio,
            "clip_grad_norm_per_tensor": clip_grad_norm_per_tensor,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
        }
        super().__init__(groups, defaults)
        self._rules = {"sgd": self._sgd, "lars": self._lars, "adam": self._adam, "adamw": self._adamw}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, also one whose groups have the names of earlier versions."""
        groups = [
            {"decay_biases": True, **{RENAMED.get(key, key): value for key, value in group.items()}}  # as it was before
            for group in state_dict["param_groups"]
        ]
        super().load_state_dict({**state_dict, "param_groups": groups})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params and group["lr"] != 0:  # a group that waits gathers no momentum either
                if group["clip_grad_norm_per_tensor"] is not None:
                    _shorten([p.grad for p in params if p.grad is not None], group["clip_grad_norm_per_tensor"])
                self._rules[group["optimizer"]](group, params)
        return loss

    def _sgd(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """All decay alike, or biases and norms not at all."""
        grads = [p.grad for p in params if p.grad is not None]
        if group["decay_biases"]:
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        else:
            grads = [g + group["weight_decay"] * p if p.ndim > 1 else g for g, p in zip(grads, params, strict=True)]
        self._momentum(group, params, grads, group["lr"])

    def _lars(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Matrices step by a share of their own length; biases and norms plainly, without decay."""
        matrices = [p for p in params if p.ndim > 1]
        if matrices:
            grads = [p.grad + group["weight_decay"] * p for p in matrices if p.grad is not None]
            for length, slope, grad in zip(
                torch._foreach_norm(matrices), torch._foreach_norm(grads), grads, strict=True
            ):
                grad.mul_(torch.where((length > 0) & (slope > 0), TRUST * length / slope, 1.0))
            self._momentum(group, matrices, grads, group["lr"])
        rest = [p for p in params if p.ndim <= 1]
        if rest:
            grads = [p.grad for p in rest if p.grad is not None]
            self._momentum(group, rest, grads, group["lr"] * group["bias_lr_ratio"])

    def _momentum(self, group: dict[str, Any], params: list[Tensor], grads: Iterable[Tensor], rate: float) -> None:
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum"] for p in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, list(grads))
        torch._foreach_add_(params, buffers, alpha=-rate)

    def _adamw(self, group: dict[str, Any], params: list[Tensor]) -> None:
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        self._adam(group, params)

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


def _shorten(grads: list[Tensor], length: float) -> None:
    for grad, norm in zip(grads, torch._foreach_norm(grads), strict=True):
        grad.mul_((length / norm).clamp(max=1.0))  # a norm of zero gives infinity, hence 1
