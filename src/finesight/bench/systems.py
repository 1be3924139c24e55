"""The rows of a bench: which network, pooled how, and which row of the paper it stands beside."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from finesight.errors import FineSightError
from finesight.nn.pooling_config import AnyPooling


@dataclass(frozen=True)
class Network:
    """A training, or none. ``settings`` go on top of the profile's; ``rationale`` says which of them it knows."""

    method: str | None  # None: the backbone as its weights are
    rationale: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


NETWORKS: dict[str, Network] = {
    "frozen": Network(None),
    "moco-v2": Network("moco-v2"),
    "lcr": Network("lcr", rationale=True),
    "lcr-paper": Network("lcr", settings={"rationale.reading": "paper"}),
}
PROJECTIONS = (1, 2, 4, 8, 16, 64, 128, 256)  # the K curve beside LCR's own 32
UNTRAINED = "untrained"


@dataclass(frozen=True)
class System:
    """One row: a network, a pooling, and what the paper calls it."""

    network: str
    pooling: AnyPooling
    words: str
    paper: str | None = None
    probe: bool = True  # linear probes are slow: not for rows that only draw a curve


SYSTEMS: dict[str, System] = {
    "frozen": System("frozen", "average", "ImageNet weights, average", paper="ResNet-50"),
    "frozen-energy": System("frozen", "energy", "ImageNet weights, energy mask"),
    "frozen-gem": System("frozen", "gem", "ImageNet weights, GeM"),
    "frozen-energy-gem": System("frozen", "energy-gem", "ImageNet weights, energy mask in GeM"),
    "frozen-box": System("frozen", "box", "ImageNet weights, box oracle", probe=False),
    "frozen-box-gem": System("frozen", "box-gem", "ImageNet weights, box oracle in GeM", probe=False),
    "moco-v2": System("moco-v2", "average", "MoCo v2, average", paper="MoCo v2"),
    "moco-v2-energy": System("moco-v2", "energy", "MoCo v2, energy mask"),
    "moco-v2-gem": System("moco-v2", "gem", "MoCo v2, GeM"),
    "moco-v2-energy-gem": System("moco-v2", "energy-gem", "MoCo v2, energy mask in GeM"),
    "moco-v2-box": System("moco-v2", "box", "MoCo v2, box oracle", probe=False),
    "moco-v2-box-gem": System("moco-v2", "box-gem", "MoCo v2, box oracle in GeM", probe=False),
    "lcr-multitask": System("lcr", "average", "LCR's network, average (MultiTask)", paper="Ours-MultiTask"),
    "lcr-untrained": System("lcr", f"rationale:{UNTRAINED}-gem", "LCR's network, untrained branch in GeM", probe=False),
    "lcr-mask": System("lcr", "rationale", "LCR, mask alone without GeM"),
    "lcr": System("lcr", "rationale-gem", "LCR", paper="Ours"),
    **{f"lcr-k{k}": System("lcr", f"rationale:{k}-gem", f"LCR, K = {k}", probe=False) for k in PROJECTIONS},
    "lcr-paper": System("lcr-paper", "rationale", "LCR as the paper's text reads", paper="Ours"),
}


def chosen(names: Sequence[str]) -> dict[str, System]:
    """These rows in the table's order; all when none is named."""
    for name in names:
        if name not in SYSTEMS:
            near = difflib.get_close_matches(name, SYSTEMS, n=3, cutoff=0.4) or list(SYSTEMS)
            raise FineSightError(f"There is no system {name!r}. Nearest: {', '.join(near)}.")
    return {name: system for name, system in SYSTEMS.items() if not names or name in names}
