"""Run every speed benchmark, one after another, and leave the results in results/speed.

make bench                                                       # what needs no data
make bench BENCH="--cub CUB_200_2011 --weights RESNET50"          # and whole jobs
make bench BENCH=--quick                                         # a few minutes: do they run
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS: dict[str, list[str]] = {
    "embedding": ["--compile"],
    "decoding": [],
    "views": [],
    "step": [],
    "probe": [],
    "growth": ["--plot", "docs/img/growth.png"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few images and rounds; nothing is stored")
    parser.add_argument("--only", help="names of benchmarks, with commas")
    parser.add_argument("--cub", type=Path, help="the folder CUB_200_2011, for whole jobs")
    parser.add_argument("--weights", type=Path, help="an ImageNet ResNet-50 with caffe strides, for whole jobs")
    options = parser.parse_args()
    scripts = dict(SCRIPTS)
    if options.cub and options.weights:
        scripts["jobs"] = ["--cub", str(options.cub), "--weights", str(options.weights)]
    names = options.only.split(",") if options.only else list(scripts)
    if unknown := set(names) - set(scripts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(scripts)}")
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        words = ["--quick"] if options.quick else ["-o", f"results/speed/{name}.json"]
        own = [] if options.quick and name != "jobs" else scripts[name]
        began = time.monotonic()
        done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *own, *words], cwd=HERE.parent)
        print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
        failed += [name] if done.returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
