"""Projection heads."""

from __future__ import annotations

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
