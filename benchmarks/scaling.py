"""How long, how much memory and how much network 1 million, 100 million and 1 billion images take, from measured rates.

    python benchmarks/scaling.py -o results/scaling

It reads the rates of one machine (2 cores) from results/speed, does the arithmetic of docs/scaling.md, and plays the
schedule on many such machines: shards are handed out as machines become free, machines differ in speed, some die. It
measures nothing itself and takes a few seconds.
"""

from __future__ import annotations

import argparse
import heapq
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

SPEED = Path(__file__).parents[1] / "results" / "speed"
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


def play_embedding(images: int, machines: int, rate: float, seed: int = 0) -> dict[str, float]:
    """Play the schedule of embedding: return its hours, the ideal ones, and what was lost."""
    rng = np.random.default_rng(seed)
    shard = max(256, images // 400_000)
    left = -(-images // shard)
    ideal = images / (machines * rate) / 3600
    speeds = rate * rng.lognormal(-(SPREAD**2) / 2, SPREAD, machines)
    free = [(0.0, m) for m in range(machines)]
    heapq.heapify(free)
    death = rng.exponential(FAILURES * 3600, machines)
    end, lost, deaths = 0.0, 0, 0
    while left:
        now, m = heapq.heappop(free)
        done = now + shard / speeds[m]
        if done > death[m]:  # its shard is handed out again
            deaths, lost = deaths + 1, lost + 1
            back = death[m] + DETECT + REPLACE
            death[m] = back + rng.exponential(FAILURES * 3600)
            heapq.heappush(free, (back, m))
            continue
        left, end = left - 1, max(end, done)
        heapq.heappush(free, (done, m))
    return {
        "hours": end / 3600,
        "ideal_hours": ideal,
        "overhead": end / 3600 / ideal - 1,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path("results/scaling"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    rates = Rates.read()
    found: dict[str, object] = {"rates": asdict(rates)}
    lines = [f"one machine, {CORES} cores: {rates}", ""]
    for images, machines in COUNTS.items():
        small, large = rates.embedding(rates.decode_small), rates.embedding(rates.decode_large)
        row = {
            "machines": machines,
            "core_hours_embedding_small": images * CORES / small / 3600,
            "core_hours_embedding_large": images * CORES / large / 3600,
            "embedding_small": play_embedding(images, machines, small),
            "embedding_large": play_embedding(images, machines, large),
            "training_epoch": play_training(images, machines, rates.step),
            **sizes(images, machines),
        }
        found[str(images)] = row
        lines.append(f"{images:,} images, {machines:,} machines")
        for name, value in row.items():
            shown = ", ".join(f"{k} {v:,.3g}" for k, v in value.items()) if isinstance(value, dict) else f"{value:,.4g}"
            lines.append(f"  {name}: {shown}")
        lines.append("")
    (out / "schedule.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "schedule.txt").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
