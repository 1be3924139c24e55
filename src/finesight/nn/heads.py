"""Projection heads."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import nn

ProjectorName = Literal["2-layer", "3-layer-bn"]


def projector(kind: ProjectorName, channels: int, hidden: int, dim: int) -> nn.Sequential:
    """MoCo v2's head: two layers without BN (its code), or the paper's text: three, with BN on the output."""
    layers: list[nn.Module] = [nn.Linear(channels, hidden), nn.ReLU(inplace=True)]
    if kind == "3-layer-bn":
        layers += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(hidden, dim))
    if kind == "3-layer-bn":
        layers.append(nn.BatchNorm1d(dim))
    return nn.Sequential(*layers)


def mlp(*widths: int, last: Literal["bias", "no-bias", "norm", "plain-norm"]) -> nn.Sequential:
    """Linear, BN, ReLU for every hidden layer; the last one is linear, or normalized too (``plain``: not affine).

    What a norm follows has no bias: the norm would take it out again.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last == "bias"))
    if last in ("norm", "plain-norm"):
        layers.append(nn.BatchNorm1d(widths[-1], affine=last == "norm"))
    return nn.Sequential(*layers)
