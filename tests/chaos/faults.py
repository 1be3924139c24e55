"""Full disks, flipped bits, vanished images, jumping clocks, little memory: it goes on, or says one sentence."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chaos.kills import Undisturbed
from chaos.workloads import WEIGHTS, WORKLOADS, Workload, World, digest
from chaos.writes import build_library
from disks import NoSmallDisk, small_disk
from finesight.search.engines import open_index
from indexes import contents
from processes import TIMEOUT, Command, Finished, environment

ROOM = 300_000  # KiB of a disk that is large enough
SURVIVED, SENTENCE, SKIPPED, KILLED = "survived", "sentence", "skipped", "killed by the system"
DIED = "died in a library without a word, then continued"  # PyTorch and OpenBLAS may abort where memory ends
GROUPS = Path("/sys/fs/cgroup")
# What an exception looks like when it is printed as it is: a list of paths, "[Errno 28]", "<class …>", "OSError(…".
RAW = re.compile(r"\[\(|\berrno\b|<class |<\w+ object| at 0x[0-9a-f]|(Error|Exception)\(", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """One fault and what came of it: one of the words above, or what was wrong."""

    kind: str
    what: str
    outcome: str
    words: str = ""
    run: int | None = None  # its place in the list of runs; None: an earlier form of the harness did not keep it

    @property
    def is_defect(self) -> bool:
        return self.outcome not in (SURVIVED, SENTENCE, SKIPPED, KILLED, DIED)


def judge(kind: str, what: str, done: Finished) -> Fault:
    """Return what came of a command: it went on, it ended with one sentence, or it failed."""
    message = " ".join(done.err.split())
    if "Traceback" in done.err:
        return Fault(kind, what, "a traceback", message[-400:])
    if done.code == 0:
        return Fault(kind, what, SURVIVED)
    said = message.rpartition("finesight: ")[2]
    if done.code == 2 and said and "finesight: " in message:
        return Fault(kind, what, "not a sentence" if RAW.search(said) else SENTENCE, said[:300])
    return Fault(kind, what, f"exit code {done.code}", message[-400:])


def then_whole(
    fault: Fault, workload: Workload, world: World, place: Path, want: dict[str, str], *, more: bool = False
) -> Fault:
    """Return the fault as it was, or what is wrong with the outputs once the command runs without it.

    ``more``: a cache may hold other images, too.
    """
    if fault.is_defect or fault.outcome == SKIPPED:
        return fault
    left = [path.name for path in place.rglob("*") if ".tmp" in path.name]
    if left and fault.outcome not in (KILLED, DIED):
        return Fault(fault.kind, fault.what, f"left over: {left[0]}")
    done = workload.start(world, place).wait()
    if done.code:
        return Fault(fault.kind, fault.what, f"then exit code {done.code}", done.err[-400:])
    found = workload.outputs(place)
    if found != want and not (more and workload.name == "cache" and found.items() >= want.items()):
        return Fault(fault.kind, fault.what, "then other outputs")
    return fault


Known = Mapping[str, Undisturbed]


def _workloads(known: Known) -> list[Workload]:
    """Return those that are disturbed: all whose right outputs are known."""
    return [workload for workload in WORKLOADS if workload.name in known]


def full_disks(world: World, root: Path, known: Known, draw: random.Random, count: int) -> Iterator[Fault]:
    """Run each workload on disks of random sizes below what it needs."""
    for workload in _workloads(known):
        needed = _kib(root / f"whole-{workload.name}")
        for number in range(count):
            kib = 4 * max(1, int(draw.random() ** 2 * needed / 4))
            what = f"{workload.name} on {kib} KiB of {needed}"
            place = root / f"disk-{workload.name}-{number}"
            try:
                with small_disk(place, kib + _given(workload, world)) as disk:
                    workload.begin(world, place)
                    fault = judge("full disk", what, workload.start(world, place).wait())
                    disk.resize(ROOM)
                    yield then_whole(fault, workload, world, place, known[workload.name].outputs)
            except NoSmallDisk as reason:
                yield Fault("full disk", what, SKIPPED, str(reason))


def _kib(folder: Path) -> int:
    return sum(-(-file.stat().st_size // 4096) * 4 for file in folder.rglob("*") if file.is_file())


def _given(workload: Workload, world: World) -> int:
    """Return the KiB of what a workload begins with."""
    return _kib(world.run) if workload.name == "evaluate" else 0


def read_only(world: World, root: Path, known: Known, draw: random.Random, count: int) -> Iterator[Fault]:
    """Run each workload on a disk that takes nothing, and again when it may be written to."""
    for workload in _workloads(known):
        place = root / f"locked-{workload.name}"
        try:
            with small_disk(place, ROOM) as disk:
                workload.begin(world, place)
                disk.make_read_only()
                fault = judge("read-only folder", workload.name, workload.start(world, place).wait())
                disk.make_writable()
                yield then_whole(fault, workload, world, place, known[workload.name].outputs)
        except NoSmallDisk as reason:
            yield Fault("read-only folder", workload.name, SKIPPED, str(reason))


def vanished_images(world: World, root: Path, known: Known, draw: random.Random, count: int) -> Iterator[Fault]:
    """Remove, cut or replace five images while a command runs; put them back and run it anew with the same cache."""
    changes: dict[str, Callable[[Path], object]] = {
        "removed": lambda file: file.unlink(),
        "cut": lambda file: file.write_bytes(file.read_bytes()[:50]),
        "replaced": lambda file: shutil.copy(sorted(file.parent.glob("*.png"))[0], file),
    }
    whole = Path(shutil.copytree(world.images, root / "whole-images"))  # the cache knows images by path and time
    for workload in _workloads(known):
        right = features(workload, root / f"whole-{workload.name}")
        for name, change in changes.items():
            place = root / f"vanished-{workload.name}-{name}"
            workload.begin(world, place)
            seconds = draw.uniform(0, 0.8 * known[workload.name].seconds)
            some = draw.sample(sorted(world.images.glob("train/*/*.png"))[1:], 5)
            running = workload.start(world, place)
            wait_for_work(workload, running, seconds)
            for file in some:
                with suppress(OSError, shutil.SameFileError):
                    change(file)
            what = f"{workload.name}, {name} after {seconds:.2f} s"
            fault = judge("vanished or changed images", what, running.wait())
            changed = {str(file.relative_to(world.images)) for file in some}
            if fault.outcome == SURVIVED:
                fault = Fault(fault.kind, what, compared(features(workload, place), right, changed))
            for path in changed:
                shutil.copy2(whole / path, world.images / path)
            for output in set(place.iterdir()) - {place / "cache"}:
                shutil.rmtree(output) if output.is_dir() else output.unlink()
            workload.begin(world, place)
            yield then_whole(fault, workload, world, place, known[workload.name].outputs, more=True)
    shutil.rmtree(whole)


def wait_for_work(workload: Workload, running: Command, seconds: float) -> None:
    """Wait until a command has worked for so long, or is at its end, or seems to wait itself."""
    end = time.monotonic() + 30
    while running.running and workload.worked(running) < seconds and time.monotonic() < end:
        time.sleep(0.001)


def features(workload: Workload, place: Path) -> dict[str, str]:
    """Return a digest of what a command left of each image, by its path; nothing where images are not told apart."""
    if workload.name == "index":
        with closing(open_index(place / "index")) as index:
            # not its number and time, which a file that was written anew changes
            return {path: digest(repr(facts[4:]).encode()) for path, facts in contents(index).items()}
    if workload.name == "cache":
        with np.load(place / "f.npz") as file:
            return {path: digest(row.tobytes()) for path, row in zip(file["paths"], file["features"], strict=True)}
    return {}


def compared(found: Mapping[str, str], right: Mapping[str, str], changed: set[str]) -> str:
    """Return what came of images of which some were changed: those are left out, or are what one of the images was."""
    if lost := sorted(right.keys() - found.keys() - changed):
        return f"{lost[0]} was not touched, and is not there"
    for path, one in found.items():
        if one != right.get(path) and not (path in changed and one in right.values()):
            return f"{path} has features of no image"
    return SURVIVED


FLIPPED = {
    "cache pixels": ("cache", "cache/**/pixels.bin"),
    "cache index": ("cache", "cache/**/index.npz"),
    "checkpoint": ("train-lcr", "out/checkpoints/step-*.pt"),
    "vectors": ("index", "index/vectors-*/*.f32"),
    "encoder of an index": ("index", "index/encoder/encoder.safetensors"),
    "catalog": ("index", "index/items.db"),
}


def flipped_bits(world: World, root: Path, known: Known, draw: random.Random, count: int) -> Iterator[Fault]:
    """Flip a byte of what a finished or half finished command left; run it again and compare."""
    by_name = {workload.name: workload for workload in _workloads(known)}
    for what, (name, pattern) in FLIPPED.items():
        for number in range(count if name in by_name else 0):
            place = Path(shutil.copytree(root / f"whole-{name}", root / f"flip-{what.replace(' ', '-')}-{number}"))
            workload, file = by_name[name], sorted(place.glob(pattern))[-1]
            if workload.trains:  # as if killed when the last checkpoint was written
                shutil.rmtree(place / "out" / "encoder")
            if what == "cache pixels":
                (place / "f.npz").unlink()
            flip(file, draw)
            yield _after_flip(what, workload, world, place, known[name].outputs)


def flip(file: Path, draw: random.Random) -> None:
    """Change one byte."""
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
    file.write_bytes(content)


def _after_flip(what: str, workload: Workload, world: World, place: Path, want: dict[str, str]) -> Fault:
    """The next start makes it good, or says a sentence; what it leaves without one must be right."""
    running = workload.start(world, place)
    fault = judge(f"flipped byte: {what}", workload.name, running.wait())
    if fault.outcome != SURVIVED:
        return fault
    if what.startswith(("encoder", "catalog")):  # nothing computes them anew: they must be refused when used
        return _after_use(what, place, want, workload)
    if what.startswith("cache") and (done := workload.start(world, place).wait()).code:
        return Fault(fault.kind, fault.what, f"then exit code {done.code}", done.err[-400:])
    found = workload.outputs(place)
    return fault if found.items() >= want.items() else Fault(fault.kind, fault.what, "then other outputs")


def _after_use(what: str, place: Path, want: dict[str, str], workload: Workload) -> Fault:
    from finesight.errors import FineSightError
    from finesight.features.encoder import Encoder

    kind = f"flipped byte: {what}"
    try:
        Encoder.load(place / "index" / "encoder")
        found = workload.outputs(place)
    except FineSightError as error:
        return Fault(kind, workload.name, SENTENCE, str(error)[:300])
    return Fault(kind, workload.name, SURVIVED if found == want else "then other outputs")


def flipped_encoder(world: World, root: Path, known: Known, draw: random.Random, count: int) -> Iterator[Fault]:
    """An encoder with a flipped byte must be refused: nothing can make it good."""
    from finesight.errors import FineSightError
    from finesight.features.encoder import Encoder

    for number in range(count * 10):
        copy = Path(shutil.copytree(world.run / "encoder", root / f"encoder-{number}"))
        flip(copy / Path(WEIGHTS).name, draw)
        try:
            Encoder.load(copy)
        except FineSightError as error:
            yield Fault("flipped byte: encoder", "load", SENTENCE, str(error)[:200])
        else:
            yield Fault("flipped byte: encoder", "load", "loads without a word")
        shutil.rmtree(copy)


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <stdlib.h>
static int calls;
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, t);
    if (id == CLOCK_REALTIME) t->tv_sec += (calls++ % 2 ? 1 : -1) * 86400L * 400;
    return code;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


def jumping_clock(world: World, root: Path, known: Known, draw: random.Random, count: int) -> Iterator[Fault]:
    """The time of day jumps by 400 days, back and forth, whenever a process asks for it."""
    library = build_library(root, "clock", CLOCK)
    for workload in _workloads(known):
        if library is None:
            yield Fault("clock jumps", workload.name, SKIPPED, "there is no C compiler")
            continue
        place = root / f"clock-{workload.name}"
        workload.begin(world, place)
        done = _run(workload, world, place, LD_PRELOAD=str(library))
        fault = judge("clock jumps", workload.name, done)
        if fault.outcome == SURVIVED and workload.outputs(place) != known[workload.name].outputs:
            fault = Fault(fault.kind, fault.what, "other outputs")
        yield fault


def little_memory(world: World, root: Path, known: Known, draw: random.Random, count: int) -> Iterator[Fault]:
    """Limit the address space (``ulimit -v``) to random amounts below what a command takes."""
    for workload in _workloads(known):
        for number in range(count):
            mib = draw.randrange(1200, 4000)
            place = root / f"memory-{workload.name}-{number}"
            workload.begin(world, place)
            done = _run(workload, world, place, mib=mib)
            fault = judge("memory limit", f"{workload.name} in {mib} MiB", done)
            if done.code not in (0, 2) and "Traceback" not in done.err:
                fault = Fault(fault.kind, fault.what, DIED, fault.words)
            yield then_whole(fault, workload, world, place, known[workload.name].outputs)


class NoGroup(Exception):
    """No control group that limits memory can be made here, and why."""


@contextmanager
def limited_group(mib: int, groups: Path = GROUPS) -> Iterator[Path]:
    """Make a control group of so many MiB, of version 2 or 1, and yield its folder; raise ``NoGroup`` without one."""
    name, amount = f"finesight-chaos-{os.getpid()}", str(mib * 2**20)
    controllers, passed_on = groups / "cgroup.controllers", groups / "cgroup.subtree_control"  # version 2 has them
    second = controllers.exists() and "memory" in controllers.read_text().split()
    group = groups / name if second else groups / "memory" / name
    if not second and not group.parent.is_dir():
        raise NoGroup(f"{groups} has no memory controller of version 1 or 2")
    try:
        if second and "memory" not in passed_on.read_text().split():
            passed_on.write_text("+memory")  # refused where processes are in this group itself, as in a container
        group.mkdir()
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(amount)
        if (swap := group / "memory.swap.max").exists():
            swap.write_text("0")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise NoGroup(f"no group can be made: {error}") from error
    try:
        yield group
    finally:
        remove_group(group)


def remove_group(group: Path) -> None:
    """Remove a group when the last of its processes has gone: one that was killed takes a moment."""
    end = time.monotonic() + 30
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def memory_group(world: World, root: Path, known: Known, draw: random.Random, count: int) -> Iterator[Fault]:
    """Limit the memory as containers do: the system kills what takes more, and the next start goes on."""
    for workload in _workloads(known):
        for number in range(count):
            mib = draw.randrange(150, 700)
            what, place = f"{workload.name} in a group of {mib} MiB", root / f"group-{workload.name}-{number}"
            workload.begin(world, place)
            try:
                with limited_group(mib) as group:
                    done = _run(workload, world, place, group=group)
            except NoGroup as reason:
                yield Fault("memory group", what, SKIPPED, str(reason))
                continue
            killed = done.code == -signal.SIGKILL
            fault = Fault("memory group", what, KILLED) if killed else judge("memory group", what, done)
            yield then_whole(fault, workload, world, place, known[workload.name].outputs)


def _run(
    workload: Workload, world: World, place: Path, mib: int = 0, group: Path | None = None, **env: str
) -> Finished:
    """Run a workload in a process of its own, from its very start."""

    def limit() -> None:
        if mib:
            resource.setrlimit(resource.RLIMIT_AS, (mib * 2**20, mib * 2**20))
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(  # a command that hangs ends all: that is a defect, too
        [sys.executable, "-m", "finesight", *map(str, workload.arguments(world, place))],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment(FINESIGHT_CACHE=str(place / "cache"), **env),
        check=False,
        preexec_fn=limit,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


KINDS: dict[str, Callable[[World, Path, Known, random.Random, int], Iterator[Fault]]] = {
    "disk": full_disks,
    "read-only": read_only,
    "images": vanished_images,
    "bits": flipped_bits,
    "encoder": flipped_encoder,
    "clock": jumping_clock,
    "memory": little_memory,
    "group": memory_group,
}


def parts_of(kinds: Sequence[str], known: Known) -> list[str]:
    """Return the faults of these kinds in parts: the kind, and the command that is disturbed."""
    flipped = {name for name, _ in FLIPPED.values()}
    parts = []
    for kind in kinds:
        names = [name for name in known if kind != "bits" or name in flipped]
        parts += [kind] if kind == "encoder" else [f"{kind} {name}" for name in names]
    return parts


def inject(part: str, world: World, root: Path, known: Known, seed: int, count: int) -> Iterator[Fault]:
    """Yield what came of every fault of a part."""
    kind, _, name = part.partition(" ")
    some = {name: known[name]} if name else known
    yield from KINDS[kind](world, root, some, random.Random(f"{seed}-{part}"), count)
    for path in root.iterdir():
        if not path.name.startswith("whole-") and not os.path.ismount(path):
            shutil.rmtree(path, ignore_errors=True)
