"""A server under load: its process, the clients that ask it, and what was counted meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from load_answers import HITS, Ask, World
from load_client import LOST, Answer, Connection, Site
from load_requests import WEIGHTS, Attack, attack

LEVELS = (8, 32, 96)  # clients at a time
KEPT_WORDS = 40  # of what went wrong
HOSTILE_PAUSE = 3.0  # seconds between two attacks of one client, in the middle
AGAIN = 0.1  # share of uploads that are searched by once more, by the id that the server gave
ASKED_AGAIN = "search by a photo sent before"


class Server:
    """A server process that prints its address. Its log is kept in a file."""

    def __init__(self, command: Sequence[str], log: Path, token: str = "", **env: str) -> None:
        self.log = log
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stream, text=True, env={**os.environ, **env}
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = re.search(r"http://([^:/]+):(\d+)", said)
        if found is None:
            raise SystemExit(f"The server did not start: {said}{log.read_text()[-2000:]}")
        self.site = Site(found[1], int(found[2]))
        if token:
            self.site = Site(found[1], int(found[2]), self._sign_in(token))

    def _sign_in(self, token: str) -> str:
        """The cookie that a browser gets which opens the address with the token."""
        answer = asyncio.run(ask_once(self.site, self.site.get("/", token=token)))
        return answer.headers["set-cookie"].partition(";")[0]

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def facts(self) -> dict[str, float]:
        """Memory in MB (of it its own; of its children), open files, threads, and seconds of the processor."""
        pid = self._process.pid
        own, children = status_of(pid), [status_of(child) for child in children_of(pid)]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return {
            "memory_mb": own.get("VmRSS", 0.0),
            "own_mb": own.get("RssAnon", 0.0),
            "children_mb": round(sum(one.get("VmRSS", 0.0) for one in children), 1),
            "files": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "processor_s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        }

    def stop(self) -> tuple[int, float]:
        """Press Ctrl-C. -> exit code and seconds until the end"""
        began = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return code, round(time.monotonic() - began, 2)


def status_of(process: int) -> dict[str, float]:
    """Memory of a process in MB, by the names that Linux uses."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}  # it has ended
    return {line.split(":")[0]: round(int(line.split()[1]) / 1024, 1) for line in lines if line.endswith(" kB")}


def children_of(process: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


async def ask_once(site: Site, data: bytes) -> Answer:
    connection = Connection(site)
    try:
        return await connection.ask(data)
    finally:
        connection.close()


# --- what was counted -------------------------------------------------------------------------------------------------


@dataclass
class Stats:
    """Counts and times of all requests."""

    times: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))  # when, how long
    refused: Counter[str] = field(default_factory=Counter)
    refusals: list[float] = field(default_factory=list)  # how long they took
    wrong: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # connections cut, and no answer at all
    gone: Counter[str] = field(default_factory=Counter)  # 404 where that is right
    attacks: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    words: list[str] = field(default_factory=list)
    levels: dict[int, dict[str, Any]] = field(default_factory=dict)

    def say(self, words: str) -> None:
        if len(self.words) < KEPT_WORDS:
            self.words.append(words)
            print(f"\nWrong: {words}", flush=True)

    def refuse(self, kind: str, seconds: float, answer: Answer) -> None:
        """Count a 503, which must say when to come again."""
        self.refused[kind] += 1
        self.refusals.append(seconds)
        if words := answer.problem or ("" if "retry-after" in answer.headers else "503 without Retry-After"):
            self.wrong[kind] += 1
            self.say(f"{kind}: {words}")

    def judge(self, kind: str, words: str) -> None:
        if words:
            self.wrong[kind] += 1
            self.say(f"{kind}: {words}")

    @property
    def answered(self) -> int:
        return sum(map(len, self.times.values()))

    def table(self) -> dict[str, dict[str, float]]:
        """For each kind of request: how many were answered, how long they took, how many were refused."""
        kinds = [*WEIGHTS, ASKED_AGAIN]
        return {
            kind: {
                "answered": len(self.times[kind]),
                **spread_ms([seconds for _, seconds in self.times[kind]]),
                "refused": self.refused[kind],
                "errors": self.errors[kind],
                "wrong": self.wrong[kind],
            }
            for kind in kinds
            if self.times[kind] or self.refused[kind] or self.errors[kind]
        }


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    shares = (50, 95, 99)
    values = np.percentile(seconds, shares) if len(seconds) else [float("nan")] * 3
    return {f"p{share}_ms": round(1000 * float(value), 1) for share, value in zip(shares, values, strict=True)}


# --- clients ----------------------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """Closed-loop clients: each sends the next request when it has the answer to the last.

    One that is refused waits as long as the server tells it to. Only the first ``level`` of them are at work.
    """

    site: Site
    asks: Sequence[Ask]
    attacks: Sequence[Attack]
    world: World
    stats: Stats
    weights: Mapping[str, float]
    level: int = 0
    ended: bool = False
    seed: int = 0
    again: float = AGAIN

    def __post_init__(self) -> None:
        self._pools: dict[str, list[Ask]] = defaultdict(list)
        for ask in self.asks:
            self._pools[ask.kind].append(ask)
        self._kinds = [kind for kind in self.weights if self._pools[kind]]

    async def run(self, clients: int, hostile: int, until: Callable[[], bool]) -> None:
        """Send requests until it is time to end."""
        tasks = [asyncio.create_task(self._client(n)) for n in range(clients)]
        tasks += [asyncio.create_task(self._hostile_client(n)) for n in range(hostile)]
        while not until():
            await asyncio.sleep(0.1)
            failed = [task for task in tasks if task.done()]
            for task in failed:
                task.result()  # a fault of this script
        self.ended = True
        await asyncio.gather(*tasks)

    async def _client(self, number: int) -> None:
        dice = random.Random(1000 * self.seed + number)
        weights = [self.weights[kind] for kind in self._kinds]
        connection = Connection(self.site)
        while not self.ended:
            if number >= self.level:
                connection.close()
                await asyncio.sleep(0.2)
                continue
            kind = dice.choices(self._kinds, weights)[0]
            await self._ask(connection, dice.choice(self._pools[kind]), dice)
        connection.close()

    async def _ask(self, connection: Connection, ask: Ask, dice: random.Random) -> None:
        version = self.world.version
        answer = await self._send(connection, ask.kind, ask.data)
        if answer is None:
            return
        self.stats.judge(ask.kind, ask.judge(answer, self.world, version))
        if ask.kind == "search by a photo" and answer.status == 200 and dice.random() < self.again:
            await self._ask_again(connection, ask, answer.json["query"]["id"])

    async def _ask_again(self, connection: Connection, ask: Ask, query: str) -> None:
        """By the id of a picture that was sent; it may be forgotten by now."""
        version = self.world.version
        data = self.site.get("/api/search", query=query, k=HITS)
        answer = await self._send(connection, ASKED_AGAIN, data)
        if answer is None:
            return
        if answer.status == 404:
            self.stats.gone[ASKED_AGAIN] += 1
            self.stats.judge(ASKED_AGAIN, answer.problem)
        else:
            self.stats.judge(ASKED_AGAIN, ask.judge(answer, self.world, version))

    async def _send(self, connection: Connection, kind: str, data: bytes) -> Answer | None:
        began = time.perf_counter()
        try:
            answer = await connection.ask(data)
        except (*LOST, TimeoutError) as error:
            connection.close()
            self.stats.errors[kind] += 1
            self.stats.say(f"{kind}: {type(error).__name__} {error}")
            await asyncio.sleep(1)
            return None
        seconds = time.perf_counter() - began
        if answer.status == 503:
            self.stats.refuse(kind, seconds, answer)
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
            return None
        self.stats.times[kind].append((began, seconds))
        return answer

    async def _hostile_client(self, number: int) -> None:
        dice = random.Random(1_000_000 + number)
        while not self.ended:
            await asyncio.sleep(HOSTILE_PAUSE * 2 * dice.random())
            one = dice.choices(self.attacks, [one.weight for one in self.attacks])[0]
            status, words = await attack(self.site, one)
            self.stats.attacks[one.kind][status] += 1
            if words:
                self.stats.wrong[f"attack: {one.kind}"] += 1
                self.stats.say(words)


async def record(site: Site, asks: Sequence[Ask], state: str) -> None:
    """Ask an idle server everything once."""
    connection = Connection(site)
    for ask in asks:
        ask.learn(state, await connection.ask(ask.record))
    connection.close()


async def check_all(site: Site, asks: Sequence[Ask], world: World, stats: Stats) -> int:
    """Ask everything once more, one after the other. -> how many were right"""
    connection, right = Connection(site), 0
    for ask in asks:
        words = ask.judge(await connection.ask(ask.data), world, world.version)
        right += not words
        stats.judge(ask.kind, words and f"after the load: {words}")
    connection.close()
    return right
