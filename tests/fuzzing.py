"""What the tests of damaged input share: how many examples, how bytes are damaged, and what an example may cost.

``FINESIGHT_FUZZ=5000`` draws so many examples for each test, others each time; ``make fuzz`` does.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG = os.environ.get("FINESIGHT_FUZZ")
SECONDS = 30  # for one example, on a busy machine
MEGABYTES = 600  # that all examples of a test together may add to the memory

fuzzed = settings(
    max_examples=int(LONG or 60),
    derandomize=LONG is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

NUMBERS = [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\xff\xff", b"\xff\xff\0\0", b"\0\0\0\1"]


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    """Some changes: where in the file, as a share of it, and what is put there."""
    kinds = st.sampled_from(["put", "insert", "cut", "repeat"])
    content = st.one_of(st.binary(min_size=1, max_size=6), st.sampled_from(NUMBERS))
    place = st.one_of(st.floats(0, 1), st.floats(0, 0.02))  # headers are at the beginning
    return draw(st.lists(st.tuples(kinds, place, content), min_size=1, max_size=5))


def damage(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    """Return the data with these changes."""
    for kind, share, content in changes:
        at = int(share * len(data))
        if kind == "put":
            data = data[:at] + content + data[at + len(content) :]
        elif kind == "insert":
            data = data[:at] + content + data[at:]
        elif kind == "cut":
            data = data[:at] + data[at + 50 * content[0] :] if len(content) > 2 else data[:at]
        else:
            data = data[:at] + data[at : at + 200] * min(content[0], 50) + data[at:]
    return data


any_json = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(),
        st.text(st.characters(), max_size=12),
        st.sampled_from(["..", "/", "a\0b", "\ud800", "=1+1", "\n"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def with_other_value(tree: Any, place: float, value: Any) -> Any:
    """Return a copy of what a JSON file holds with another value in a place, as a share of all its values."""
    places = list(_places(tree))
    path = places[int(place * (len(places) - 1))]

    def copy(part: Any, path: tuple[Any, ...]) -> Any:
        if not path:
            return value
        changed = dict(part) if isinstance(part, dict) else list(part)
        changed[path[0]] = copy(part[path[0]], path[1:])
        return changed

    return copy(tree, path)


def _places(tree: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list | tuple) else ():
        yield from ((key, *path) for path in _places(tree[key]))


@contextmanager
def within_bounds() -> Iterator[None]:
    """Fail if the block takes too long or too much memory."""

    def stop(number: int, frame: Any) -> None:
        raise AssertionError(f"this took longer than {SECONDS} seconds")

    before, memory = signal.signal(signal.SIGALRM, stop), _megabytes()
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert _megabytes() - memory < MEGABYTES


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
