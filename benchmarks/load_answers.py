"""What the answers of a server must be: recorded while it is idle, and compared while it is under load.

The index has two states, "first" and "second", of which the second has other images too and lacks some of the first.
While it changes from one into the other, an answer must be that of some set of images between the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from load_client import Answer

HITS, DEPTH = 24, 72  # hits that are asked for under load, and that are recorded
TOLERANCE = 1e-5  # of scores and of maps
FIRST, SECOND = "first", "second"


@dataclass
class World:
    """Which images the index holds: its state, and how often it began or ended to change."""

    first: set[str]  # ids
    second: set[str]
    state: str = FIRST
    changing: bool = False
    version: int = 0

    @property
    def both(self) -> set[str]:
        return self.first & self.second

    def now(self) -> set[str]:
        return self.first if self.state == FIRST else self.second

    def begin(self) -> None:
        self.changing, self.version = True, self.version + 1

    def end(self) -> None:
        self.state = SECOND if self.state == FIRST else FIRST
        self.changing, self.version = False, self.version + 1


Reduce = Callable[[Answer], Any]
Same = Callable[[Any, Any], str]  # what was got, what was recorded -> what is wrong, "" if nothing
Between = Callable[[Any, list[Any], World], str]


@dataclass(frozen=True)
class Ask:
    """A request whose answer is known."""

    kind: str
    data: bytes
    record: bytes  # the request whose answer is recorded: it may ask for more hits
    reduce: Reduce
    same: Same
    between: Between | None = None  # while the index changes; by default that of either state
    fine: tuple[int, ...] = (200,)
    known: dict[str, Any] = field(default_factory=dict, compare=False)  # the answer in each state

    def learn(self, state: str, answer: Answer) -> None:
        """Record an answer of the idle server."""
        if answer.status == 404:
            self.known[state] = None
            return
        if answer.status not in self.fine:
            raise SystemExit(f"The idle server answered {answer.status} to {self.kind}: {answer.body[:200]!r}")
        self.known[state] = self.reduce(answer)

    def judge(self, answer: Answer, world: World, version: int) -> str:
        """Return what is wrong with an answer to a request that was sent at that version of the index."""
        if answer.status == 404:
            got = None
        elif answer.status in self.fine:
            got = self.reduce(answer)
        else:
            return f"status {answer.status}: {answer.body[:120]!r}"
        states = list(self.known.values())
        if not world.changing and world.version == version:
            return self._compare(got, self.known[world.state])
        said = [self._compare(got, known) for known in states]
        if not all(said) or self.between is None or got is None:
            return "" if not all(said) else said[0]
        return self.between(got, [known for known in states if known is not None], world)

    def _compare(self, got: Any, known: Any) -> str:
        if got is None or known is None:
            return "" if got is known else f"404 {'' if got is None else 'was expected'}"
        return self.same(got, known)


# --- hits -------------------------------------------------------------------------------------------------------------


def hits_of(answer: Answer) -> dict[str, float]:
    """Scores by id, best first."""
    return {hit["id"]: hit["score"] for hit in answer.json["hits"]}


def same_hits(got: dict[str, float], known: dict[str, float]) -> str:
    """The first ``HITS`` of those known, in their order but for scores that are equal to ``TOLERANCE``."""
    best = list(known.items())[:HITS]
    if len(got) != len(best):
        return f"{len(got)} hits, not {len(best)}"
    for (item, score), (_, expected) in zip(got.items(), best, strict=True):
        if abs(score - expected) > TOLERANCE or abs(score - known.get(item, -9.0)) > TOLERANCE:
            return f"item {item} has {score:.6f}, recorded {known.get(item)}, in a place of {expected:.6f}"
    return ""


def hits_between(got: dict[str, float], known: list[dict[str, float]], world: World) -> str:
    """Every hit has its score, and no image that was there all the time and is nearer is missing."""
    scores = {item: score for one in known for item, score in one.items()}
    for item, score in got.items():
        if abs(score - scores.get(item, -9.0)) > TOLERANCE:
            return f"while the index changed, item {item} had {score:.6f}, recorded {scores.get(item)}"
    least = min(got.values(), default=-9.0) if len(got) >= HITS else -9.0
    missing = [item for item in world.both & scores.keys() - got.keys() if scores[item] > least + TOLERANCE]
    return f"while the index changed, item {missing[0]} was missing" if missing else ""


def chosen_between(got: dict[str, float], known: list[dict[str, float]], world: World) -> str:
    """Of hits that were chosen for variety, only where they come from is known."""
    foreign = got.keys() - (world.first | world.second)
    return f"foreign hits {foreign}" if foreign else ""


# --- others -----------------------------------------------------------------------------------------------------------


def digest_of(answer: Answer) -> str:
    """Of pictures and files."""
    return f"{answer.status} {hashlib.sha256(answer.body).hexdigest()[:16]}"


def same_value(got: Any, known: Any) -> str:
    return "" if got == known else f"{str(got)[:60]} is not {str(known)[:60]}"


def numbers_of(answer: Answer) -> np.ndarray:
    """All numbers of an answer, in their order."""
    found: list[float] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)
        elif isinstance(value, int | float):
            found.append(float(value))

    walk(answer.json)
    return np.array(found)


def same_numbers(got: np.ndarray, known: np.ndarray) -> str:
    if len(got) != len(known):
        return f"{len(got)} numbers, not {len(known)}"
    apart = float(np.abs(got - known).max(initial=0.0))
    return f"numbers differ by {apart:.2g}" if apart > TOLERANCE else ""


def list_of(answer: Answer) -> tuple[int, tuple[str, ...]]:
    found = answer.json
    return found["total"], tuple(item["id"] for item in found["items"])


def list_between(got: tuple[int, tuple[str, ...]], known: list[Any], world: World) -> str:
    foreign = set(got[1]) - (world.first | world.second)
    return f"foreign items {foreign}" if foreign else ""


def count_of(answer: Answer) -> int:
    """The images that the server says it has."""
    return int(answer.json["items"])


def grouped_of(answer: Answer) -> int:
    """The images that are in groups or in none."""
    found = answer.json
    return sum(group["size"] for group in found["clusters"]) + int(found["unclustered"])


def count_between(got: int, known: list[int], world: World) -> str:
    """A change removes images first and adds others then."""
    least, most = len(world.both), len(world.first | world.second)
    return "" if least <= got <= most else f"{got} images, not between {least} and {most}"
