"""The default protocol: rate and length of the probe are chosen on a part of train, and test is used once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from finesight.evaluation.protocols import PROTOCOLS, ProbeTask, Protocol
from finesight.io.console import format_count

if TYPE_CHECKING:
    from finesight.evaluation.linear import ProbeResult


@PROTOCOLS.decorator("finesight")
@dataclass(frozen=True)
class FineSightProtocol(Protocol):
    """The paper's text, with what it leaves open chosen without test."""

    name = "finesight"

    def probe(self, task: ProbeTask) -> dict[str, ProbeResult]:
        from finesight.evaluation.linear import linear_probe
        from finesight.io.console import console

        def say(text: str) -> None:
            console.print(f"{task.pooling}: {text}", style="dim")

        assert task.train_features is not None
        return linear_probe(
            task.train_features,
            task.labels(task.train),
            task.test_features,
            task.labels(task.test),
            fractions=tuple(task.parts),
            seed=self.seed,
            normalize=task.unit,
            progress=say if task.progress else None,
            parts=task.parts,
        )

    def probe_facts(self, results: Mapping[str, ProbeResult]) -> dict[str, Any]:
        chosen = {
            percent: {"images": result.validation_images, "folds": result.folds} for percent, result in results.items()
        }
        return {"validation": chosen}

    @classmethod
    def probe_words(cls, setting: Mapping[str, Any]) -> str:
        parts = [
            f"{format_count(part['images'], 'image')} in {format_count(part['folds'], 'fold')} at {percent} %"
            if part["folds"]
            else f"nothing to choose on at {percent} %"
            for percent, part in setting["validation"].items()
        ]
        return f"Rate and length of the probe chosen on train alone, by held-out {', '.join(parts)}."
