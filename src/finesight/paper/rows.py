"""The trainings and rows of ``finesight bench birds``. Nothing heavy is imported: the command line reads this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finesight.nn.poolings import BranchPooling


@dataclass(frozen=True)
class Training:
    """A method and settings on top of the profile's. It is trained once for every seed, unless nothing is to train."""

    method: str | None = None  # None: LCR, or the method the user sets
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One scored line of a table: a training under a pooling."""

    training: str
    pooling: str
    label: str
    paper: str | None = None  # its row in the paper's tables
    probe: bool = True  # linear probes are slow: rows that only draw a curve have none


PROJECTIONS = (1, 2, 4, 8, 16, 64, 128, 256)  # the K curve beside LCR's own 32
UNTRAINED = "untrained"

TRAININGS: dict[str, Training] = {  # every other training is the method of its name
    "lcr": Training("lcr", {"rationale.study": PROJECTIONS}),
    "lcr-paper": Training("lcr", {"rationale.variant": "paper"}),
    # The row ``lcr-multitask`` is LCR's network averaged; in the method of that name the branch trains the encoder too.
    "multitask": Training("lcr-multitask"),
}


def _branch_gem(name: str) -> str:
    return BranchPooling(name, gem=True).name


def _controls(method: str, label: str, paper: str) -> dict[str, Row]:
    """Return a method's rows under average pooling, as in the paper, and under every pooling that learns nothing."""
    return {
        method: Row(method, "average", f"{label}, average", paper=paper),
        f"{method}-energy": Row(method, "energy", f"{label}, energy mask"),
        f"{method}-gem": Row(method, "gem", f"{label}, GeM"),
        f"{method}-energy-gem": Row(method, "energy-gem", f"{label}, energy mask in GeM"),
        f"{method}-box": Row(method, "box", f"{label}, box oracle", probe=False),
        f"{method}-box-gem": Row(method, "box-gem", f"{label}, box oracle in GeM", probe=False),
    }


BIRD_ROWS: dict[str, Row] = {
    **_controls("frozen", "ImageNet weights", paper="ResNet-50"),
    **_controls("moco-v2", "MoCo v2", paper="MoCo v2"),
    "lcr-multitask": Row("lcr", "average", "LCR's network, average (MultiTask)", paper="Ours-MultiTask"),
    "lcr-untrained": Row("lcr", _branch_gem(UNTRAINED), "LCR's network, untrained branch in GeM", probe=False),
    "lcr-mask": Row("lcr", "rationale", "LCR, mask alone without GeM"),
    "lcr": Row("lcr", "rationale-gem", "LCR", paper="Ours"),
    **{f"lcr-k{k}": Row("lcr", _branch_gem(str(k)), f"LCR, K = {k}", probe=False) for k in PROJECTIONS},
    "lcr-paper": Row("lcr-paper", "rationale", "LCR as the paper's text reads", paper="Ours"),
}
