"""Small files that are much work, replayed through commands and a server: what they cost.

    PYTHONPATH=tests python -m chaos.attacks -o results/chaos/attacks.json

A JPEG of 244 KB whose scans took 10 s, one of 1.2 MB that took minutes, one just within the limits, and two PNGs
of 657 KB with 13,000 × 13,000 pixels each that took 6 GB: in a folder of eight pictures for ``embed``, ``index`` and
``train``, and uploaded to ``finesight serve``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import httpx

from bombs import png_bomb, scan_bomb
from indexes import small_encoder
from processes import TIMEOUT, TINY, Command, children_of, processor_seconds
from serving import Serving, drawn, form, indexed

PICTURES = 8
SIDE = 7000


@cache
def huge_png() -> bytes:
    return png_bomb(13_000)


Files = Mapping[str, Callable[[], bytes]]
FILES: Files = {
    "scans-244KB.jpg": lambda: scan_bomb(SIDE, 690),
    "scans-1.2MB.jpg": lambda: scan_bomb(SIDE, 13_400),
    "scans-allowed.jpg": lambda: scan_bomb(SIDE, 65),
    "13000-a.png": huge_png,
    "13000-b.png": huge_png,
}


@dataclass
class Cost:
    """What a command took: seconds, seconds of processors, and memory of its own, all with its children."""

    what: str
    seconds: float = 0.0
    processor_seconds: float = 0.0
    megabytes: float = 0.0  # at most at a time
    code: int | None = None
    said: str = ""


def private_megabytes(process: int) -> float:
    """Return the memory that no other process shares, and that of its children."""
    total = 0
    for one in (process, *children_of(process)):
        with suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
    return total / 1024


@contextmanager
def measured(running: Command, what: str) -> Iterator[Cost]:
    """Measure what a process takes while the block runs."""
    assert running.process.pid is not None
    process, cost, done = running.process.pid, Cost(what), threading.Event()
    worked, began = processor_seconds(process), time.monotonic()

    def watch() -> None:
        while True:
            cost.megabytes = max(cost.megabytes, private_megabytes(process))
            now = processor_seconds(process) + sum(map(processor_seconds, children_of(process)))
            cost.processor_seconds = max(cost.processor_seconds, now - worked)
            if done.wait(0.2):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield cost
    finally:
        done.set()
        watcher.join()
        cost.seconds = round(time.monotonic() - began, 1)
        cost.processor_seconds = round(cost.processor_seconds, 1)
        cost.megabytes = round(cost.megabytes)


def make_folder(folder: Path, files: Files) -> Path:
    """Make eight pictures and these files among them."""
    folder.mkdir(parents=True)
    for number in range(PICTURES):
        (folder / f"picture-{number}.png").write_bytes(drawn(size=(40, 40), seed=number))
    for name, make in files.items():
        (folder / name).write_bytes(make())
    return folder


def replay(name: str, root: Path, files: Files) -> Cost:
    """Run ``embed``, ``index`` or ``train`` on a folder with these files."""
    run, images = small_encoder(root / "run"), make_folder(root / "images", files)
    commands: dict[str, tuple[str | Path, ...]] = {
        "embed": ("embed", run, images, "-o", root / "features.npz", "--quiet"),
        "index": ("index", run, images, "--index", root / "index", "--quiet"),
        "train": ("train", "--data", images, "--out", root / "out", "--epochs", "1", *TINY),
    }
    running = Command(*commands[name], FINESIGHT_CACHE=str(root / "cache"))
    with measured(running, name) as cost:
        done = running.wait()
    cost.code = done.code
    cost.said = " ".join((done.out + done.err).replace(str(root), "…").split())[-300:]
    return cost


def upload(root: Path, files: Files) -> Iterator[Cost]:
    """Send these files to a server, each with a search by an ordinary picture at the same time and one afterwards."""
    run, images = small_encoder(root / "run"), make_folder(root / "images", {})
    with (
        Serving("serve", indexed(run, images), "--port", "0", FINESIGHT_CACHE=str(root / "cache")) as server,
        httpx.Client(base_url=server.url, timeout=TIMEOUT) as web,
    ):
        web.post("/api/search", files=form(drawn())).raise_for_status()
        for name, make in files.items():
            content = make()
            with measured(server, f"upload of {name}") as cost:
                answer = web.post("/api/search", files=form(content))
            cost.code, cost.said = answer.status_code, answer.json().get("detail", "")
            web.post("/api/search", files=form(drawn())).raise_for_status()
            yield cost
        with measured(server, "the server afterwards") as cost:
            time.sleep(0.5)
        cost.code = web.get("/api/health").status_code
        yield cost


def main() -> None:
    from finesight.paper.machine import record_measurement

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    costs = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("embed", "index", "train"):
            costs.append(replay(name, Path(scratch) / name, FILES))
            print(json.dumps(asdict(costs[-1])), flush=True)
        for cost in upload(Path(scratch) / "server", FILES):
            costs.append(cost)
            print(json.dumps(asdict(cost)), flush=True)
    facts = {"command": "python -m chaos.attacks", "cores": os.cpu_count(), "costs": [asdict(cost) for cost in costs]}
    record_measurement(facts, options.out)


if __name__ == "__main__":
    main()
