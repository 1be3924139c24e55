"""The rows of a bench: which network, pooled how, and which row of the paper it stands beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finesight.errors import unknown
from finesight.methods.base import METHODS
from finesight.nn.poolings import BranchPooling


@dataclass(frozen=True)
class Network:
    """A training, or none. ``settings`` go on top of the profile's."""

    method: str | None  # its name; None: the backbone as its weights are
    rationale: bool = False  # does it take what the profile says of the rationale?
    study: bool = False  # are branches of other K fitted beside its own?
    settings: dict[str, Any] = field(default_factory=dict)


NETWORKS: dict[str, Network] = {
    "frozen": Network(None),
    "moco-v2": Network("moco-v2"),
    "lcr": Network("lcr", rationale=True, study=True),
    "lcr-paper": Network("lcr", settings={"rationale.variant": "paper"}),
}
PROJECTIONS = (1, 2, 4, 8, 16, 64, 128, 256)  # the K curve beside LCR's own 32
UNTRAINED = "untrained"


@dataclass(frozen=True)
class System:
    """One row: a network, a pooling, and what the paper calls it."""

    network: str
    pooling: str
    words: str
    paper: str | None = None
    probe: bool = True  # linear probes are slow: not for rows that only draw a curve


def _controlled(network: str, words: str, paper: str) -> dict[str, System]:
    """A network averaged, as the paper has it, and under every pooling that needs no learning."""
    return {
        network: System(network, "average", f"{words}, average", paper=paper),
        f"{network}-energy": System(network, "energy", f"{words}, energy mask"),
        f"{network}-gem": System(network, "gem", f"{words}, GeM"),
        f"{network}-energy-gem": System(network, "energy-gem", f"{words}, energy mask in GeM"),
        f"{network}-box": System(network, "box", f"{words}, box oracle", probe=False),
        f"{network}-box-gem": System(network, "box-gem", f"{words}, box oracle in GeM", probe=False),
    }


def _by_branch(name: str) -> str:
    return BranchPooling(name, gem=True).name


SYSTEMS: dict[str, System] = {
    **_controlled("frozen", "ImageNet weights", paper="ResNet-50"),
    **_controlled("moco-v2", "MoCo v2", paper="MoCo v2"),
    "lcr-multitask": System("lcr", "average", "LCR's network, average (MultiTask)", paper="Ours-MultiTask"),
    "lcr-untrained": System("lcr", _by_branch(UNTRAINED), "LCR's network, untrained branch in GeM", probe=False),
    "lcr-mask": System("lcr", "rationale", "LCR, mask alone without GeM"),
    "lcr": System("lcr", "rationale-gem", "LCR", paper="Ours"),
    **{f"lcr-k{k}": System("lcr", _by_branch(str(k)), f"LCR, K = {k}", probe=False) for k in PROJECTIONS},
    "lcr-paper": System("lcr-paper", "rationale", "LCR as the paper's text reads", paper="Ours"),
}


# --- the other systems of the paper's Tables 2 and 3 ------------------------------------------------------------------


def _by_method(method: str) -> System:
    """The pooling is the method's, or that of the variant ``finesight``."""
    entry = METHODS[method]
    pooling = entry.pooling or ("rationale-gem" if entry.rationale else "average")
    return System(method, pooling, entry.about, paper=entry.paper)


OTHERS = (
    *("supervised", "dino", "simclr", "byol", "simsiam", "barlow-twins", "vicreg", "byol-lcr"),
    *("moco-bilinear", "sam-ssl", "sam-ssl-bilinear", "dilo", "cvsa", "lewel", "contrastive-crop"),
    *("lcr-dual-pooling", "lcr+contrastive-crop"),
)
# ``lcr-multitask`` above is LCR's network averaged: the method of that name lets the branch teach the encoder too.
MULTITASK = "multitask"
OTHER_NETWORKS: dict[str, Network] = {
    **{name: Network(name, rationale=METHODS[name].rationale) for name in OTHERS},
    MULTITASK: Network("lcr-multitask", rationale=True),
}
OTHER_SYSTEMS: dict[str, System] = {
    **{name: _by_method(name) for name in OTHERS},
    MULTITASK: System(MULTITASK, "average", METHODS["lcr-multitask"].about, paper="Ours-MultiTask"),
}
ALL_SYSTEMS = SYSTEMS | OTHER_SYSTEMS


def network(name: str) -> Network:
    return NETWORKS[name] if name in NETWORKS else OTHER_NETWORKS[name]


def is_frozen(name: str) -> bool:
    return network(name).method is None


def chosen(names: Sequence[str], among: Mapping[str, System] = SYSTEMS) -> dict[str, System]:
    """These rows in the table's order; all when none is named."""
    for name in names:
        if name not in among:
            raise unknown("system", name, among)
    return {name: system for name, system in among.items() if not names or name in names}
