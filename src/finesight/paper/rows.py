"""The trainings and rows of birds and tables. Nothing heavy is imported: the command line reads this."""

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
    gentle: bool = False  # LARS spares the pretrained network, as ``finesight train`` has it


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

OBJECTIVES = {  # beside MoCo v2, of the paper's Table 2
    **{"supervised": "supervised", "dino": "DINO", "simclr": "SimCLR", "byol": "BYOL", "simsiam": "SimSiam"},
    **{"barlow-twins": "Barlow Twins", "vicreg": "VICReg"},
}
LOOKING = {  # of the paper's Table 3, which average φ as MoCo v2 does
    **{"sam-ssl": "SAM-SSL", "dilo": "DiLo", "cvsa": "CVSA", "lewel": "LEWEL"},
    **{"contrastive-crop": "ContrastiveCrop", "multitask": "MultiTask"},
}
OWN_POOLING = ("moco-bilinear", "sam-ssl-bilinear", "lcr-dual-pooling")  # of Table 3, which pool in ways of their own
BY_LARS = ("simclr", "byol", "vicreg")  # at their authors' rates, which Barlow Twins lowers itself for biases and norms
_RATIONALE: dict[str, Any] = {"rationale.variant": "finesight"}
OWN = {"byol-lcr": "byol", "simsiam-lcr": "simsiam"}  # of which --methods may ask for GradCAM of each image's own loss

TRAININGS: dict[str, Training] = {  # every other training is the method of its name
    "lcr": Training("lcr", {"rationale.study": PROJECTIONS}),
    "lcr-paper": Training("lcr", {"rationale.variant": "paper"}),
    # The row ``lcr-multitask`` is LCR's network averaged; in the method of that name the branch trains the encoder too.
    "multitask": Training("lcr-multitask"),
    **{f"{name}-lcr": Training(name, _RATIONALE) for name in OBJECTIVES if name != "byol"},  # byol-lcr is a method
    **{f"{name}-gentle": Training(name, gentle=True) for name in BY_LARS},
    **{f"{name}-gentle-lcr": Training(name, _RATIONALE, gentle=True) for name in BY_LARS},
    **{f"{name}-own": Training(method, {**_RATIONALE, "rationale.gradient": "own"}) for name, method in OWN.items()},
    **{f"{name}-boxes": Training(name, {"saliency.source": "boxes"}) for name in ("dilo", "cvsa")},
}
# A training, and the same with the rationale: where nothing of the branch reaches the encoder, one gives both.
WITH_RATIONALE: dict[str, str] = {
    "moco-v2": "lcr",
    **{name: f"{name}-lcr" for name in OBJECTIVES},
    **{f"{name}-gentle": f"{name}-gentle-lcr" for name in BY_LARS},
    "contrastive-crop": "lcr+contrastive-crop",
}
OF_THE_RATIONALE = {  # the training of a network, and the row of its rationale
    **{name: f"{name}-lcr" for name in WITH_RATIONALE},
    **{"moco-v2": "lcr", "contrastive-crop": "lcr+contrastive-crop"},
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
        f"{method}-energy-gem-two-maps": Row(
            method, "energy-gem-two-maps", f"{label}, energy mask in GeM, two maps", probe=False
        ),
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
    "lcr-two-maps": Row("lcr", "rationale-gem-two-maps", "LCR, two maps", probe=False),
    **{f"lcr-k{k}": Row("lcr", _branch_gem(str(k)), f"LCR, K = {k}", probe=False) for k in PROJECTIONS},
    "lcr-paper": Row("lcr-paper", "rationale-sum", "LCR as the paper's text reads", paper="Ours"),
}


def _without_learning(name: str, label: str, *, probe: bool = True) -> dict[str, Row]:
    """Return the rows of a network under two poolings that learn nothing."""
    return {
        f"{name}-gem": Row(name, "gem", f"{label}, GeM", probe=probe),
        f"{name}-energy-gem": Row(name, "energy-gem", f"{label}, energy mask in GeM", probe=probe),
    }


def _of_objective(name: str, label: str) -> dict[str, Row]:
    """Return an objective's rows beside that of its average: two poolings that learn nothing, and the rationale."""
    rows = _without_learning(name, label)
    if name != "byol":  # byol-lcr is a method, and so a row
        rows[f"{name}-lcr"] = Row(WITH_RATIONALE[name], "rationale-gem", f"{label} with the rationale")
    return rows


def _gentle(name: str) -> dict[str, Row]:
    """Return all rows of an objective whose optimizer spares the pretrained network."""
    gentle, label = f"{name}-gentle", f"{OBJECTIVES[name]}, gentle optimizer"
    return {gentle: Row(gentle, "average", f"{label}, average"), **_of_objective(gentle, label)}


# Rows of the tables that the paper does not have, by the row they follow.
MORE_ROWS: dict[str, dict[str, Row]] = {
    "moco-v2": {name: BIRD_ROWS[name] for name in ("moco-v2-gem", "moco-v2-energy-gem")},
    **{name: _of_objective(name, label) for name, label in OBJECTIVES.items()},
    **{name: _of_objective(name, OBJECTIVES[name]) | _gentle(name) for name in BY_LARS},
    **{name: _without_learning(name, label, probe=False) for name, label in LOOKING.items()},
}
for _name in ("dilo", "cvsa"):
    _boxes = f"{_name}-boxes", f"{LOOKING[_name]}, objects from the annotated boxes"
    MORE_ROWS[_name] |= {_boxes[0]: Row(_boxes[0], "average", _boxes[1]), **_without_learning(*_boxes, probe=False)}
_OWN = {f"{name}-own": Row(f"{name}-own", "rationale-gem", f"{name}, GradCAM of own losses") for name in OWN}
TABLE_ROWS: dict[str, Row] = {name: row for rows in (*MORE_ROWS.values(), _OWN) for name, row in rows.items()}
