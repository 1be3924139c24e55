"""How a number of ours was made: what must stand beside it wherever it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from finesight.errors import FineSightError
from finesight.paper.systems import ALL_SYSTEMS, is_frozen
from finesight.paper.table_datasets import PaperDataset

PAPER = {  # a training of the paper's; its Table 2 has batch 32 too
    "resolution": (224,),
    "test_resolution": (224,),
    "epochs": (100,),
    "batch": (32, 128),
    "queue": (65536, None),
    "frozen_stages": (0,),
    "frozen_norm": (False,),
    "initial_share": (0.0,),
}
WORDS = {
    "resolution": "resolution",
    "test_resolution": "test resolution",
    "epochs": "epochs",
    "batch": "batch",
    "queue": "queue",
    "frozen_stages": "frozen stages",
    "frozen_norm": "frozen batch norms",
    "initial_share": "initial weights mixed in",
}
COMMIT = 7  # digits shown


@dataclass(frozen=True)
class Setting:
    """Of one or more rows that were made alike, and by which seeds, when, and on what machine."""

    profile: str
    trained: bool
    classes: int
    of_classes: int  # as published
    train_images: int
    test_images: int
    weights: str
    facts: tuple[tuple[str, Any], ...]  # of the training; of a network that nothing trained, how it looks at images
    seeds: tuple[int, ...]
    commits: tuple[str, ...]
    dates: tuple[str, ...]
    machines: tuple[str, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """What two rows must share to have been made alike."""
        sizes = (self.classes, self.of_classes, self.train_images, self.test_images)
        return (self.profile, self.trained, *sizes, self.weights, self.facts)

    def joined(self, other: Setting) -> Setting:
        """Made alike: by the seeds, commits, dates and machines of both."""
        return replace(
            self,
            seeds=_union(self.seeds, other.seeds),
            commits=_union(self.commits, other.commits),
            dates=_union(self.dates, other.dates),
            machines=_union(self.machines, other.machines),
        )

    @property
    def differs(self) -> list[str]:
        """In what the paper's setting is another one."""
        facts = dict(self.facts)
        found = [WORDS[key] for key, known in PAPER.items() if key in facts and facts[key] not in known]
        found += ["ImageNet weights"] if self.weights != "imagenet" else []
        return found + (["classes"] if self.classes != self.of_classes else [])

    def as_json(self) -> dict[str, Any]:
        found = {key: value for key, value in vars(self).items() if key != "facts"} | dict(self.facts)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()} | {
            "differs_from_paper": self.differs
        }

    def words(self) -> str:
        facts = dict(self.facts)
        share = f"all {self.classes}" if self.classes == self.of_classes else f"{self.classes} of {self.of_classes}"
        parts = [
            f"profile {self.profile}, {share} classes ({self.train_images:,} train, {self.test_images:,} test images)",
            _training(facts) if self.trained else f"nothing trained, tested at {facts['test_resolution']} px",
            f"weights {self.weights}",
            f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
            if self.trained
            else "no seed",
            f"commit {', '.join(text[:COMMIT] + text[40:] for text in self.commits)}" if self.commits else "",
            _span(self.dates),
            *self.machines,
        ]
        made = "; ".join(part for part in parts if part)
        if not self.differs:
            return f"{made}."
        return f"{made}. Not the paper's {', '.join(self.differs)}: not to be compared with its numbers."


def setting_of(dataset: PaperDataset, system: str, results: Sequence[Mapping[str, Any]]) -> Setting:
    """Of a row's seeds, which must have been made alike: else their mean is of nothing."""
    settings = [_setting(dataset, system, result) for result in results]
    if odd := [setting for setting in settings if setting.key != settings[0].key]:
        first, other = settings[0].seeds[0], odd[0].seeds[0]
        raise FineSightError(
            f"{dataset.name}, {system}: seeds {first} and {other} were made with other settings. Delete one of them."
        )
    found = settings[0]
    for setting in settings[1:]:
        found = found.joined(setting)
    return found


def _setting(dataset: PaperDataset, system: str, result: Mapping[str, Any]) -> Setting:
    trained = not is_frozen(ALL_SYSTEMS[system].network)
    known = result["profile"]
    names = tuple(PAPER) if trained else ("test_resolution",)
    return Setting(
        profile=known["name"],
        trained=trained,
        classes=result["classes"],
        of_classes=dataset.classes,
        train_images=result["images"]["train"],
        test_images=result["images"]["test"],
        weights=result["settings"]["backbone.weights"],
        facts=tuple((name, known[name]) for name in names),
        seeds=(result["seed"],),
        commits=tuple(filter(None, [result["commit"]])),
        dates=tuple(filter(None, [result.get("date")])),
        machines=tuple(filter(None, [result.get("machine")])),
    )


def _union(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted({*first, *second}))


def _training(facts: Mapping[str, Any]) -> str:
    parts = [
        f"trained at {facts['resolution']} px, tested at {facts['test_resolution']} px",
        f"{facts['epochs']} {_plural('epoch', facts['epochs'])}",
        f"batch {facts['batch']}",
        "no queue" if facts["queue"] is None else f"queue {facts['queue']}",
        f"{facts['frozen_stages']} stages frozen" if facts["frozen_stages"] else "nothing frozen",
        "batch norms frozen" if facts["frozen_norm"] else "",
        f"{facts['initial_share']:g} of the initial weights in the encoder" if facts["initial_share"] else "",
    ]
    return ", ".join(part for part in parts if part)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _span(dates: Sequence[str]) -> str:
    if not dates:
        return ""
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
