"""A server under mixed traffic at and beyond its limit, with every answer checked; beside a plain server.

    python benchmarks/load.py PHOTOS --weights resnet18.safetensors --minutes 60 -o results/load/hour.json
    python benchmarks/load.py PHOTOS --weights resnet18.safetensors --peer --minutes 10 -o results/load/peer.json

Some thousand photos of a folder are indexed by a frozen network, and ``finesight serve`` is started on them with a
token. While it is idle its answers to several hundred requests are recorded, for two states of the index. Then clients
that each send their next request as soon as they have an answer ask the same at random: 8 of them, 32, or 96, by
turns of a minute. 33 pictures have room in the server, so 96 clients are refused now and then (503) and wait as long as
the server says. Twelve others do all the time what nobody should. ``finesight index`` changes the index from outside,
at a third and at two thirds of the time.

Every answer must be the recorded one: the same hits in the same order, scores and maps to 1e-5, pictures and files to
the byte; while the index changes, that of some set of images between the two states. Server and clients share one core
(``--core``), so the numbers are those of a small machine, and of a client that is served by a busy one.

``--peer`` instead lets ``finesight serve`` and ``benchmarks/peer_server.py`` answer searches by turns of half a minute,
with the same network, vectors and photos; then each gets the attacks, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from load_answers import FIRST, SECOND, Ask, World
from load_client import Connection
from load_peer import beside
from load_place import Place, listed, our_server, plain_server, prepare, run_command
from load_requests import LARGEST, WEIGHTS, attacks, known_thumbnails, ordinary
from load_run import LEVELS, Server, Stats, Traffic, check_all, record, spread_ms

HOSTILE = 12


# --- the hour ---------------------------------------------------------------------------------------------------------


async def learned(place: Place, server: Server, options: argparse.Namespace) -> tuple[list[Ask], World]:
    """The requests with their answers in both states of the index, which is then in the first one again."""
    site, first = server.site, await listed(server.site)
    place.exchange()
    place.update()
    second = await listed(site)
    passing = [first[name] for name in sorted(first.keys() - second.keys())][:20]
    stable = [first[name] for name in sorted(first.keys() & second.keys())]
    dice = random.Random(options.seed)
    asked, names = dice.sample(stable, min(options.asked, len(stable))), sorted({name[:7] for name in first})[:40]
    asks = ordinary(site, [file.read_bytes() for file in place.queries], asked, passing, names)
    tags: dict[str, str] = {}
    connection = Connection(site)
    for item in asked:
        tags[item] = (await connection.ask(site.get(f"/api/items/{item}/thumb"))).headers["etag"]
    connection.close()
    asks += known_thumbnails(site, asked, tags)
    await record(site, asks, SECOND)
    place.exchange()
    place.update()
    await record(site, asks, FIRST)
    return asks, World(set(first.values()), set(second.values()))


class Watch:
    """Looks at the server every ten seconds, and writes what it sees to a file at once."""

    def __init__(self, server: Server, traffic: Traffic, minutes: float, file: Path, every: float) -> None:
        self._server, self._traffic, self._file, self._every = server, traffic, file, every
        self._seconds, self.began, self.samples = 60 * minutes, time.perf_counter(), list[dict[str, float]]()
        self._seen = 0

    def over(self) -> bool:
        return time.perf_counter() - self.began > self._seconds or not self._server.is_running

    async def run(self) -> None:
        while not self.over():
            self.look()
            await asyncio.sleep(self._every)

    def look(self) -> None:
        stats, now = self._traffic.stats, time.perf_counter() - self.began
        recent = [
            seconds
            for times in stats.times.values()
            for at, seconds in times[-4000:]
            if at + seconds > self.began + now - self._every  # that ended since
        ]
        sample = {
            "at": round(now, 1),
            **self._server.facts(),
            "load": os.getloadavg()[0],
            "clients": self._traffic.level,
            "answered": stats.answered,
            "refused": stats.refused.total(),
            "errors": stats.errors.total(),
            "wrong": stats.wrong.total(),
            **spread_ms(recent),
        }
        self.samples.append(sample)
        with self._file.open("a") as stream:
            stream.write(json.dumps(sample) + "\n")
        rate, self._seen = (stats.answered - self._seen) / self._every, stats.answered
        line = (
            f"{now / 60:5.1f} of {self._seconds / 60:g} min, {self._traffic.level:2d} clients, {rate:5.1f} answers/s, "
            f"p99 {sample['p99_ms'] / 1000:.2f} s, {sample['refused']:,} refused, {sample['errors']} errors, "
            f"{sample['wrong']} wrong, {sample['memory_mb']:.0f} MB, "
            f"{sample['files']} files, {sample['threads']} threads"
        )
        print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)


async def change_levels(traffic: Traffic, watch: Watch, turn: float) -> None:
    """Let as many clients work as it is the turn of, and count for each."""
    number = 0
    while not watch.over():
        level = LEVELS[number % len(LEVELS)]
        traffic.level, number = level, number + 1
        stats, began = traffic.stats, time.perf_counter()
        before = {kind: len(times) for kind, times in stats.times.items()}
        refused, refusals = stats.refused.total(), len(stats.refusals)
        while time.perf_counter() - began < turn and not watch.over():
            await asyncio.sleep(0.1)
        told = stats.levels.setdefault(level, {"seconds": 0.0, "times": [], "refused": 0, "refusals": []})
        told["seconds"] += time.perf_counter() - began
        told["refused"] += stats.refused.total() - refused
        told["refusals"] += stats.refusals[refusals:]
        told["times"] += [one for kind, times in stats.times.items() for _, one in times[before.get(kind, 0) :]]


async def change_index(place: Place, world: World, watch: Watch, at: list[float]) -> list[dict[str, Any]]:
    """Change the index from outside, at those seconds."""
    found = []
    for second in at:
        while time.perf_counter() - watch.began < second:
            if watch.over():
                return found
            await asyncio.sleep(0.1)
        began = time.perf_counter()
        world.begin()
        place.exchange()
        report = await run_command(place.index_command())
        world.end()
        took = round(time.perf_counter() - began, 1)
        found.append(
            {
                "at": round(began - watch.began, 1),
                "seconds": took,
                "added": report["added"],
                "removed": report["removed"],
            }
        )
    return found


async def hour(place: Place, server: Server, options: argparse.Namespace) -> dict[str, Any]:
    asks, world = await learned(place, server, options)
    print(f"{len(asks):,} answers are recorded, in two states of the index", flush=True)
    stats, seconds = Stats(), 60 * options.minutes
    photo = place.queries[0].read_bytes()
    traffic = Traffic(server.site, asks, attacks(server.site, photo, LARGEST), world, stats, WEIGHTS, seed=options.seed)
    every = min(10.0, seconds / 12)
    watch = Watch(server, traffic, options.minutes, options.samples, every)
    idle = server.facts()
    changes = asyncio.create_task(change_index(place, world, watch, [seconds / 3, 2 * seconds / 3]))
    others = [watch.run(), change_levels(traffic, watch, min(60.0, seconds / 6)), changes]
    await asyncio.gather(traffic.run(max(LEVELS), HOSTILE, watch.over), *others)
    took = time.perf_counter() - watch.began
    right = await check_all(server.site, asks, world, stats) if server.is_running else 0
    await asyncio.sleep(min(20.0, seconds / 10))
    after = server.facts() if server.is_running else {}
    code, ended = server.stop()
    log = server.log.read_text()
    return {
        "photos": options.images,
        "seconds": round(took, 1),
        "recorded_answers": len(asks),
        "answered": stats.answered,
        "refused": stats.refused.total(),
        "refusal_ms": spread_ms(stats.refusals),
        "errors": stats.errors.total(),
        "wrong": stats.wrong.total(),
        "forgotten_uploads": stats.gone.total(),
        "words": stats.words,
        "routes": stats.table(),
        "levels": {
            level: {
                "answers_per_second": round(len(one["times"]) / one["seconds"], 1),
                **spread_ms(one["times"]),
                "refused": one["refused"],
                "refused_share": round(one["refused"] / max(1, one["refused"] + len(one["times"])), 4),
                "refusal_ms": spread_ms(one["refusals"]),
            }
            for level, one in sorted(stats.levels.items())
        },
        "attacks": {
            kind: {str(status): n for status, n in sorted(one.items())} for kind, one in sorted(stats.attacks.items())
        },
        "index_changes": changes.result(),
        "right_after_the_load": [right, len(asks)],
        "memory": memory_trend(watch.samples),
        "idle": {"before": idle, "after": after},
        "log": {"lines": len(log.splitlines()), "tracebacks": log.count("Traceback"), "end": log[-600:]},
        "end": {"exit_code": code, "seconds": ended},
        "samples": {name: [one[name] for one in watch.samples] for name in watch.samples[0]},
    }


def memory_trend(samples: list[dict[str, float]]) -> dict[str, Any]:
    """The slope over the last three quarters of the time, and the middle of each quarter.

    Of all that is resident, and of what is the process's own: the system takes pages of files back when it likes.
    """
    at = np.array([one["at"] for one in samples])
    late, found = at >= at[-1] / 4, dict[str, Any]()
    for name in ("memory_mb", "own_mb"):
        memory = np.array([one[name] for one in samples])
        slope = float(np.polyfit(at[late], memory[late], 1)[0]) * 3600 if late.sum() > 2 else float("nan")
        medians = [round(float(np.median(part)), 1) for part in np.array_split(memory, 4)]
        found[name] = {"slope_per_hour": round(slope, 2), "medians_of_quarters": medians, "peak": float(memory.max())}
    return {**found, "peak_with_children_mb": max(one["memory_mb"] + one["children_mb"] for one in samples)}


# --- all --------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of photos")
    parser.add_argument("--weights", required=True, help="a file, or random")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--output-stride", type=int, default=32)
    parser.add_argument("--resolution", type=int, default=112)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--uploads", type=int, default=120, help="photos to search by that are not in the index")
    parser.add_argument("--asked", type=int, default=300, help="images of the index that are asked for")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--turn", type=float, default=30.0, help="seconds of one turn, with --peer")
    parser.add_argument("--peer", action="store_true", help="beside a plain server, by turns")
    parser.add_argument("--core", type=int, help="the only core that server and clients use")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})  # servers and commands inherit it
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="finesight-load-") as scratch:
        options.samples = (
            Path(f"{options.out or scratch}.samples.jsonl") if options.out else Path(scratch) / "samples.jsonl"
        )
        options.samples.parent.mkdir(parents=True, exist_ok=True)
        options.samples.unlink(missing_ok=True)
        place = prepare(Path(scratch), options)
        if options.peer:
            with our_server(place) as ours, plain_server(place) as plain:
                found = asyncio.run(beside(place, {"finesight": ours, "plain": plain}, options))
        else:
            with our_server(place) as server:
                found = asyncio.run(hour(place, server, options))
    write(found, load, options)


def write(found: dict[str, Any], load: float, options: argparse.Namespace) -> None:
    from finesight.paper.machine import record_measurement

    weights = options.weights if options.weights == "random" else Path(options.weights).name
    words = f"PHOTOS --weights {weights} --backbone {options.backbone} --resolution {options.resolution}"
    words += f" --images {options.images} --uploads {options.uploads} --asked {options.asked}"
    words += f" --minutes {options.minutes:g}" + (f" --turn {options.turn:g} --peer" if options.peer else "")
    words += "" if options.core is None else f" --core {options.core}"
    result = {
        "command": f"python benchmarks/load.py {words} --seed {options.seed}",
        "nice": os.nice(0),
        **found,
        "load_average_before_and_after": [round(load, 2), round(os.getloadavg()[0], 2)],
    }
    text = record_measurement(result, options.out)
    short = {name: value for name, value in json.loads(text).items() if name not in ("samples",)}
    print(json.dumps(short, indent=1))


if __name__ == "__main__":
    main()
