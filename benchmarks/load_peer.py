"""``finesight serve`` beside a plain server, as ``benchmarks/load.py --peer`` measures it."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

from load_answers import FIRST, World
from load_place import Place, listed
from load_requests import LARGEST, SEARCHES, attack, attacks, ordinary
from load_run import LEVELS, Server, Stats, Traffic, record

LONGEST = 35.0  # seconds that an attack may take: a server that waits longer is not going to answer


async def beside(place: Place, servers: dict[str, Server], options: argparse.Namespace) -> dict[str, Any]:
    """Searches by turns, then attacks."""
    photos = [file.read_bytes() for file in place.queries]
    names = await listed(servers["finesight"].site)
    ids = random.Random(options.seed).sample(sorted(names.values()), options.asked)
    world = World(set(names.values()), set(names.values()))
    traffic: dict[str, Traffic] = {}
    for name, server in servers.items():
        asks = [ask for ask in ordinary(server.site, photos, ids, [], []) if ask.kind in SEARCHES]
        await record(servers[name].site, asks, FIRST)
        traffic[name] = Traffic(server.site, asks, [], world, Stats(), {"search by a photo": 1, "search by an item": 2})
        traffic[name].again = 0.0  # the plain server remembers no uploads
    pairs = list(zip(traffic["finesight"].asks, traffic["plain"].asks, strict=True))
    alike = [not ask.same(dict(list(other.known[FIRST].items())[:24]), ask.known[FIRST]) for ask, other in pairs]
    turns = max(1, round(60 * options.minutes / len(LEVELS) / 2 / options.turn))
    found: dict[str, Any] = {name: {} for name in servers}
    for level in LEVELS:
        parts: dict[str, dict[str, Any]] = {name: {"seconds": 0.0, "processor": 0.0} for name in servers}
        for turn in range(turns):
            for name in sorted(servers, reverse=bool(turn % 2)):
                one, server = traffic[name], servers[name]
                if turn == 0:
                    one.stats = Stats()
                one.level, one.ended, one.seed = level, False, turn
                spent, began = server.facts()["processor_s"], time.perf_counter()
                await one.run(level, 0, lambda until=began + options.turn: time.perf_counter() > until)
                parts[name]["seconds"] += time.perf_counter() - began
                parts[name]["processor"] += server.facts()["processor_s"] - spent
                print(
                    f"{level} clients, turn {turn + 1} of {turns}: {name}, {one.stats.answered:,} answers", flush=True
                )
        for name in servers:
            stats = traffic[name].stats
            found[name][f"{level}_clients"] = {
                "answers_per_second": round(stats.answered / parts[name]["seconds"], 2),
                "processor_ms_per_answer": round(1000 * parts[name]["processor"] / max(1, stats.answered), 1),
                "refused": stats.refused.total(),
                "errors": stats.errors.total(),
                "wrong": stats.wrong.total(),
                "routes": stats.table(),
                **{key: value for key, value in servers[name].facts().items() if key != "processor_s"},
            }
    for name, server in servers.items():
        found[name]["attacks"] = await one_by_one(server, photos[0])
        found[name]["log_tracebacks"] = server.log.read_text().count("Traceback")
    return {"photos": options.images, "same_answers": [sum(alike), len(alike)], "turn_seconds": options.turn, **found}


async def one_by_one(server: Server, photo: bytes) -> dict[str, Any]:
    """Each attack alone: what it got, how long it took, and the most memory of the server meanwhile."""
    found = {}
    for one in attacks(server.site, photo, LARGEST):
        if not server.is_running:
            found[one.kind] = {"status": "the server has ended"}
            continue
        peak, began = [server.facts()["memory_mb"]], time.perf_counter()
        task = asyncio.create_task(attack(server.site, one))
        while not task.done() and time.perf_counter() - began < LONGEST:
            await asyncio.wait([task], timeout=0.02)
            peak.append(server.facts()["memory_mb"])
        took, ended = time.perf_counter() - began, task.done()
        task.cancel()
        found[one.kind] = {
            "status": task.result()[0] if ended else "no answer",
            "seconds": round(took, 2),
            "memory_grew_mb": round(max(peak) - peak[0], 1),
        }
    return found
