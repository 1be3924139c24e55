"""Let a person choose between two candidates, shown blind: whose nearest image is more like the query?

Only queries whose nearest images differ are asked about: on all others the candidates are equal, with labels or
without. Among those the order is random, so that what was clicked stands for what was not, and which side is whose is
drawn for each. With labels as the judge, the mean click times the share of such queries is the difference in rank-1.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError, unknown
from finesight.evaluation.judgments import (
    CHOICES,
    NAME,
    Candidate,
    Choice,
    Judgment,
    Record,
    Side,
    read_records,
    update_record,
)
from finesight.evaluation.sequential import ALPHA, weigh
from finesight.features.encoder_folder import CONFIG, fingerprint
from finesight.io.console import format_count

if TYPE_CHECKING:
    from finesight.features.wide import Features

FROZEN, TRAINED = "frozen", "trained"  # names of the candidates of one run
IMAGES = 2000  # most that are searched: more would not narrow the interval of a few hundred clicks
WORTH = 1.0  # points of rank-1; a smaller difference is none
PATIENCE = 120  # clicks before judging is called off because it would take too many more
TOO_MANY = 1000  # more clicks: with these two, 7 of 100 judgings of a difference of 10 points are called off then


class NotAsked(FineSightError):
    """An answer without its question, or nothing to take back."""


State = Literal["asking", "decided", "equal", "far", "exhausted"]


@dataclass(frozen=True)
class Decision:
    """What the clicks about two candidates say, decided or not yet."""

    a: str
    b: str
    state: State  # "equal": within WORTH of each other; "far": undecided, and many more clicks would not help soon
    winner: str | None  # the name of a candidate; only when decided
    clicks: int
    for_a: int
    for_b: int
    ties: int
    e_value: float  # of "neither is preferred"; 20 decides
    difference: float  # in rank-1, B minus A, in percent points
    low: float  # its 95 % interval, which holds at any number of clicks
    high: float
    share: float  # of images for which the two disagree, in percent
    clicks_left: int | None  # a guess

    @property
    def words(self) -> str:
        """Return the state in sentences."""
        between = f"95 % between {self.low:+.1f} and {self.high:+.1f}"
        gap = f"{self.b} − {self.a} in rank-1: {self.difference:+.1f} points, {between}"
        counts = f"{self.for_b} for {self.b}, {self.for_a} for {self.a}, {self.ties} for both or neither"
        if self.share == 0:
            return f"{self.a} and {self.b} find the same nearest image for every picture: there is nothing to judge."
        if self.winner is not None:
            loser = self.a if self.winner == self.b else self.b
            return f"{self.winner} is better than {loser} after {format_count(self.clicks, 'click')} ({counts}). {gap}."
        endings = {
            "asking": "Not decided yet",
            "equal": f"There is no difference of more than {WORTH:g} point",
            "far": "No difference that is worth more clicks",
            "exhausted": "Every picture on which they disagree was judged, and neither is clearly better",
            "decided": "",
        }
        leads = f"{self.leader} leads. " if self.leader is not None else ""
        return f"{endings[self.state]} after {format_count(self.clicks, 'click')} ({counts}). {leads}{gap}."

    @property
    def leader(self) -> str | None:
        """Return the name of the one that was preferred more often, which proves nothing."""
        return None if self.for_a == self.for_b else self.a if self.for_a > self.for_b else self.b

    def summary(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return {**vars(self), "leader": self.leader, "words": self.words}


@dataclass(frozen=True)
class Question:
    """Which of two images is more like the query? Indices into the images; whose they are is not told."""

    number: int  # from 1
    query: int
    left: int
    right: int


def decide(record: Record, alpha: float = ALPHA) -> Decision:
    """Weigh the clicks of a record."""
    found = weigh([one.click for one in record.judgments], alpha)
    scale = 100 * record.disagree / record.images
    low, high, left = scale * found.low, scale * found.high, found.clicks_left(alpha)
    state: State = "asking"
    if found.decided_at is not None:
        state = "decided"
    elif found.clicks >= record.disagree:
        state = "exhausted"
    elif max(-low, high) <= WORTH:
        state = "equal"
    elif found.clicks >= PATIENCE and (left is None or left > TOO_MANY):
        state = "far"
    return Decision(
        a=record.a.name,
        b=record.b.name,
        state=state,
        winner={"a": record.a.name, "b": record.b.name, None: None}[found.winner],
        clicks=len(record.judgments),
        for_a=found.a,
        for_b=found.b,
        ties=found.ties,
        e_value=found.e_value,
        difference=scale * found.mean,
        low=low,
        high=high,
        share=scale,
        clicks_left=left,
    )


def read_decision(run: str | Path) -> Decision | None:
    """Return what was clicked about the trained (B) against the frozen network (A) of a run.

    None without clicks, or if they were about another encoder than the one that the run holds now.
    """
    run = Path(run)
    kept_apart = run / "encoder-trained"  # where the verdict keeps the frozen network
    folder = kept_apart if (kept_apart / CONFIG).exists() else run
    records = [one for one in read_records(run / NAME) if (one.a.name, one.b.name) == (FROZEN, TRAINED)]
    if not any(one.judgments for one in records):
        return None
    now = fingerprint(folder)
    fitting = [one for one in records if one.b.fingerprint == now and one.judgments]
    return decide(fitting[-1]) if fitting else None


def sample_paths(paths: Sequence[str], count: int = IMAGES) -> list[int]:
    """Return at most so many indices, ascending: always the same, and nearly the same when a folder grows."""
    chance = [hashlib.blake2b(path.encode(errors="surrogateescape")).digest() for path in paths]
    return sorted(sorted(range(len(paths)), key=chance.__getitem__)[:count])


def nearest_images(features: Features) -> NDArray[np.int64]:
    """Return the image most like each. (N, D) -> (N,)"""
    from finesight.evaluation.retrieval import neighbors  # torch: a server without it has nothing to judge

    return neighbors(features, np.arange(len(features)), 1)[0][:, 0]


class Judging:
    """Ask, take answers, and keep them in a file after every click. Several threads may use one."""

    def __init__(
        self,
        a: Candidate,
        b: Candidate,
        nearest: tuple[NDArray[np.int64], NDArray[np.int64]],
        paths: Sequence[str],
        *,
        data: str,
        file: Path | None = None,
        seed: int | None = None,
    ) -> None:
        """Compare what A and what B finds nearest to each of the images at ``paths``.

        Parameters
        ----------
        nearest
            Indices into ``paths``, (N,) each; see ``nearest_images``.
        file
            Where clicks are kept; those about the same pair on the same data are continued. None keeps them in memory.
        seed
            Of the order and the sides; by default drawn, and kept with the clicks.
        """
        if not len(paths) == len(nearest[0]) == len(nearest[1]):
            raise ValueError(f"{len(paths)} paths but {len(nearest[0])} and {len(nearest[1])} answers")
        if len(paths) < 3:
            raise FineSightError(
                f"{data} has {len(paths)} readable images: judging needs at least 3, a query and two to choose from."
            )
        self.paths, self.nearest = tuple(paths), nearest
        differ = nearest[0] != nearest[1]
        fresh = Record(a, b, data, len(paths), int(differ.sum()), secrets.randbits(32) if seed is None else seed)
        self._file, self._lock = file, threading.Lock()
        known = [one for one in read_records(file) if one.pair == fresh.pair] if file is not None else []
        self.record = replace(fresh, judgments=known[0].judgments, seed=known[0].seed) if known else fresh
        rng = np.random.default_rng(self.record.seed)
        order = rng.permutation(len(paths))
        self._order: list[int] = order[differ[order]].tolist()
        self._a_left = rng.random(len(paths)) < 0.5

    @property
    def decision(self) -> Decision:
        return decide(self.record)

    @property
    def question(self) -> Question | None:
        """Return what to ask next; None when the test has decided or every such picture was judged."""
        return next(iter(self.upcoming(1)), None)

    def upcoming(self, count: int) -> list[Question]:
        """Return the question that is asked and those that follow unless the answers decide before."""
        with self._lock:
            return self._upcoming(count)

    def _upcoming(self, count: int) -> list[Question]:
        if decide(self.record).state == "decided":
            return []
        judged = {one.query for one in self.record.judgments}
        left_over = (query for query in self._order if self.paths[query] not in judged)
        questions = []
        for number, query in enumerate(islice(left_over, count), start=len(self.record.judgments) + 1):
            answers = int(self.nearest[0][query]), int(self.nearest[1][query])
            questions.append(Question(number, query, *(answers if self._a_left[query] else answers[::-1])))
        return questions

    def answer(self, choice: str, number: int | None = None) -> Decision:
        """Take the answer to the question that is asked; ``number`` makes sure that it is the one that was seen.

        Raises
        ------
        FineSightError
            If there is no such answer, or that question is not asked (any more).
        """
        if choice not in CHOICES:
            raise unknown("answer", choice, CHOICES)
        chosen: Choice = choice
        with self._lock:
            question = next(iter(self._upcoming(1)), None)
            if question is None or number not in (None, question.number):
                raise NotAsked("That question is not asked any more: look at the one that is.")
            a, b = (self.paths[int(nearest[question.query])] for nearest in self.nearest)
            side: Side = "a" if self._a_left[question.query] else "b"
            time = datetime.now(UTC).isoformat(timespec="seconds")
            click = Judgment(self.paths[question.query], a, b, side, chosen, time)
            self._change(lambda judgments: (*judgments, click))
            return self.decision

    def undo(self) -> Decision:
        """Take back the last answer; its question is asked again."""
        with self._lock:
            if not self.record.judgments:
                raise NotAsked("There is no answer to take back.")
            self._change(lambda judgments: judgments[:-1])
            return self.decision

    def _change(self, change: Any) -> None:
        if self._file is None:
            self.record = replace(self.record, judgments=change(self.record.judgments))
        else:
            self.record = update_record(self._file, self.record, change)
