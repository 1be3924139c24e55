"""Hold the collections of an index in a Milvus server together: one manifest says what is committed and who writes.

Milvus commits one request to one collection, and has no transactions over several. So rows are only ever inserted under
new keys, which nobody sees yet; then one change of the manifest shows them in all collections at once, and hides the
rows that they replace. The manifest is a property of an empty collection, which Milvus changes as a whole.

Each writer makes an empty collection of its own, ``NAME__fs_eN`` with the next number N, and drops those before it.
Milvus lets only one writer make it, and a writer that was thought dead and comes back finds its own dropped.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from finesight.errors import FineSightError
from finesight.search.milvus_client import Address, milvus_exceptions, pymilvus

STATE, OWNER, BEAT = "finesight.state", "finesight.owner", "finesight.beat"  # properties of the empty collection
COMMIT_ROWS = 2048  # rows of one commit at most
MAX_DEAD = 2 * COMMIT_ROWS  # rows that one commit hides at most: etcd, where the manifest is, takes no large values
MAX_HOLES = 64
MAX_HIDDEN = MAX_HOLES * COMMIT_ROWS  # keys that a manifest names at most
LEASE_SECONDS = 12.0  # a writer on another machine that gives no sign of life for so long is taken for dead
SHORT_SECONDS = 2.0  # to ask a server that has just failed, or to tell it that a writer has
BEATS = 6  # signs of life in that time


def _few_keys(runs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the runs if they are as a writer makes them; each key of them is asked for later."""
    if not all(0 <= first <= end for first, end in runs) or sum(end - first for first, end in runs) > MAX_HIDDEN:
        raise ValueError("it names keys that no writer has made")
    return runs


Runs = Annotated[  # of keys, each from the first one to one after the last
    tuple[tuple[int, int], ...], AfterValidator(_few_keys)
]


class Manifest(BaseModel):
    """One committed state of an index."""

    model_config = ConfigDict(frozen=True)

    collections: dict[str, str]  # of each space
    rows: int = Field(0, ge=0)  # keys below are committed, but for
    dead: Runs = ()  # rows that the last commit replaced or removed, until they are deleted
    holes: Runs = ()  # and rows of writers that failed, which may arrive late
    items: int = Field(0, ge=0)
    removed: int = 0  # rows that ever died
    changed: int = 0  # rows that were added or died since the recall was measured
    time: int = 0  # a reader must see all that Milvus took until then; 0 if the server does not tell: all there is
    facts: dict[str, dict[str, Any]] = {}  # how each space is searched

    @property
    def names(self) -> list[str]:
        """The collections that hold the rows."""
        return list(self.collections.values())

    @property
    def visible(self) -> str:
        """The condition that holds for the keys of this state."""
        words = [f"pk < {self.rows}"]
        words += [f"(pk < {first} or pk >= {end})" for first, end in self.holes]
        if keys := run_keys(self.dead):
            words.append(f"pk not in {keys}")
        return " and ".join(words)

    @property
    def consistency(self) -> dict[str, Any]:
        """What to ask of Milvus so that a read sees this state."""
        if not self.time:
            return {"consistency_level": "Strong"}
        return {"consistency_level": "Customized", "guarantee_timestamp": self.time}

    def skip(self) -> Manifest:
        """Return the state with the next keys left out: a request of a writer that failed may still bring them."""
        hole = (self.rows, self.rows + COMMIT_ROWS)
        return self.model_copy(update={"rows": hole[1], "holes": (*self.holes, hole)[-MAX_HOLES:]})


def key_runs(keys: Iterable[int]) -> Runs:
    """Return the runs of keys that follow each other."""
    runs: list[list[int]] = []
    for key in sorted(keys):
        if runs and runs[-1][1] == key:
            runs[-1][1] = key + 1
        else:
            runs.append([key, key + 1])
    return tuple((first, end) for first, end in runs)


def run_keys(runs: Runs) -> list[int]:
    return [key for first, end in runs for key in range(first, end)]


@dataclass(frozen=True)
class Entry:
    """The empty collection of one writer, as it was read."""

    number: int
    writer: str  # a word that no other writer has
    meta: str
    text: str  # of the manifest
    owner: str  # where the writer runs, "" after it has finished
    beat: str

    @property
    def manifest(self) -> Manifest:
        """The state. Raises ``FineSightError`` if it is damaged."""
        try:
            return Manifest.model_validate_json(self.text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise FineSightError(f"The manifest of the index is damaged ({reason}): make the index anew.") from None


class ManifestLog:
    """Finds, reads and makes the manifests of one index."""

    def __init__(self, client: Any, address: Address, timeout: float) -> None:
        self.client, self.address, self.timeout = client, address, timeout
        self._pattern = re.compile(re.escape(address.collection) + r"__fs_e(\d+)")

    def name(self, number: int) -> str:
        return f"{self.address.collection}__fs_e{number}"

    def numbers(self, timeout: float | None = None) -> list[int]:
        """Return the numbers of all writers whose collection is there, ascending."""
        names = self.client.list_collections(timeout=timeout or self.timeout)
        return sorted(int(found[1]) for name in names if (found := self._pattern.fullmatch(name)))

    def read(self, number: int) -> Entry | None:
        try:
            found = self.client.describe_collection(self.name(number), timeout=self.timeout)
            about, properties = json.loads(found["description"]), found.get("properties", {})
            fixed = (number, about["writer"], json.dumps(about["meta"]), properties[STATE])
            return Entry(*fixed, properties.get(OWNER, ""), properties.get(BEAT, ""))
        except milvus_exceptions():
            if number in self.numbers():
                raise
            return None
        except (KeyError, TypeError, ValueError, RecursionError):
            raise FineSightError(f"The manifest of the index {self.address.shown} is damaged: make it anew.") from None

    def newest(self, known: Entry | None = None) -> Entry | None:
        """Return the entry that counts, None if there is no index. One that is known is read first."""
        if known is not None and (again := self.read(known.number)) is not None and again.writer == known.writer:
            return again
        for _ in range(10):  # writers may follow each other quickly
            numbers = self.numbers()
            if not numbers:
                return None
            if (entry := self.read(numbers[-1])) is not None:
                return entry
        raise FineSightError(f"The writers of {self.address.shown} change too often: try again.")

    def create(self, number: int, meta: str, manifest: Manifest) -> Entry | None:
        """Make the collection of a new writer; return None if another one was quicker."""
        types, writer, owner = pymilvus().DataType, uuid.uuid4().hex, json.dumps(this_process())
        about = json.dumps({"writer": writer, "meta": json.loads(meta)})
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False, description=about)
        schema.add_field("pk", types.INT64, is_primary=True)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=2)  # Milvus wants one in each collection
        text = manifest.model_dump_json()
        properties = {STATE: text, OWNER: owner, BEAT: "0"}
        try:
            self.client.create_collection(self.name(number), schema=schema, properties=properties, timeout=self.timeout)
        except milvus_exceptions():
            if number not in self.numbers():
                raise
        made = self.read(number)
        if made is None or made.writer != writer:
            return None
        if self.numbers()[-1] != number:  # others have come and gone meanwhile
            self.drop([number])
            return None
        return made

    def change(self, entry: Entry, properties: dict[str, str], timeout: float | None = None) -> None:
        """Change properties of a writer's collection; raise ``FineSightError`` if another writer has taken over."""
        timeout = timeout or self.timeout
        try:
            self.client.alter_collection_properties(self.name(entry.number), properties, timeout=timeout)
        except milvus_exceptions():
            with suppress(*milvus_exceptions()):
                self.require_newest(entry, SHORT_SECONDS)
            raise
        self.require_newest(entry, timeout)

    def require_newest(self, entry: Entry, timeout: float) -> None:
        if self.numbers(timeout)[-1:] != [entry.number]:
            raise FineSightError(
                f"Another process took over writing to the index {self.address.shown}: this one had not answered for "
                "long. Run the command again."
            )

    def release(self, entry: Entry) -> None:
        """Say that a writer has finished."""
        self.change(entry, {OWNER: ""})

    def drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.client.drop_collection(self.name(number), timeout=self.timeout)


class Lease:
    """The right to write to an index, from ``acquire`` to ``release`` or, where something failed, to ``abandon``.

    Gives signs of life meanwhile.
    """

    def __init__(self, log: ManifestLog, entry: Entry, seconds: float) -> None:
        self._log, self._entry, self._seconds = log, entry, seconds
        self.manifest = entry.manifest
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="milvus-lease", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls, log: ManifestLog, seconds: float, abandoned: str = "") -> tuple[Lease, bool]:
        """Become the only writer, and return also whether the last one failed; raise ``FineSightError`` while another
        one is at work. ``abandoned`` is the writer of a lease that this process gave up."""
        old = log.newest()
        if old is None:
            raise FineSightError(f"There is no index {log.address.shown} any more.")
        failed = bool(old.owner)
        if failed and old.writer != abandoned:
            require_dead(log, old, seconds)

        def follow(state: Manifest) -> Manifest:
            return state.skip() if failed else state

        entry = log.create(old.number + 1, old.meta, follow(old.manifest))
        if entry is None:
            raise busy(log.address)
        last = log.read(old.number)
        if last is not None and last.text != old.text:  # what it committed while it was taken for dead
            log.change(entry, {STATE: follow(last.manifest).model_dump_json()})
            entry = log.newest(entry) or entry
        log.drop([number for number in log.numbers() if number < entry.number])
        return cls(log, entry, seconds), failed

    def commit(self, manifest: Manifest) -> None:
        """Show a new state to all readers."""
        self._log.change(self._entry, {STATE: manifest.model_dump_json()})
        self.manifest = manifest

    @property
    def writer(self) -> str:
        return self._entry.writer

    def release(self) -> None:
        self._ended.set()
        self._thread.join()
        self._log.release(self._entry)

    def abandon(self) -> None:
        """Stop after a failure: what the server has done is not known. The next writer goes on with other keys."""
        self._ended.set()
        with suppress(FineSightError, *milvus_exceptions()):
            dead = json.dumps({**this_process(), "started": ""})
            self._log.change(self._entry, {OWNER: dead}, SHORT_SECONDS)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self._seconds / BEATS):
            count += 1
            with suppress(FineSightError, *milvus_exceptions()):  # a commit says what is wrong
                self._log.change(self._entry, {BEAT: str(count)}, self._seconds)


def busy(address: Address) -> FineSightError:
    return FineSightError(f"Another process is writing to the index {address.shown}: wait for it to end.")


def require_dead(log: ManifestLog, entry: Entry, seconds: float) -> None:
    """Return if the writer of ``entry`` is dead or has finished; raise ``FineSightError`` as soon as it is alive.

    A writer on this machine is looked for. One elsewhere is watched: only the clock of this process counts.
    """
    alive = is_alive(_owner(entry.owner))
    if alive:
        raise busy(log.address)
    deadline = time.monotonic() + seconds
    while alive is None and time.monotonic() < deadline:
        time.sleep(seconds / BEATS / 8)
        again = log.newest(entry)
        if again is None or again.number != entry.number or again.beat != entry.beat:
            raise busy(log.address)
        if not again.owner:
            return


def this_process() -> dict[str, Any]:
    """Return what tells this process from all others where the system says so: its machine, its number, its start."""
    return {"machine": _machine(), "process": os.getpid(), "started": _started(os.getpid())}


def _owner(text: str) -> dict[str, Any]:
    """Return what ``this_process`` told; of a text that is damaged, a process of another machine."""
    with suppress(ValueError, RecursionError):
        owner = json.loads(text)
        if isinstance(owner, dict) and owner.keys() >= {"machine", "process", "started"}:
            return owner
    return {"machine": ""}


def is_alive(owner: dict[str, Any]) -> bool | None:
    """Return whether a process of this machine still runs, None of another machine."""
    if not owner["machine"] or owner["machine"] != _machine():
        return None
    return bool(owner["started"] and _started(owner["process"]) == owner["started"])


def _machine() -> str:
    """Return a word for this machine and what numbers its processes: those in a container have their own."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(process: int) -> str:
    """Return when a process started, "" if it does not run any more."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
