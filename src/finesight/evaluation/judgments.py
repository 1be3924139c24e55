"""The file ``judgments.json`` beside a run: what was compared, and every click, written at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from finesight.errors import FineSightError
from finesight.io.atomic import explain_write_errors, write_atomic
from finesight.io.lock import locked
from finesight.io.table import table_text

FORMAT = 1
NAME = "judgments.json"

Choice = Literal["left", "right", "both", "neither"]
Side = Literal["a", "b"]
CHOICES: tuple[Choice, ...] = ("left", "right", "both", "neither")


@dataclass(frozen=True)
class Candidate:
    """What makes features: an encoder under a pooling. Two with the same fingerprint and pooling are the same."""

    name: str  # for people; "frozen" and "trained" of one run
    fingerprint: str  # of the encoder
    pooling: str


@dataclass(frozen=True)
class Judgment:
    """One click."""

    query: str  # paths
    a: str  # what A found nearest
    b: str
    left: Side  # whose answer was shown at the left
    choice: Choice
    time: str  # ISO 8601, UTC

    @property
    def prefers(self) -> Side | None:
        if self.choice not in ("left", "right"):
            return None
        return self.left if self.choice == "left" else "a" if self.left == "b" else "b"

    @property
    def click(self) -> int:
        """+1 prefers B, -1 prefers A, 0 neither."""
        return {"a": -1, "b": 1, None: 0}[self.prefers]


@dataclass(frozen=True)
class Record:
    """All clicks about one pair of candidates on one set of images."""

    a: Candidate
    b: Candidate
    data: str
    images: int  # that were searched
    disagree: int  # for which the two found different images
    seed: int  # of the order and the sides
    judgments: tuple[Judgment, ...] = field(default=())

    @property
    def pair(self) -> tuple[str, ...]:
        """What must be equal for clicks to be about the same question."""
        return self.a.fingerprint, self.a.pooling, self.b.fingerprint, self.b.pooling, self.data

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Self:
        judgments = tuple(Judgment(**one) for one in content["judgments"])
        if any(one.choice not in CHOICES or one.left not in ("a", "b") for one in judgments):
            raise ValueError("a click has an answer that is not known")
        rest = {key: content[key] for key in ("data", "images", "disagree", "seed")}
        return cls(Candidate(**content["a"]), Candidate(**content["b"]), judgments=judgments, **rest)


def read_records(file: Path) -> tuple[Record, ...]:
    """Return what the file holds, the pair that was judged last at the end; nothing if there is no file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8", errors="surrogateescape"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, not {FORMAT}")
        return tuple(Record.parse(one) for one in content["comparisons"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FineSightError(
            f"{file} cannot be read: {error}. Move it away to judge anew, or restore it from a copy."
        ) from error


def update_record(file: Path, record: Record, change: Callable[[tuple[Judgment, ...]], tuple[Judgment, ...]]) -> Record:
    """Change the clicks about the pair of ``record`` in the file, whoever else writes to it; return the new record."""
    with explain_write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.with_name(f".{NAME}.lock")):
            records = read_records(file)
            others = [one for one in records if one.pair != record.pair]
            known = [one for one in records if one.pair == record.pair]
            judgments = known[0].judgments if known else record.judgments
            record = replace(record, judgments=change(judgments))
            content = {"format": FORMAT, "comparisons": [asdict(one) for one in (*others, record)]}
            write_atomic(file, json.dumps(content, indent=1) + "\n", sync=True)
    return record


def as_csv(record: Record) -> str:
    """Return the clicks as a table."""
    header = ("query", "nearest_a", "nearest_b", "left", "choice", "prefers", "time")
    rows = ((one.query, one.a, one.b, one.left, one.choice, one.prefers or "", one.time) for one in record.judgments)
    return table_text(header, rows)
