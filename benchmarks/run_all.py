"""Run every speed benchmark, one after another, and leave the results in results/speed.

make bench                                                       # what needs no data
make bench BENCH="--before ../before --rounds 3"                 # beside an older commit, fewer rounds
make bench BENCH="--cub CUB_200_2011 --weights RESNET50"         # and whole jobs
make bench BENCH=--quick                                         # two minutes: do they run
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
STORED = Path("results/speed")
SCRIPTS: dict[str, list[str]] = {
    "embedding": [],
    "decoding": [],
    "views": [],
    "step": [],
    "probe": [],
    "growth": [],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few images and rounds; nothing is stored")
    parser.add_argument("--only", help="names of benchmarks, with commas")
    parser.add_argument("--cub", type=Path, help="the folder CUB_200_2011, for whole jobs")
    parser.add_argument("--weights", type=Path, help="an ImageNet ResNet-50 with caffe strides, for whole jobs")
    parser.add_argument("--before", type=Path, help="a checkout of an older commit, for embedding and step")
    parser.add_argument("--rounds", type=int, help="in place of each benchmark's own number (growth has none)")
    parser.add_argument("--to", type=Path, default=STORED, help="the folder of the results")
    options = parser.parse_args()
    scripts = {name: list(words) for name, words in SCRIPTS.items()}
    scripts["growth"] += ["--plot", "docs/img/growth.png" if options.to == STORED else str(options.to / "growth.png")]
    if options.cub and options.weights:
        scripts["jobs"] = ["--cub", str(options.cub), "--weights", str(options.weights)]
    for name in ("embedding", "step") if options.before else ():
        scripts[name] += ["--before", str(options.before)]
    for name in scripts if options.rounds else ():
        scripts[name] += ["--rounds", str(options.rounds)] if name != "growth" else []
    names = options.only.split(",") if options.only else list(scripts)
    if unknown := set(names) - set(scripts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(scripts)}")
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        words = ["--quick"] if options.quick else ["-o", str(options.to / f"{name}.json")]
        own = [] if options.quick and name != "jobs" else scripts[name]
        began = time.monotonic()
        done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *own, *words], cwd=HERE.parent)
        print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
        failed += [name] if done.returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
