"""How fast two random views of an image are made: FineSight beside torchvision and lightly.

    python benchmarks/views.py --quick
    python benchmarks/views.py -o results/speed/views.json
    python benchmarks/views.py --show results/speed/views.json    # the table of docs/performance.md

All begin with decoded images of the same size in memory and end with two batches of normalized views of MoCo v2's
distribution. With one core, all run in this process and seconds are those of the processor: it may be busy. With two or
more, the others use as many worker processes of a DataLoader; FineSight uses as many threads (as ``finesight train``
does), one thread, or as many worker processes. Seconds are then those of the clock: nothing else should run. What
counts is the median over the rounds of the ratio to lightly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightly.transforms import MoCoV2Transform
from PIL import Image
from timing import ratio, take_turns
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import v2

from finesight.data.cache import DecodedCache, open_cache
from finesight.data.geometry import cache_side
from finesight.data.sources import open_source
from finesight.data.views import ViewConfig, apply_views, sample_params
from finesight.io.memory import keep_freed_memory
from finesight.io.parallel import available_cores
from finesight.paper.machine import record_measurement

BATCH = 64
SHAPES = ((500, 375), (500, 333), (375, 500))  # width, height: the usual ones of CUB
Views = Callable[[Any], Any]


class Pictures(Dataset[Any]):
    """Decoded images, each with what a transform makes of it."""

    def __init__(self, images: list[Any], transform: Views) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.images[i])


def decode(folder: Path, resolution: int, count: int) -> DecodedCache:
    """Return a cache of seeded pictures; what they show does not matter for the time."""
    random = np.random.default_rng(0)
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    for i in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), np.uint8))
        coarse.resize(SHAPES[i % len(SHAPES)], Image.Resampling.BICUBIC).save(pictures / f"{i:04d}.jpg")
    return open_cache(open_source(pictures), cache_side(resolution), cache_dir=folder / "cache", progress=False)


class Batches(Dataset[Any]):
    """Both views of the images of a batch, by FineSight."""

    def __init__(self, cache: DecodedCache, config: ViewConfig) -> None:
        self.cache, self.config = cache, config

    def __len__(self) -> int:
        return -(-len(self.cache) // BATCH)

    def __getitem__(self, number: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(number)
        rows = range(number * BATCH, min((number + 1) * BATCH, len(self.cache)))
        canvas, sizes = self.cache.batch(rows)
        return [apply_views(kind, canvas, sample_params(kind, sizes, generator)) for kind in self.config.kinds()]


def finesight_views(batches: Batches, threads: int) -> Callable[[], None]:
    def run() -> None:
        torch.set_num_threads(threads)
        for number in range(len(batches)):
            batches[number]

    return run


def peers(config: ViewConfig) -> dict[str, Views]:
    """Return transforms of one image into two views, all with the settings of ``config``."""
    size, sigmas = config.resolution, tuple(s * config.resolution / config.blur_resolution for s in config.blur_sigma)
    jitter = (config.brightness, config.contrast, config.saturation, config.hue)

    def pipeline(package: Any, *last: Any, **options: Any) -> Any:
        return package.Compose(
            [
                package.RandomResizedCrop(size, config.scale, config.ratio, **options),
                package.RandomApply([package.ColorJitter(*jitter)], config.jitter),
                package.RandomGrayscale(config.gray),
                package.RandomApply([package.GaussianBlur(config.blur_kernel, sigmas)], config.blur),
                package.RandomHorizontalFlip(config.flip),
                *last,
                package.Normalize(config.mean, config.std),
            ]
        )

    pil = pipeline(transforms, transforms.ToTensor())
    tensors = pipeline(v2, v2.ToDtype(torch.float32, scale=True), antialias=False)
    return {
        "lightly": MoCoV2Transform(input_size=size, sigmas=sigmas),
        "torchvision, PIL": lambda image: [pil(image), pil(image)],
        "torchvision v2, tensors": lambda image: [tensors(image), tensors(image)],
    }


def peer_views(images: list[Any], transform: Views, workers: int) -> Callable[[], None]:
    """Return a way to make all views: in this process, or in so many others that stay."""
    return all_of(DataLoader(Pictures(images, transform), BATCH, num_workers=workers, persistent_workers=workers > 0))


def all_of(loader: DataLoader[Any]) -> Callable[[], None]:
    def run() -> None:
        torch.set_num_threads(1)
        for _ in loader:
            pass

    return run


def measure(resolution: int, cores: int, rounds: int, count: int) -> dict[str, Any]:
    config = ViewConfig(resolution=resolution)
    with tempfile.TemporaryDirectory() as folder:
        cache = decode(Path(folder), resolution, count)
        images = [np.array(cache.image(i)) for i in range(count)]
        pictures: list[Any] = [Image.fromarray(image) for image in images]
        tensors: list[Tensor] = [torch.from_numpy(image).permute(2, 0, 1).contiguous() for image in images]
        workers = 0 if cores == 1 else cores
        batches = Batches(cache, config)
        ways = {"finesight": finesight_views(batches, cores)}
        for name, transform in peers(config).items():
            ways[name] = peer_views(tensors if "tensors" in name else pictures, transform, workers)
        if cores > 1:
            ways["finesight, one thread"] = finesight_views(batches, 1)
            loader = DataLoader(batches, None, num_workers=cores, persistent_workers=True)
            ways["finesight, processes"] = all_of(loader)
        torch.set_num_threads(cores)  # with one, the clock is the processor's
        seconds = take_turns(ways, rounds)
    return {
        "resolution": resolution,
        "cores": cores,
        "seconds": "of the processor" if cores == 1 else "of the clock",
        "images_per_second": {way: round(count / statistics.median(taken), 1) for way, taken in seconds.items()},
        "of_lightly": {way: ratio(seconds["lightly"], taken) for way, taken in seconds.items()},
    }


def libraries() -> str:
    return "".join(f", {name} {version(name)}" for name in ("lightly", "torchvision", "pillow"))


def table(rows: list[dict[str, Any]]) -> str:
    """Return images a second, and in brackets how many times as many as lightly makes."""
    ways = list(max((row["images_per_second"] for row in rows), key=len))
    lines = [f"| view, cores | {' | '.join(ways)} |", "|:---|" + "---:|" * len(ways)]
    for row in rows:
        found = row["images_per_second"]
        cells = [f"{found[way]:.0f} ({row['of_lightly'][way]:.2f})" if way in found else "" for way in ways]
        lines.append(f"| {row['resolution']} px, {row['cores']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of few images")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--cores", type=int, nargs="+", default=sorted({1, available_cores()}))
    parser.add_argument("--resolutions", type=int, nargs="+", default=[112, 224])
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--show", type=Path, help="print what is in a file, and measure nothing")
    options = parser.parse_args()
    if options.show:
        print(table(json.loads(options.show.read_text())["rows"]))
        return
    rounds, images = (1, BATCH // 2) if options.quick else (options.rounds, options.images)
    keep_freed_memory()  # as in every training
    rows = []
    for cores in options.cores:
        for resolution in options.resolutions:
            rows.append(measure(resolution, cores, rounds, images))
            print(f"{resolution} px, {cores} cores: {rows[-1]['images_per_second']}", flush=True)
    record_measurement({"rounds": rounds, "images": images, "rows": rows}, options.out, libraries())
    print(table(rows))


if __name__ == "__main__":
    main()
