"""Footnotes of the paper's tables: how our numbers were made, wherever they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from finesight.io.console import format_count
from finesight.paper.datasets import PaperDataset
from finesight.paper.selection import find_row, is_frozen
from finesight.paper.store import require_same_settings
from finesight.training.color_rule import STRONG
from finesight.training.renamed import current_settings

PAPER: dict[str, tuple[str, tuple[Any, ...]]] = {  # fact -> its label, and the paper's values (two batch sizes)
    "resolution": ("resolution", (224,)),
    "test_resolution": ("test resolution", (224,)),
    "epochs": ("epochs", (100,)),
    "batch": ("batch", (32, 128)),
    "queue": ("queue", (65536, None)),
    "frozen_stages": ("frozen stages", (0,)),
    "frozen_norm": ("frozen batch norms", (False,)),
    "initial_share": ("initial weights mixed in", (0.0,)),
    "hue": ("color changes", (STRONG["views.hue"], None)),
    "half": ("precision", (False,)),
}
PAPER_SIDE = 224  # pixels
COMMIT = 7  # digits shown
COLLECTED = ("seeds", "commits", "dates", "machines")  # of all rows that share a footnote


@dataclass(frozen=True)
class Footnote:
    """How one or more rows were made: the setting they share, and the seeds, dates and machines of all of them."""

    profile: str
    trained: bool
    classes: int
    of_classes: int  # as published
    train_images: int
    test_images: int
    of_images: tuple[int, int] | None  # train and test as published; None: they are these, or of some classes only
    image_side: int | None  # the files' short side, where it is smaller than the paper's views
    weights: str
    divided: bool | None  # in the variant ``paper``: whether features are divided by ΣA', as before Eq. 9 was a sum
    facts: Mapping[str, Any]  # of the training; where nothing is trained, the test resolution
    seeds: tuple[int, ...]
    commits: tuple[str, ...]
    dates: tuple[str, ...]
    machines: tuple[str, ...]

    @property
    def setting(self) -> dict[str, Any]:
        """Return what rows must share to have one footnote."""
        own = {key: value for key, value in vars(self).items() if key not in ("facts", *COLLECTED)}
        return {**own, **self.facts}

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(self.setting.items())

    def join(self, other: Footnote) -> Footnote:
        """Return the footnote of both: with the seeds, commits, dates and machines of both."""
        both: dict[str, Any] = {name: {*getattr(self, name), *getattr(other, name)} for name in COLLECTED}
        return replace(self, **{name: tuple(sorted(values)) for name, values in both.items()})  # type: ignore[arg-type]

    @property
    def differs(self) -> list[str]:
        """Name what is not as in the paper."""
        labels = [PAPER[key][0] for key, value in self.facts.items() if value not in PAPER[key][1]]
        labels += ["ImageNet weights"] if self.weights != "imagenet" else []
        labels += ["number of images"] if self.of_images else []
        labels += ["size of the images"] if self.image_side else []
        return labels + (["classes"] if self.classes != self.of_classes else [])

    def as_json(self) -> dict[str, Any]:
        values = {key: value for key, value in vars(self).items() if key != "facts"}
        lists = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
        return {**lists, **self.facts, "differs_from_paper": self.differs}

    def words(self) -> str:
        facts = self.facts
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        share = f"all {self.classes}" if self.classes == self.of_classes else f"{self.classes} of {self.of_classes}"
        train, test = f"{self.train_images:,}", f"{self.test_images:,}"
        if self.of_images:
            train, test = (f"{own} of {all_:,}" for own, all_ in zip((train, test), self.of_images, strict=True))
        side = f", short side {self.image_side} px" if self.image_side else ""
        parts = [
            f"profile {self.profile}, {share} classes ({train} train, {test} test images{side})",
            _training(facts) if self.trained else f"nothing trained, tested at {facts['test_resolution']} px",
            f"weights {self.weights}",
            "in half precision (bfloat16)" if facts["half"] else "",
            "linear probes of features that are divided by the mask's sum, which Eq. 9 does not do"
            if self.divided
            else "",
            seeds if self.trained else "no seed",
            f"commit {', '.join(text[:COMMIT] + text[40:] for text in self.commits)}" if self.commits else "",
            " to ".join(dict.fromkeys([*self.dates[:1], *self.dates[-1:]])),
            *self.machines,
        ]
        made = "; ".join(part for part in parts if part)
        if not self.differs:
            return f"{made}."
        return f"{made}. Not the paper's {', '.join(self.differs)}: not to be compared with its numbers."


def make_footnote(dataset: PaperDataset, name: str, results: Sequence[Mapping[str, Any]]) -> Footnote:
    """Return the footnote of a row; raise a ``FineSightError`` if its seeds were made with different settings."""
    first, *others = (_footnote(dataset, name, result) for result in results)
    joined = first
    for other in others:
        what = f"{dataset.name}, {name}: seed {other.seeds[0]} beside seed {first.seeds[0]}"
        require_same_settings(what, first.setting, other.setting, "Delete one of them.")
        joined = joined.join(other)
    return joined


def _footnote(dataset: PaperDataset, name: str, result: Mapping[str, Any]) -> Footnote:
    trained = not is_frozen(find_row(name).training)
    known = result["profile"]
    names = PAPER if trained else ("test_resolution", "half")
    known = {"half": False, **known, "hue": result["settings"].get("views.hue")}  # older results do not say half
    own, official = (result["images"]["train"], result["images"]["test"]), dataset.official
    whole = result["classes"] != dataset.classes or own == (official.train, official.test)
    side = result.get("image_side")  # of results of earlier versions it is not known
    return Footnote(
        profile=known["name"],
        trained=trained,
        classes=result["classes"],
        of_classes=dataset.classes,
        train_images=own[0],
        test_images=own[1],
        of_images=None if whole else (official.train, official.test),
        image_side=side if side is not None and side < PAPER_SIDE else None,
        weights=result["settings"]["backbone.weights"],
        divided=_divides(result["settings"]),
        facts={name: known[name] for name in names},
        seeds=(result["seed"],),
        commits=tuple(filter(None, [result["commit"]])),
        dates=tuple(filter(None, [result.get("date")])),
        machines=tuple(filter(None, [result.get("machine")])),
    )


def _divides(settings: Mapping[str, Any]) -> bool | None:
    """Return whether a result of the variant ``paper`` is from before its Eq. 9 was a sum; None for other variants."""
    if current_settings(settings)[0].get("rationale.variant") != "paper":
        return None
    return settings.get("rationale.mask_total") != "sum"


def _training(facts: Mapping[str, Any]) -> str:
    parts = [
        f"trained at {facts['resolution']} px, tested at {facts['test_resolution']} px",
        format_count(facts["epochs"], "epoch"),
        f"batch {facts['batch']}",
        "no queue" if facts["queue"] is None else f"queue {facts['queue']}",
        f"{facts['frozen_stages']} stages frozen" if facts["frozen_stages"] else "nothing frozen",
        "batch norms frozen" if facts["frozen_norm"] else "",
        f"{facts['initial_share']:g} of the initial weights in the encoder" if facts["initial_share"] else "",
        ""
        if facts["hue"] is None
        else f"colors changed {'mildly' if facts['hue'] < STRONG['views.hue'] else 'strongly'}",
    ]
    return ", ".join(part for part in parts if part)
