"""What is disturbed: commands that write, with the outputs that must be the same whatever happens to them."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import signal
import sqlite3
import threading
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.store import read_entries
from finesight.features.encoder_folder import CHECKSUM, weights_checksum
from finesight.search.engines import open_index
from indexes import contents
from processes import TINY, Command, Finished, command, processor_seconds, succeeded

SMALL_HEAD = ("--set", "objective.hidden=32")  # else each checkpoint is 80 MB
EVERY_STEP = ("--checkpoint-minutes", "0")
WEIGHTS = "encoder/encoder.safetensors"


@dataclass(frozen=True)
class World:
    """Images to work on, and a finished run."""

    images: Path
    run: Path

    @classmethod
    def make(cls, root: Path) -> World:
        sizes = LookalikesConfig(species=4, train_per_species=12, test_per_species=6, size=40)
        make_lookalikes(root / "birds", sizes)
        world = cls(root / "birds", root / "run")
        train = ("train", "--data", world.images, "--out", world.run, "--epochs", "2", *TINY)
        succeeded(command(*train, FINESIGHT_CACHE=str(root / "cache")))
        return world


@dataclass
class Workload:
    """A command whose outputs are below one folder."""

    name: str
    arguments: Callable[[World, Path], tuple[str | Path, ...]]
    outputs: Callable[[Path], dict[str, str]]  # name -> digest, of the folder
    prepare: Callable[[World, Path], None] = lambda world, place: None
    trains: bool = False
    kills_itself = True  # the library of ``writes`` can: it is one process

    def start(self, world: World, place: Path, **env: str) -> Command:
        """Start it in a place of its own, with a cache of its own."""
        return Command(*self.arguments(world, place), FINESIGHT_CACHE=str(place / "cache"), **env)

    def finish(self, running: Command) -> Finished:
        """Wait for its end."""
        return running.wait()

    def finish_and_time(self, running: Command) -> tuple[Finished, float]:
        """Wait for its end, and return the processor time that it took, too."""
        done = threading.Event()
        seconds = 0.0

        def watch() -> None:
            nonlocal seconds
            while not done.wait(0.01):
                seconds = max(seconds, self.worked(running))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return self.finish(running), seconds
        finally:
            done.set()
            watcher.join()

    def worked(self, running: Command) -> float:
        """Return the processor time that it has had."""
        assert running.process.pid is not None
        return processor_seconds(running.process.pid)

    def expected(self, known: dict[str, str]) -> dict[str, str]:
        """Return what the outputs must be; ``known`` are those of an undisturbed run."""
        return known

    def find_torn(self, place: Path) -> list[str]:
        """Return what is not whole after a kill."""
        return find_torn(place)

    def find_left_over(self, place: Path) -> list[str]:
        """Return what should have gone when all is done."""
        return [path.name for path in place.rglob("*") if ".tmp" in path.name]

    def kill(self, running: Command) -> None:
        """Kill it, and all that it has started."""
        running.send(signal.SIGKILL)

    def begin(self, world: World, place: Path) -> None:
        """Make the place ready for the first start."""
        place.mkdir(parents=True, exist_ok=True)
        self.prepare(world, place)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _train(name: str, *settings: str) -> Workload:
    def arguments(world: World, place: Path) -> tuple[str | Path, ...]:
        own = ("--epochs", "3", *EVERY_STEP, *settings, *TINY)
        return ("train", "--data", world.images, "--out", place / "out", *own)

    return Workload(name, arguments, _run_outputs, trains=True)


def _run_outputs(place: Path) -> dict[str, str]:
    """Of a run: its weights and settings, and every number of every step."""
    parts = (WEIGHTS, "encoder/encoder.json", "metrics.csv")
    return {part: digest((place / "out" / part).read_bytes()) for part in parts}


def _embed_outputs(place: Path) -> dict[str, str]:
    """Features by name, and every picture of the cache by its key."""
    with np.load(place / "f.npz") as file:
        found = {name: digest(file[name].tobytes()) for name in file.files}
    (folder,) = (place / "cache").glob("v1-side*")
    entries = read_entries(folder)
    for row, key in enumerate(entries.keys.tolist()):
        pixels = (entries.shards[entries.shard[row]] / "pixels.bin").read_bytes()
        start, size = entries.offsets[row], entries.sizes[row].prod() * 3
        found[key.hex()] = digest(pixels[start : start + size])
    return found


def _index_outputs(place: Path) -> dict[str, str]:
    with closing(open_index(place / "index")) as index:
        assert not len(index.find_damaged(everything=True))
        return {path: digest(repr(facts).encode()) for path, facts in contents(index).items()}


def _evaluate_outputs(place: Path) -> dict[str, str]:
    run = place / "run"
    scores = json.loads((run / "evaluation.json").read_text())
    timeless = {name: value for name, value in scores.items() if "second" not in name and "time" not in name}
    return {
        "evaluation.json": digest(json.dumps(timeless, sort_keys=True).encode()),
        "evaluation-classes.csv": digest((run / "evaluation-classes.csv").read_bytes()),
    }


WORKLOADS = (
    Workload(
        "cache",
        lambda world, place: ("embed", world.run, world.images, "-o", place / "f.npz", "--exact", "--quiet"),
        _embed_outputs,
    ),
    _train("train-lcr"),
    _train("train-simsiam", "--method", "simsiam", "--rationale", "--set", "objective.dim=32", *SMALL_HEAD),
    _train("train-byol", "--method", "byol", "--rationale", *SMALL_HEAD),
    _train("looks", "--set", "focus.source=energy", "--set", "focus.every_n_epochs=1",
           "--set", "validation.every_n_epochs=1"),
    Workload(
        "evaluate",
        lambda world, place: ("evaluate", place / "run", "--data", world.images, "--quiet"),
        _evaluate_outputs,
        lambda world, place: shutil.copytree(world.run, place / "run") and None,
    ),
    Workload(
        "index",
        lambda world, place: (
            *("index", world.run, world.images, "--index", place / "index"),
            *("--exact", "--quiet", "--workers", "1", "--verify"),
        ),
        _index_outputs,
    ),
)  # fmt: skip


# --- whether a folder holds half of something ---------------------------------------------------------------------


def _read_csv(file: Path) -> None:
    if file.name == "metrics.csv":  # a log that grows: the next start takes away a last line that was cut
        return
    with file.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
        list(csv.reader(stream, strict=True))


def _test_zip(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        if broken := archive.testzip():
            raise ValueError(broken)


def _check_catalog(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db:
        (words,) = db.execute("PRAGMA integrity_check").fetchone()
    if words != "ok":
        raise ValueError(words)


def _check_encoder(file: Path) -> None:
    if json.loads(file.read_text())[CHECKSUM] != weights_checksum(file.parent):
        raise ValueError("the weights are not those that were saved")


READERS: Mapping[str, Callable[[Path], Any]] = {
    ".json": lambda file: json.loads(file.read_text()),
    ".yaml": lambda file: yaml.safe_load(file.read_text())["data"],
    ".csv": _read_csv,
    ".npz": _test_zip,
    ".pt": _test_zip,
    ".safetensors": load_file,
    ".db": _check_catalog,
}


def find_torn(place: Path) -> list[str]:
    """Return the files below a folder that are not whole. Scratch files, whose names begin with a dot, do not count."""
    torn = []
    for file in place.rglob("*"):
        if any(part.startswith((".", "tmp-")) for part in file.relative_to(place).parts) or not file.is_file():
            continue
        try:
            READERS.get(file.suffix, lambda file: None)(file)
            if file.name == "encoder.json":
                _check_encoder(file)
        except FileNotFoundError:
            continue  # removed just now
        except Exception as error:
            torn.append(f"{file.relative_to(place)}: {error}")
    return torn


def repeated_steps(place: Path) -> int:
    """Return how many steps of a training the next start must do again."""
    metrics, saved = place / "out" / "metrics.csv", sorted((place / "out" / "checkpoints").glob("step-*.pt"))
    done = max(0, metrics.read_text().count("\n") - 1) if metrics.exists() else 0
    return done - (int(saved[-1].stem.removeprefix("step-")) if saved else 0)
