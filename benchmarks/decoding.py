"""Whether reading photos keeps up with the network: `finesight index` of a folder beside the network alone.

    python benchmarks/decoding.py -o results/speed/decoding.json
    python benchmarks/decoding.py --quick

Drawn photos with noise, as JPEGs: as large as those of CUB and of 12 megapixels. Both ways take turns, by the clock;
no file is in the system's cache when it is read. With as many threads of the network as cores, reading takes its time
from the network; with one less, a core is free for it. The bound is what is left of the network's speed if no core ever
waits: what reading costs the processor, alone and in one thread, is spread over the cores that the network leaves free,
or over all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from PIL import Image
from timing import ratio

from finesight.api import frozen
from finesight.features.embedder import TorchEmbedder
from finesight.io.parallel import available_cores
from finesight.nn.backbone_config import BackboneConfig
from finesight.paper.machine import record_measurement
from finesight.search.build import open_or_create, update_index
from finesight.search.commit_batch import GROUP
from finesight.search.read_view import read_view

PHOTOS = {"0.1 megapixels": (500, 375), "12 megapixels": (4000, 3000)}
RESOLUTION = 224


def draw(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    """Save smooth pictures with some noise: a JPEG of 12 megapixels has about 4 MB, as those of a camera."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(folder.iterdir())[:count]
    for i in range(len(files), count):
        smooth = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
            size, Image.Resampling.BICUBIC
        )
        noise = random.normal(0, 6, (size[1], size[0], 1))
        pixels = np.clip(np.asarray(smooth) + noise, 0, 255).astype(np.uint8)
        files.append(folder / f"{i:04d}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=90)
    os.sync()  # only what is written can be dropped from the cache
    return files


def forget(files: list[Path]) -> None:
    for file in files:
        with file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - clock, time.process_time() - processor


def bound(network: float, reading: float, threads: int, cores: int) -> float:
    """Return the share of the network's speed that is left at best; seconds of the clock and of one core."""
    free = cores - threads
    return round(network / max(network, reading / free) if free else network / (network + reading / cores), 3)


def measure(backbone: str, photos: str, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        run, files = Path(place, "encoder"), sorted(folder.iterdir())
        count = len(files)
        frozen(BackboneConfig(name=backbone, weights="random"), RESOLUTION).save(run)
        embedder = TorchEmbedder.load(run)
        embedder.encoder.prepare_for(count)  # as `finesight index` does: the network alone has the same engine
        views = []
        _, reading = timed(lambda: views.extend(read_view(file, RESOLUTION)[0] for file in files))  # type: ignore[index]

        def network_alone() -> None:
            for start in range(0, count, GROUP):
                embedder.encode(views[start : start + GROUP])

        network_alone()
        alone, both = [], []
        for turn in range(rounds):
            alone.append(timed(network_alone))
            forget(files)
            index = open_or_create(Path(place, f"index-{turn}"), embedder, run, folder)
            both.append(timed(lambda index=index: update_index(index, embedder, folder)))  # type: ignore[misc]
        clock, processor = (ratio([one[i] for one in alone], [one[i] for one in both]) for i in (0, 1))
    return {
        "backbone": backbone,
        "photos": photos,
        "images": count,
        "threads": threads,
        "reading_ms": round(1000 * reading / count, 2),
        "of_network_alone": clock,
        "bound": bound(statistics.median(one[0] for one in alone), reading, threads, available_cores()),
        "of_network_alone_by_processor": processor,
        "seconds": {"network": [round(one[0], 2) for one in alone], "index": [round(one[0], 2) for one in both]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few images, one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--photos", type=Path, help="a folder where the photos are drawn once, and kept")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    backbone, count, rounds = ("resnet18", 4, 1) if options.quick else ("resnet50", options.images, options.rounds)
    cores, rows = available_cores(), []
    with tempfile.TemporaryDirectory() as scratch:
        for photos, size in PHOTOS.items():
            folder = (options.photos or Path(scratch)) / f"{photos} {count}"
            draw(folder, size, count)
            for threads in sorted({max(1, cores - 1), cores}):
                rows.append(measure(backbone, photos, folder, threads, rounds))
                print(f"{photos}, {threads} threads: {rows[-1]}", flush=True)
    print(record_measurement({"cores": cores, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
