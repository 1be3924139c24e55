"""Whole jobs, by the clock: from a folder to a page that can be searched, scores on all of CUB, the demo.

    python benchmarks/jobs.py --cub CUB_200_2011 --weights FILE -o results/speed/jobs.json
    python benchmarks/jobs.py --cub CUB_200_2011 --weights FILE --parts search -o results/speed/jobs.json
    python benchmarks/jobs.py --cub CUB_200_2011 --weights FILE --quick          # 100 images, no demo

Every job is a command of its own, with empty caches, started as a user would; the same job written with lightly,
torchvision and faiss (``benchmarks/peer.py``) takes turns with it. Needs ``pip install finesight[bench]``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finesight.paper.machine import record_measurement

HERE = Path(__file__).parent
FINESIGHT = (sys.executable, "-m", "finesight")
PEER = (sys.executable, HERE / "peer.py")


def link_images(cub: Path, place: Path, count: int) -> Path:
    """Copy images of CUB to folders train and test, in class folders; return the place."""
    names = dict(line.split() for line in (cub / "images.txt").read_text().splitlines())
    train = dict(line.split() for line in (cub / "train_test_split.txt").read_text().splitlines())
    step = max(1, len(names) // count)
    for number in list(names)[::step][:count]:
        target = place / ("train" if train[number] == "1" else "test") / names[number]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cub / "images" / names[number], target)  # links that leave the folder are not indexed
    return place


def seconds_of(command: list[Any], cache: Path) -> float:
    began = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, env=environment(cache))
    return time.perf_counter() - began


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(cache)}


def seconds_to_search(photos: Path, count: int, weights: Path, scratch: Path) -> dict[str, float]:
    """Return how long until the page answers, and until all images can be searched."""
    options = ["--out", scratch / "run", "--weights", weights, "--no-train", "--no-open", "--port", 0]
    command = [str(word) for word in (*FINESIGHT, "up", photos, *options)]
    began = time.perf_counter()
    log = scratch / "log"
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment(scratch))
        found: dict[str, float] = {}
        try:
            while "searchable" not in found:
                time.sleep(0.1)
                if server.poll() is not None:
                    raise SystemExit(log.read_text())
                address = re.search(r"http://[\w.]+:\d+/", log.read_text())
                if address is None:
                    continue
                try:
                    with urllib.request.urlopen(f"{address[0]}api/health", timeout=5) as answer:
                        health = json.load(answer)
                except OSError:
                    continue
                found.setdefault("page", time.perf_counter() - began)
                if health["items"] == count and health["status"] == "ok":
                    found["searchable"] = time.perf_counter() - began
        finally:
            server.terminate()
            server.wait()
    return found


def run_rounds(jobs: dict[str, Callable[[Path], float]], rounds: int) -> dict[str, Any]:
    """Return the seconds of each job in every round, and the medians."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            with tempfile.TemporaryDirectory() as scratch:
                seconds[name].append(round(job(Path(scratch)), 1))
            print(name, seconds[name][-1], flush=True)
    return {"seconds": seconds, "median": {name: statistics.median(values) for name, values in seconds.items()}}


def compare_search(cub: Path, place: Path, count: int, weights: Path, rounds: int) -> dict[str, Any]:
    photos, pages = link_images(cub, place, count), []

    def search(scratch: Path) -> float:
        pages.append(seconds_to_search(photos, count, weights, scratch))
        return pages[-1]["searchable"]

    peer = [*PEER, photos, "--weights", weights]
    found = run_rounds({"finesight up": search, "lightly, faiss": lambda s: seconds_of(peer, s)}, rounds)
    return {"images": count, **found, "page": [round(one["page"], 1) for one in pages]}


def compare_scores(cub: Path, place: Path, count: int, weights: Path, rounds: int) -> dict[str, Any]:
    scored = link_images(cub, place, count)
    own = [*FINESIGHT, "evaluate", "--data", scored, "--backbone", "resnet50", "--weights", weights, "--quiet"]
    peer = [*PEER, scored / "train", scored / "test", "--weights", weights]
    jobs: dict[str, Callable[[Path], float]] = {
        "finesight evaluate": lambda scratch: seconds_of(own, scratch),
        "lightly, faiss, scikit-learn": lambda scratch: seconds_of(peer, scratch),
    }
    return {"images": count, **run_rounds(jobs, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cub", type=Path, required=True, help="the folder CUB_200_2011")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet ResNet-50, caffe strides")
    parser.add_argument("--parts", default="search,evaluate,demo", help="which jobs; the others stay as they are in -o")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=2000, help="of the folder that is made searchable")
    parser.add_argument("--evaluate", type=int, default=11788, help="images that are scored")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    few, many, rounds = (100, 400, 1) if options.quick else (options.images, options.evaluate, options.rounds)
    cub, weights = options.cub, options.weights.resolve()
    demo = {"finesight demo": lambda s: seconds_of([*FINESIGHT, "demo", "--out", s / "demo", "--quiet"], s)}
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "search": lambda place: compare_search(cub, place, few, weights, rounds),
        "evaluate": lambda place: compare_scores(cub, place, many, weights, rounds),
        "demo": lambda _: run_rounds(demo, 1),
    }
    result = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for part in ("search", "evaluate") if options.quick else options.parts.split(","):
        with tempfile.TemporaryDirectory() as place:
            result[part] = parts[part](Path(place))
        text = record_measurement(result, options.out)
    print(text)


if __name__ == "__main__":
    main()
