"""Compare what the commands give with what they gave before the modules were reorganized.

    .venv/bin/python tests/golden/golden.py               # to the last bit, as on the machine that recorded them
    .venv/bin/python tests/golden/golden.py --rtol 1e-3   # on another processor

``expected/`` holds the outputs of that version for the commands below: metrics of ten methods with the same seed,
features, scores by both protocols, a comparison, a search, the tables of the bench (as they were last changed), an
ablation and the API schema.
The commands use old names of options, which must keep working. It takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NETWORK = (
    "--backbone test_resnet --weights random --resolution 48 --output-stride 8 --epochs 3 --batch 12 --log-every 1 "
    "--quiet --accelerator cpu"
)
METHODS = {
    "lcr": "--set rationale.study=[2,4] --set validation.fraction=0.3 --set validation.every=1",
    "dino": "--set views.local_crops=2 --set objective.prototypes=64 --set optim.decay_biases=true",
    **dict.fromkeys(("byol", "cvsa", "lewel", "dilo", "lcr+contrastive-crop", "sam-ssl-bilinear", "vicreg"), ""),
    "supervised": "",
}
ABLATION = (
    "--set epochs=1 --set batch=12 --set backbone.name=test_resnet --set backbone.weights=random "
    "--set views.resolution=48 --set backbone.output_stride=8"
)
SCHEMA = """
import json, sys
from finesight.search.engines import open_index
from finesight.search.open_embedder import open_embedder
from finesight.server.app import create_app
from finesight.server.service import SearchService

index = open_index(sys.argv[1])
print(json.dumps(create_app(SearchService(index, open_embedder("torch", index))).openapi()))
"""
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+e-?\d+")
VARYING = re.compile(r'"(embed_ms|search_ms|seconds|date|root)": *("[^"]*"|[^,}\s]+)')


def run(folder: Path, command: str, out: str | None = None, code: str | None = None) -> None:
    """Run a command in ``folder``, or in the project if it only shows results; ``out`` is a file for what it prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FINESIGHT_CACHE": str(folder / "cache"), "COLUMNS": "200"}
    program = [sys.executable, "-W", "ignore", *(["-c", code] if code else ["-m", "finesight"]), *command.split()]
    where = ROOT if "--show" in command else folder
    done = subprocess.run(program, cwd=where, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr}")
    if out is not None:
        (folder / "out" / out).write_text(done.stdout)


def record(folder: Path) -> None:
    """Write the outputs of this version into ``folder/out``."""
    out = folder / "out"
    out.mkdir()
    run(folder, "lookalikes data --species 6 --train-per-species 8 --test-per-species 5 --size 64")
    for method, more in METHODS.items():
        run(folder, f"train --data data --method {method} --out run-{method} {NETWORK} {more}")
        (out / f"metrics-{method}.csv").write_bytes((folder / f"run-{method}" / "metrics.csv").read_bytes())
        print(f"trained {method}", flush=True)
    run(folder, "embed run-lcr data -o out/features-lcr.csv --exact --quiet")
    for method in ("lcr", "sam-ssl-bilinear"):
        run(folder, f"evaluate run-{method} --data data --exact --json --quiet", f"evaluate-{method}.json")
    run(folder, "evaluate run-lcr --data data --exact --quiet", "evaluate-lcr.txt")
    released = "--protocol released --probe-epochs 5"
    run(folder, f"evaluate run-lcr --data data {released} --exact --json --quiet", "released.json")
    run(folder, "compare run-lcr run-byol --data data --exact --json --quiet", "compare.json")
    run(folder, "index run-lcr data --exact --quiet")
    run(folder, "search run-lcr data/test/species-000/0000.png -k 7 --exact --json", "search.json")
    run(folder, "methods", "methods.txt")
    run(folder, "methods --json", "methods.json")
    for profile in ("cpu-50", "cpu-200"):
        run(folder, f"bench birds --profile {profile} --show", f"bench-birds-{profile}.txt")
    for table in ("table1", "table2", "table3"):
        run(folder, f"bench {table} --show", f"bench-{table}.txt")
    run(folder, f"bench k-sweep --data data --out ksweep {ABLATION}")
    (out / "ksweep.csv").write_bytes((folder / "ksweep" / "results.csv").read_bytes())
    run(folder, "run-lcr", "schema.json", code=SCHEMA)


def differences(expected: str, found: str, rtol: float) -> list[str]:
    """Return the lines that differ; numbers may differ by ``rtol``, times and folders by anything."""
    pairs = list(zip(expected.splitlines(), found.splitlines(), strict=False))
    if len(expected.splitlines()) != len(found.splitlines()):
        return [f"{len(expected.splitlines())} lines before, {len(found.splitlines())} now"]
    return [f"{before}\n    now: {now}" for before, now in pairs if not _same(before, now, rtol)]


def _same(before: str, now: str, rtol: float) -> bool:
    before, now = VARYING.sub(r"\1", before), VARYING.sub(r"\1", now)
    if before == now:
        return True
    if not rtol or NUMBER.sub("#", before) != NUMBER.sub("#", now):
        return False
    numbers = zip(NUMBER.findall(before), NUMBER.findall(now), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=rtol, abs_tol=rtol) for a, b in numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtol", type=float, default=0.0, help="relative and absolute difference of numbers allowed")
    rtol = parser.parse_args().rtol
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder))
        for file in sorted((HERE / "expected").iterdir()):
            found = Path(folder) / "out" / file.name
            texts = [path.read_text() for path in (file, found)]
            if file.suffix == ".json":
                texts = [json.dumps(json.loads(text), indent=1, sort_keys=True) for text in texts]
            changed = differences(*texts, rtol)
            failures += bool(changed)
            print(f"{'DIFFERS' if changed else 'same   '} {file.name}", *changed[:3], sep="\n    " if changed else " ")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
