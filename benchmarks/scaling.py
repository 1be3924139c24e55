"""How long, how much memory and how much network 1 million, 100 million and 1 billion images take, from measured rates.

    python benchmarks/scaling.py -o results/scaling                   # schedule.json, and the tables of docs/scaling.md
    python benchmarks/scaling.py -o results/scaling --writers 20000   # writers.json: how fast features are written

It reads the rates of one machine (2 cores) from results/speed, results/search and results/scaling/writers.json, does
the arithmetic of docs/scaling.md, and plays the schedule on many such machines: shards are handed out as machines
become free, machines differ in speed, some die, and a single writer takes what they made. Without --writers it measures
nothing itself and takes a few seconds. The sentences around the tables are a person's: read them again when the
numbers are new.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from finesight.paper.markdown import markdown_table, update_page

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "scaling.md", ROOT / "results"
SPEED, OUT = RESULTS / "speed", RESULTS / "scaling"
CORES = 2
COUNTS = {1_000_000: 10, 100_000_000: 1_000, 1_000_000_000: 10_000}  # images: machines
DIMENSIONS, FLOAT = 2048, 4
CACHE_SIDE, SHAPE = 147, 4 / 3  # of the cache for 128 px, and how much longer than wide a photo is
WEIGHTS = 25_557_032 * FLOAT  # bytes of a ResNet-50
SPREAD = 0.15  # of the speed of machines (log-normal)
FAILURES = 1_000.0  # hours that a machine lives on average
DETECT, REPLACE = 30.0, 600.0  # seconds until a lost machine is noticed, and until another one works
CHECKPOINT = 120.0  # seconds between two checkpoints
RESTART = 60.0  # seconds from the end of a training to its first new step
NETWORK = 10e9 / 8  # bytes a second of a machine
BY_MACHINES = "Parquet parts, by the machines"
ONE_WRITER = {
    "Parquet parts": "Parquet parts, by one process",
    "folder": "index in a folder",
    "Milvus": "index in Milvus",
}
MEMORY = {
    "folder": "images × 4 × (256 + 2 × 32 + 4) bytes up to 2 GiB, then codes: images × (64 + 8) bytes",
    "Milvus": "images × 4 × (2,048 + 2 × 32) bytes",
}
ID_BYTES = 8  # beside a coded vector


@dataclass(frozen=True)
class Rates:
    """Of one machine with two cores, as results/speed has them."""

    network: float  # images a second through a ResNet-50 at 224 px
    decode_small: float  # core-seconds to read a photo of 0.1 megapixels
    decode_large: float  # … of 12 megapixels
    step: float  # seconds of a gentle step: ResNet-50, 128 px, 32 images

    @classmethod
    def read(cls) -> Rates:
        embedding, decoding, step = (
            json.loads((SPEED / f"{name}.json").read_text())["rows"] for name in ("embedding", "decoding", "step")
        )
        (network,) = [r for r in embedding if (r["backbone"], r["resolution"]) == ("resnet50", 224)]
        reading = {r["photos"]: r["reading_ms"] / 1e3 for r in decoding if r["threads"] == CORES}
        (trained,) = [r for r in step if r["backbone"] == "resnet50"]
        return cls(
            network["images_per_second"]["finesight, many"],
            reading["0.1 megapixels"],
            reading["12 megapixels"],
            trained["median"]["gentle"],
        )

    def embedding(self, decode: float) -> float:
        """Images a second of a machine whose cores decode and compute."""
        return CORES / (CORES / self.network + decode)


def play_embedding(
    images: int, machines: int, rate: float, seed: int = 0, writers: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """Play the schedule of embedding: return its hours, the ideal ones, and what was lost.

    ``writers`` are processes that take all features, so many a second: also return when each of them is ready.
    """
    rng = np.random.default_rng(seed)
    shard = max(256, images // 400_000)
    left = -(-images // shard)
    ideal = images / (machines * rate) / 3600
    speeds = rate * rng.lognormal(-(SPREAD**2) / 2, SPREAD, machines)
    free = [(0.0, m) for m in range(machines)]
    heapq.heapify(free)
    death = rng.exponential(FAILURES * 3600, machines)
    ends, lost, deaths = [], 0, 0
    while left:
        now, m = heapq.heappop(free)
        done = now + shard / speeds[m]
        if done > death[m]:  # its shard is handed out again
            deaths, lost = deaths + 1, lost + 1
            back = death[m] + DETECT + REPLACE
            death[m] = back + rng.exponential(FAILURES * 3600)
            heapq.heappush(free, (back, m))
            continue
        left -= 1
        ends.append(done)
        heapq.heappush(free, (done, m))
    delivered = np.sort(ends)
    behind = np.arange(len(delivered), 0, -1) * shard  # images that a writer still has to take when this shard comes
    hours = delivered[-1] / 3600
    return {
        "hours": hours,
        "hours_with_one_writer": {way: float((delivered + behind / a).max()) / 3600 for way, a in writers.items()},
        "ideal_hours": ideal,
        "overhead": hours / ideal - 1,
        "machines_lost": deaths,
        "images_done_twice": lost * shard,
    }


def play_training(images: int, machines: int, step: float, seed: int = 0) -> dict[str, float]:
    """Play one epoch of synchronous training: every step waits for the slowest machine and for the gradients."""
    rng = np.random.default_rng(seed)
    steps = images // (32 * machines)
    slowest = step * rng.lognormal(-(SPREAD**2) / 2, SPREAD, machines).max()
    exchange = 2 * (machines - 1) / machines * WEIGHTS / NETWORK
    each = slowest + exchange
    work = steps * each
    clock, deaths, rest = 0.0, 0, work
    while rest > 0:
        until = rng.exponential(FAILURES * 3600 / machines)
        if until >= rest:
            clock, rest = clock + rest, 0.0
        else:  # all stop, and repeat what was done since the last checkpoint
            deaths += 1
            clock += until + DETECT + RESTART
            rest -= max(0.0, until - rng.uniform(0, CHECKPOINT))
    return {
        "steps": steps,
        "step_seconds": each,
        "exchange_seconds": exchange,
        "hours": clock / 3600,
        "ideal_hours": images * step / 32 / machines / 3600,
        "efficiency": images * step / 32 / machines / clock,
        "machines_lost": deaths,
    }


def sizes(images: int, machines: int) -> dict[str, float]:
    """Bytes, in gigabytes."""
    cached = CACHE_SIDE * CACHE_SIDE * SHAPE * 3
    return {
        "features_gb": images * DIMENSIONS * FLOAT / 1e9,
        "cache_gb": images * cached / 1e9,
        "cache_gb_a_machine": images * cached / machines / 1e9,
        "read_gb_small": images * 30e3 / 1e9,
        "read_gb_large": images * 4e6 / 1e9,
    }


def read_writers() -> dict[str, float]:
    """Images a second that one process writes, by the way it does."""
    rates = json.loads((OUT / "writers.json").read_text())["images_per_second"]
    return {ONE_WRITER[way]: rate for way, rate in rates.items()}


@dataclass(frozen=True)
class IndexRates:
    """Of an index of 100,000 images with one feature each, on a machine with two cores."""

    build: tuple[float, float]  # seconds of the graph and its recall: least and most of what was measured
    disk: float  # bytes
    rows: int

    @classmethod
    def read(cls) -> dict[str, IndexRates]:
        both, folder, milvus = (
            json.loads((RESULTS / "search" / f"{name}.json").read_text())
            for name in ("compare", "faiss", "milvus-server")
        )
        found = {}
        for name, kind, alone in (("folder", "faiss", folder), ("Milvus", "milvus", milvus)):
            together, rows = both["build"][kind], both["rows"]
            seconds = sorted((alone["build"]["finish_seconds"] * rows / alone["rows"], together["finish_seconds"]))
            found[name] = cls((seconds[0], seconds[-1]), together["disk_bytes"], rows)
        return found


def index_costs(images: int) -> dict[str, dict[str, float]]:
    """What an index of so many images takes, if all grows as the number of images does.

    The memory is that of what is searched. A folder keeps a graph of few dimensions up to some memory, and codes
    beyond it; its vectors stay on the disk. Milvus keeps vectors and a graph.
    """
    from finesight.search.structures import CODE_BYTES, LINKS, WIDTH, FaissLimits

    graph = images * FLOAT * (WIDTH + 2 * LINKS + 4)
    codes = images * (CODE_BYTES + ID_BYTES)
    memory = {
        "folder": graph if graph <= FaissLimits().graph_bytes else codes,
        "Milvus": images * FLOAT * (DIMENSIONS + 2 * LINKS),
    }
    return {
        name: {
            "build_hours_least": rates.build[0] * images / rates.rows / 3600,
            "build_hours_most": rates.build[1] * images / rates.rows / 3600,
            "disk_gb": rates.disk * images / rates.rows / 1e9,
            "memory_gb": memory[name] / 1e9,
        }
        for name, rates in IndexRates.read().items()
    }


def estimate(images: int, machines: int, rates: Rates, writers: Mapping[str, float]) -> dict[str, Any]:
    """All that is said of so many images."""
    small, large = rates.embedding(rates.decode_small), rates.embedding(rates.decode_large)
    return {
        "machines": machines,
        "core_hours_embedding_small": images * CORES / small / 3600,
        "core_hours_embedding_large": images * CORES / large / 3600,
        "embedding_small": play_embedding(images, machines, small, writers=writers),
        "embedding_large": play_embedding(images, machines, large, writers=writers),
        "training_epoch": play_training(images, machines, rates.step),
        "index": index_costs(images),
        **sizes(images, machines),
    }


def amount(value: float) -> str:
    """Return a number with three digits that count, and no more than people read."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size(gigabytes: float) -> str:
    for unit in ("GB", "TB"):
        if gigabytes < 1000:
            return f"{amount(gigabytes)} {unit}"
        gigabytes /= 1000
    return f"{amount(gigabytes)} PB"


def blocks(found: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the tables of docs/scaling.md, by their names."""
    found = found or json.loads((OUT / "schedule.json").read_text())
    counts = [found[str(images)] for images in COUNTS]
    rates, writers = Rates(**found["rates"]), found["writers"]
    small, large = rates.embedding(rates.decode_small), rates.embedding(rates.decode_large)
    slow, fast = CORES / large, CORES / small  # core-seconds of an image
    heads = ("1 million", "100 million", "1 billion")

    def row(name: str, values: Iterable[str], how: str) -> dict[str, str]:
        return {"": name, **dict(zip(heads, values, strict=True)), "how": how}

    def numbers(name: str, how: str, *keys: str, shown: Callable[[float], str] = amount) -> dict[str, str]:
        return row(name, [shown(functools.reduce(lambda at, key: at[key], keys, one)) for one in counts], how)

    cost = [
        numbers("embedding, small photos, core-hours", f"images × {fast:.4f} / 3600", "core_hours_embedding_small"),
        numbers("embedding, 12 megapixels, core-hours", f"images × {slow:.4f} / 3600", "core_hours_embedding_large"),
        numbers("machines of two cores in the simulation", "", "machines"),
    ]
    for kind, words in (("small", "small photos"), ("large", "12 megapixels")):
        ideal = counts[0][f"embedding_{kind}"]["ideal_hours"]
        cost.append(numbers(f"hours, {words}, {BY_MACHINES}", f"ideal: {ideal:.2f}", f"embedding_{kind}", "hours"))
    for way, rate in writers.items():
        keys = ("embedding_small", "hours_with_one_writer", way)
        cost.append(numbers(f"hours, small photos, {way}", f"not below images / {rate:,.0f} / 3600", *keys))
    lives = f"each lives {FAILURES:,.0f} hours on average"
    ideal = counts[0]["training_epoch"]["ideal_hours"]
    cost += [
        numbers("machines lost in those hours (12 megapixels)", lives, "embedding_large", "machines_lost"),
        numbers("an epoch of training, hours, simulated", f"ideal: {ideal:.2f}", "training_epoch", "hours"),
        numbers("features in float32", f"images × {DIMENSIONS:,} × {FLOAT} bytes", "features_gb", shown=size),
    ]
    pixels = f"images × {CACHE_SIDE} × {CACHE_SIDE * SHAPE:.0f} × 3 bytes"
    cost += [
        numbers("decoded cache for 128 px", pixels, "cache_gb", shown=size),
        numbers("… on each machine with `--cache-shards`", "", "cache_gb_a_machine", shown=size),
        numbers("read from the store, small photos", "images × 30 KB", "read_gb_small", shown=size),
        numbers("read from the store, 12 megapixels", "images × 4 MB", "read_gb_large", shown=size),
    ]
    index = []
    for name, kind in IndexRates.read().items():
        hours = [[one["index"][name][f"build_hours_{end}"] for end in ("least", "most")] for one in counts]
        each = f"{kind.build[0]:,.0f} to {kind.build[1]:,.0f} s for {kind.rows:,}"
        index += [
            row(f"{name}: graph and recall, hours", [" to ".join(map(amount, ends)) for ends in hours], each),
            numbers(
                f"{name}: disk", f"{size(kind.disk / 1e9)} for {kind.rows:,}", "index", name, "disk_gb", shown=size
            ),
            numbers(f"{name}: memory of what is searched", MEMORY[name], "index", name, "memory_gb", shown=size),
        ]
    ways = [
        {
            "where features go": way,
            "images a second of one process": f"{rate:,.0f}",
            "machines that it keeps busy (small photos)": f"{rate / small:,.0f}",
        }
        for way, rate in writers.items()
    ]
    tables = {"cost": cost, "writers": ways, "index": index}
    return {f"scaling:{name}": markdown_table(rows) for name, rows in tables.items()}


def measure_writers(rows: int) -> dict[str, object]:
    """How fast the one process of ``--cluster`` writes features: as Parquet parts, to a folder index and to Milvus."""
    from finesight.features.on_ray import Embedded
    from finesight.features.parts_folder import Parts
    from finesight.search.base import NewItems
    from finesight.search.commit_batch import COMMIT_IMAGES
    from finesight.search.engines import create_index
    from search import SPACE, encoder, gallery, item, meta_of, milvus_server

    def embedded() -> Iterator[Embedded]:
        mask = np.zeros((7, 7), np.float32)
        vectors = (vector for some in gallery(rows) for vector in some)
        for number, vector in enumerate(vectors):
            yield Embedded(number, "", False, 500, 375, mask, {SPACE: vector})

    def write_parts() -> None:
        Parts(folder / "parts", "a benchmark").write(embedded(), SPACE, keys, paths)

    def write_index(where: str) -> None:
        with closing(create_index(where, meta_of(run), run / "encoder")) as index:
            for start, some in enumerate(gallery(rows)):
                for at in range(0, len(some), COMMIT_IMAGES):
                    vectors = some[at : at + COMMIT_IMAGES]
                    items = [item(start * len(some) + at + n) for n in range(len(vectors))]
                    index.add(NewItems(items, {SPACE: vectors}))

    paths = np.array([item(number).path for number in range(rows)])
    keys = np.array([f"{number:016d}" for number in range(rows)], "S16")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, loads = Path(name), [os.getloadavg()[0]]
        run = encoder(folder / "run")
        address = stack.enter_context(milvus_server(folder / "milvus"))[0]
        ways = {
            "making the vectors": lambda: sum(len(some) for some in gallery(rows)),
            "Parquet parts": write_parts,
            "folder": lambda: write_index(str(folder / "index")),
            "Milvus": lambda: write_index(f"{address}/gallery"),
        }
        seconds = {}
        for way, work in ways.items():
            began = time.perf_counter()
            work()
            seconds[way] = time.perf_counter() - began
        loads.append(os.getloadavg()[0])
    made = seconds.pop("making the vectors")
    return {
        "command": f"python benchmarks/scaling.py --writers {rows} -o results/scaling",
        "rows": rows,
        "dimension": DIMENSIONS,
        "images_of_a_commit": {"Parquet parts": 1024, "folder": COMMIT_IMAGES, "Milvus": COMMIT_IMAGES},
        "seconds": seconds,
        "of_them_making_the_vectors": made,
        "images_per_second": {way: rows / (took - made) for way, took in seconds.items()},
        "load_average_before_and_after": [round(load, 2) for load in loads],
    }


def told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key} ({told(v)})" if isinstance(v, dict) else f"{key} {told(v)}" for key, v in value.items()
        )
    return f"{value:,.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=OUT)
    parser.add_argument(
        "--writers", type=int, metavar="ROWS", help="measure the writers instead, with so many features"
    )
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.writers:
        from finesight.paper.machine import record_measurement

        print(record_measurement(measure_writers(options.writers), out / "writers.json"))
        return
    rates, writers = Rates.read(), read_writers()
    found: dict[str, Any] = {"rates": asdict(rates), "writers": writers}
    lines = [f"one machine, {CORES} cores: {rates}", f"one writer, images a second: {writers}", ""]
    for images, machines in COUNTS.items():
        row = found[str(images)] = estimate(images, machines, rates, writers)
        lines.append(f"{images:,} images, {machines:,} machines")
        for name, value in row.items():
            lines.append(f"  {name}: {told(value)}")
        lines.append("")
    (out / "schedule.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "schedule.txt").write_text("\n".join(lines))
    print("\n".join(lines))
    update_page(PAGE, blocks(found))


if __name__ == "__main__":
    main()
