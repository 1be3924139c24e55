"""The protocol of the paper's released code: see ``finesight.paper.released`` for its probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finesight.evaluation.protocols import PROTOCOLS, ProbeTask, Protocol

if TYPE_CHECKING:
    from finesight.evaluation.linear import ProbeResult

EPOCHS = 100


@PROTOCOLS.decorator("released")
@dataclass(frozen=True)
class ReleasedProtocol(Protocol):
    """What the released code does, but for its defects (docs/protocols.md)."""

    name = "released"
    ties = "last"  # a sorted list read backwards
    by_class = True  # as a folder of class folders lists them: batches are of look-alikes then

    probe_epochs: int = EPOCHS
    state: Path | None = None  # the folder where the probe keeps how far it is
    batch_size: int = 256
    forward_size: int = 64  # images that go through the network together: four processes share a batch of 256
    save_seconds: float = 60.0  # between two saves of the state within an epoch

    @property
    def needs_train_features(self) -> bool:
        return bool(self.knn)

    def probe(self, task: ProbeTask) -> dict[str, ProbeResult]:
        from finesight.paper.released import train_probes

        return train_probes(task, self)

    def probe_facts(self, results: Mapping[str, ProbeResult]) -> dict[str, Any]:
        return {"test_looks": self.probe_epochs, "rate_falls_after": list(milestones(self.probe_epochs))}

    @classmethod
    def probe_words(cls, setting: Mapping[str, Any]) -> str:
        first, second = setting["rate_falls_after"]
        short = "" if setting["test_looks"] == EPOCHS else f" of {setting['test_looks']} (60 and 80 of 100 as released)"
        return f"Probe: rate 30, a tenth after epochs {first} and {second}{short}, nothing chosen; last epoch."


def milestones(epochs: int) -> tuple[int, int]:
    """Return the epochs, from 0, at which the rate falls to a tenth: 60 and 80 of 100, the same shares of others."""
    return round(0.6 * epochs), round(0.8 * epochs)
