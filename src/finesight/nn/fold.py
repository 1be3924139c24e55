"""Batch norms with fixed statistics, folded into the convolutions before them: the same map with less work.

A convolution followed by y = γ (x - μ) / σ + β is one convolution with the weights w γ / σ and the bias β - μ γ / σ.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from finesight.nn.earlier_map import EarlierMap, two_maps

SMALL_BATCH = 16  # images below which torch, with one thread, does not compute convolutions of 1×1 by oneDNN
PROBE = 128  # pixels of the image that shows which norm follows which convolution
TOLERANCE = 1e-4  # relative; a fold that is not the same map is off by far more


class FoldedModel:
    """A copy of ``model`` with its batch norms folded, which follows the weights of ``model`` when they change.

    Only norms in eval mode whose input is the output of a convolution are folded, with ``frozen_only`` only those that
    need no gradient, nor does the convolution: the rest is trained through the copy. A network whose map would change
    (the convolution's output is used elsewhere too, or its weights are made anew at each call) is used as it is.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        frozen_only: bool = False,
        compiled: bool = False,
        side: int = PROBE,
        earlier: EarlierMap | None = None,
    ) -> None:
        self.model, self.frozen_only, self.compiled, self.side = model, frozen_only, compiled, side
        self.earlier = earlier
        self._modes: list[bool] = []
        self._places: list[int] = []
        self._forward: Any = None
        self._pairs: list[_Pair] = []

    def __call__(self, images: Tensor) -> Any:
        """Return what ``forward_features`` gives; with ``earlier`` that and the earlier map."""
        self._follow()
        return self._forward(images)

    def __deepcopy__(self, memo: dict[int, Any]) -> FoldedModel:
        return self._of(copy.deepcopy(self.model, memo))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self._of(self.model))}

    def _of(self, model: nn.Module) -> FoldedModel:
        return FoldedModel(
            model, frozen_only=self.frozen_only, compiled=self.compiled, side=self.side, earlier=self.earlier
        )

    @torch.no_grad()
    def _follow(self) -> None:
        state = [*self.model.parameters(), *self.model.buffers()]
        modes = [one.training for one in self.model.modules()] + [one.requires_grad for one in state]
        places = [one.data_ptr() for one in state]
        if (modes, places) != (self._modes, self._places):
            self._fold()
            self._modes, self._places = modes, places
        for pair in self._pairs:
            pair.follow()

    def _fold(self) -> None:
        """Find the pairs and make the copy; a model without any is used as it is, as most transformers are."""
        folded, self._pairs = self.model, []
        if names := self._foldable():
            inside = {part for pair in names for name in pair for part in _prefixes(name)}
            shared: dict[int, Any] = {id(x): x for x in (*self.model.parameters(), *self.model.buffers())}
            shared |= {id(module): module for name, module in self.model.named_modules() if name not in inside}
            folded = copy.deepcopy(self.model, shared)  # the rest is the model's own
            self._pairs = _fold_pairs(folded, self.model, names)
            if not self.frozen_only:  # training keeps its bits, whether it builds a graph or not
                for pair in self._pairs:
                    _compute_by_onednn(pair.both)
        forward = self._forward_of(folded)
        self._forward = torch.compile(forward) if self.compiled else forward

    def _forward_of(self, model: Any) -> Any:
        return model.forward_features if self.earlier is None else partial(two_maps, model, earlier=self.earlier)

    def _foldable(self) -> list[tuple[str, str]]:
        """Return the pairs, none if the map would change. A copy is tried: the model's own statistics must not move."""
        if not any(isinstance(module, _BatchNorm) for module in self.model.modules()):
            return []
        trial: Any = copy.deepcopy(self.model).eval()
        image = torch.rand(1, 3, self.side, self.side, generator=torch.Generator().manual_seed(0)) * 2 - 1
        image = image.to(next(trial.parameters()).device)
        forward = self._forward_of(trial)
        names, expected = _find_pairs(trial, forward, image)
        names = [pair for pair in names if self._can_fold(*map(self.model.get_submodule, pair))]
        for pair in _fold_pairs(trial, trial, names):
            pair.follow()
        same = zip(_maps(forward(image)), expected, strict=True)
        return names if all((one - other).norm() < TOLERANCE * other.norm() for one, other in same) else []

    def _can_fold(self, conv: nn.Module, norm: nn.Module) -> bool:
        if norm.training or getattr(norm, "running_mean", None) is None:
            return False
        tensors = [*conv.parameters(), *norm.parameters()]
        return not (self.frozen_only and any(one.requires_grad for one in tensors))


@dataclass
class _Pair:
    """A convolution and the norm after it, and the convolution that is both."""

    conv: nn.Conv2d
    norm: _BatchNorm
    both: nn.Conv2d
    seen: list[int] = field(default_factory=list)

    def follow(self) -> None:
        """Compute the weights if they are not of the current ones."""
        conv, norm, both = self.conv, self.norm, self.both
        mean, var = norm.running_mean, norm.running_var
        seen = [x._version for x in (conv.weight, conv.bias, norm.weight, norm.bias, mean, var) if x is not None]
        if seen == self.seen:
            return
        assert mean is not None
        assert var is not None
        assert both.bias is not None
        scale = torch.rsqrt(var + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -mean if conv.bias is None else conv.bias - mean
        torch.mul(conv.weight, scale.view(-1, 1, 1, 1), out=both.weight)
        both.bias.copy_(shift * scale if norm.bias is None else norm.bias + shift * scale)
        self.seen = seen


class _PointConvolution(nn.Conv2d):
    """A convolution of 1×1 that is computed by oneDNN for small batches, too.

    With one thread, torch takes another way for them, which is half as fast.
    """

    def forward(self, images: Tensor) -> Tensor:
        if not self._is_slow(images):
            return super().forward(images)
        return torch.mkldnn_convolution(images, self.weight, self.bias, (0, 0), self.stride, self.dilation, self.groups)

    def _is_slow(self, images: Tensor) -> bool:
        return (
            len(images) < SMALL_BATCH
            and torch.get_num_threads() == 1
            and not torch.is_grad_enabled()
            and images.device.type == "cpu"
            and images.dtype == self.weight.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
        )


def _compute_by_onednn(conv: nn.Conv2d) -> None:
    """Let a convolution of 1×1 be a ``_PointConvolution``, where there is oneDNN."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    if type(conv) is nn.Conv2d and (conv.kernel_size, conv.padding) == ((1, 1), (0, 0)):
        conv.__class__ = _PointConvolution


def _fold_pairs(into: nn.Module, source: nn.Module, names: list[tuple[str, str]]) -> list[_Pair]:
    """Put folded convolutions into ``into``, and what timm's norms end in in the place of the norms."""
    pairs = []
    for conv_name, norm_name in names:
        conv, norm = source.get_submodule(conv_name), source.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, _BatchNorm)
        both = copy.copy(conv)  # with dictionaries of its own
        both._parameters = {}
        both.weight = nn.Parameter(torch.empty_like(conv.weight), requires_grad=False)
        both.bias = nn.Parameter(torch.empty_like(conv.weight[:, 0, 0, 0]), requires_grad=False)
        rest = [getattr(norm, part) for part in ("drop", "act") if hasattr(norm, part)]
        _replace(into, conv_name, both)
        _replace(into, norm_name, nn.Sequential(*(one for one in rest if not isinstance(one, nn.Identity))))
        pairs.append(_Pair(conv, norm, both))
    return pairs


def _find_pairs(model: Any, forward: Any, image: Tensor) -> tuple[list[tuple[str, str]], tuple[Tensor, ...]]:
    """Return the names of convolutions and the norms that follow them, and the maps of the image that showed them."""
    made: dict[int, str] = {}
    calls: Counter[str] = Counter()
    pairs: list[tuple[str, str]] = []
    kept: list[Tensor] = []  # or another tensor might get the id of one that is gone

    def watch(name: str) -> Any:
        def seen(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
            calls[name] += 1
            if isinstance(module, nn.Conv2d):
                made[id(result)] = name
                kept.append(result)
            elif isinstance(module, _BatchNorm) and id(given[0]) in made:
                pairs.append((made[id(given[0])], name))

        return seen

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    expected = _maps(forward(image))
    for handle in handles:
        handle.remove()
    return [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == 1], expected


def _maps(given: Any) -> tuple[Tensor, ...]:
    return given if isinstance(given, tuple) else (given,)


def _prefixes(name: str) -> list[str]:
    """Return "", "layer1", "layer1.0" and "layer1.0.conv1" for the last."""
    parts = name.split(".")
    return ["", *(".".join(parts[: n + 1]) for n in range(len(parts)))]


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)
