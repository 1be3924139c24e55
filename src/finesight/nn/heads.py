"""Projection heads."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import nn

ProjectorName = Literal["2-layer", "3-layer-bn"]


def projector(kind: ProjectorName, channels: int, hidden: int, dim: int) -> nn.Sequential:
    """Return MoCo v2's head: two layers without BN as in its code, or three with BN on the output as in LCR's text."""
    first = (nn.Linear(channels, hidden), nn.ReLU(inplace=True))
    if kind == "2-layer":
        return nn.Sequential(*first, nn.Linear(hidden, dim))
    second = (nn.Linear(hidden, hidden), nn.ReLU(inplace=True))
    return nn.Sequential(*first, *second, nn.Linear(hidden, dim), nn.BatchNorm1d(dim))


def mlp(*widths: int, last: Literal["bias", "no-bias", "norm", "plain-norm"]) -> nn.Sequential:
    """Return layers of these widths: hidden ones with BN and ReLU, the last linear or with BN (``plain``: not affine).

    A layer before a norm has no bias: the norm would take it out again.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last == "bias"))
    if last in ("norm", "plain-norm"):
        layers.append(nn.BatchNorm1d(widths[-1], affine=last == "norm"))
    return nn.Sequential(*layers)
