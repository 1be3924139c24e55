"""Every objective small enough for a test, in float64; and one on a backbone that hands its images on as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.methods.base import OBJECTIVES, DatasetInfo, Objective
from finesight.nn.backbone import Backbone, BackboneConfig
from finesight.paper.hooks.objects import needs_masks
from reference.gradcam import differences

CHANNELS, CLASSES = 96, 3  # of timm's test_resnet; of the labels below

# by what objectives call them
SIZES = {"dim": 6, "hidden": 10, "bottleneck": 4, "prototypes": 7, "heads": 2, "momentum": 0.9, "queue": 13}


class Pixels(nn.Module):
    """φ is the image: what the loss sees can be chosen."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        return images


def _made(name: str, backbone: Any, settings: dict[str, Any]) -> Any:
    kind = OBJECTIVES[name]
    sizes = {name: size for name, size in SIZES.items() if name in kind.Config.model_fields}
    config = kind.Config.model_validate({**sizes, **settings})
    objective = kind(backbone, config, DatasetInfo(images=100, batch_size=2, classes=CLASSES)).double()
    if needs_masks(kind):
        objective.register_forward_pre_hook(_with_objects)
    return objective


def _with_objects(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Views that lack it get the channel that says where the object is: where they are bright."""
    views, *rest = args
    return [view if view.shape[1] == 4 else torch.cat([view, objects(view)], 1) for view in views], *rest


def objects(view: Tensor) -> Tensor:
    """(N, 3, R, R) -> (N, 1, R, R)"""
    return view.mean(1, keepdim=True).sigmoid()


@cache
def _resnet(seed: int) -> Backbone:
    """Its residual branches count: timm begins them with a norm of zeros, which would hide what happens in them."""
    torch.manual_seed(seed)
    backbone = Backbone(BackboneConfig(name="test_resnet", weights="random"))
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return backbone


def small(name: str, seed: int = 0, **settings: Any) -> Any:
    """On a tiny ResNet; momentum copies differ from their networks."""
    backbone = copy.deepcopy(_resnet(seed))
    torch.manual_seed(seed)
    objective = _made(name, backbone, settings)
    with torch.no_grad():
        for average, _ in objective.momentum_copies():
            for parameter in average.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    return objective


def bare(name: str, channels: int, **settings: Any) -> Any:
    """Without a backbone: each view is (N, channels, 1, 1), or what ``images`` makes of vectors."""
    torch.manual_seed(0)
    return _made(name, Pixels(channels), settings)


def images(vectors: Tensor) -> Tensor:
    """(N, D) -> (N, D, 1, 1)"""
    return vectors[:, :, None, None]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def units(*shape: int, seed: int = 0) -> Tensor:
    """Vectors of length one."""
    return F.normalize(normal(*shape, seed=seed), dim=-1)


def pictures(n: int = 5, side: int = 36, views: int = 2, seed: int = 1) -> list[Tensor]:
    """Views of n images that look alike, but not too much: what they share is as strong as what is new."""
    shared = normal(1, n, 3, side, side, seed=seed)
    return list(shared + normal(views, n, 3, side, side, seed=seed + 1))


def labels(n: int = 5) -> Tensor:
    return torch.arange(n) % CLASSES


def output_of(objective: Objective, views: list[Tensor]) -> Any:
    return objective(views, seeded(), labels(len(views[0])))


def assert_slopes(objective: Objective, loss: Callable[..., float], *views: Tensor, atol: float = 1e-8) -> None:
    """The gradient of the mean loss in every view is what nudging its numbers measures, by a loss of NumPy arrays."""
    leaves = [view.clone().requires_grad_() for view in views]
    shaped = [images(leaf) if leaf.ndim == 2 else leaf for leaf in leaves]
    slopes = torch.autograd.grad(output_of(objective, shaped).loss.mean(), leaves)
    arrays = [view.numpy() for view in views]
    for place, slope in enumerate(slopes):

        def nudged(x: np.ndarray, place: int = place) -> float:
            return float(loss(*(x if i == place else other for i, other in enumerate(arrays))))

        np.testing.assert_allclose(slope.numpy(), differences(nudged, arrays[place]), rtol=1e-6, atol=atol)


def outputs(objective: Any, view: Tensor, backbone: str = "backbone", head: str = "head") -> Tensor:
    """What the head says of a view, computed apart from the objective."""
    phi = getattr(objective, backbone)(view)
    said: Tensor = getattr(objective, head)(phi.mean((2, 3)))
    return said
