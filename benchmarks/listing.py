"""How long a million images take to be listed, and how much memory: folders, class folders, splits and lists.

    python benchmarks/listing.py -o results/listing/million.json
    python benchmarks/listing.py --images 20000          # does it run

Empty files with drawn names are made in a temporary folder: listing never opens an image. Every case is opened in a
process of its own, three times, and the least counts, since a busy machine only adds; seconds are those of the
processor, those on the wall stand beside them. So does a bare ``os.scandir`` over the same tree, or the mere reading of
the same lines: what cannot be saved. The tree has been written just before, so that the system has it in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

FOLDERS = 1000
RUNS = 3
CASES = ("folder", "class folders", "splits", "text list", "table")


def make_tree(root: Path, folders: list[str], images: int) -> Iterator[str]:
    """Empty files, evenly in these folders ("" for the root itself); yields their paths."""
    for folder, names in zip(folders, np.array_split(np.arange(images), len(folders)), strict=True):
        (root / folder).mkdir(parents=True, exist_ok=True)
        place = os.open(root / folder, os.O_RDONLY)
        for number in names.tolist():
            name = f"image-{number:07d}.jpg"
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=place))
            yield os.path.join(folder, name)
        os.close(place)


def make_case(case: str, root: Path, images: int) -> Path:
    """What is given to ``open_source``."""
    classes = [f"class-{i:04d}" for i in range(FOLDERS)]
    if case == "text list":
        root.mkdir()
        lines = (f"class-{i % FOLDERS:04d}/image-{i:07d}.jpg\n" for i in range(images))
        return write(root / "list.txt", lines)
    if case == "table":
        root.mkdir()
        rows = (
            f"class-{i % FOLDERS:04d}/image-{i:07d}.jpg,class-{i % FOLDERS:04d},{'test' if i % 5 == 0 else 'train'}\n"
            for i in range(images)
        )
        return write(root / "list.csv", ["path,label,split\n", *rows])
    halves = [f"{split}/{name}" for split in ("train", "test") for name in classes[: FOLDERS // 2]]
    for _ in make_tree(root, {"folder": [""], "class folders": classes, "splits": halves}[case], images):
        pass
    return root


def write(file: Path, lines: Any) -> Path:
    with open(file, "w", encoding="utf-8") as stream:
        stream.writelines(lines)
    return file


def bare(place: Path) -> int:
    """The files of a tree, or the lines of a list, counted and forgotten."""
    if place.is_file():
        with open(place, encoding="utf-8") as stream:
            return sum(1 for _ in stream)
    count, folders = 0, [str(place)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    count += 1
    return count


def peak_mb() -> float:
    """Of this process since it was started: what getrusage calls the peak begins with that of the parent on Linux."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) / 2**10
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measure_here(place: Path) -> dict[str, Any]:
    from finesight.data.layouts.layout import recognize_layout
    from finesight.data.sources import open_source

    recognize_layout(place.parent)  # imports what opening imports
    began = time.process_time()
    bare(place)
    plain = time.process_time() - began
    before, began, on_the_wall = peak_mb(), time.process_time(), time.perf_counter()
    source = open_source(place)
    seconds, waited = time.process_time() - began, time.perf_counter() - on_the_wall
    return {
        "kind": source.kind,
        "images": len(source),
        "classes": len(source.classes),
        "seconds": seconds,
        "wall_seconds": waited,
        "bare_seconds": plain,
        "peak_rss_mb": peak_mb(),
        "peak_rss_increase_mb": peak_mb() - before,
        "paths_mb": source.paths.nbytes / 2**20,
    }


def measure(place: Path) -> dict[str, Any]:
    """The least of some processes; all of their seconds beside it."""
    words = [sys.executable, __file__, "--open", str(place)]
    found = [json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout) for _ in range(RUNS)]
    least = {key: min(run[key] for run in found) for key in found[0]}
    return least | {"all_seconds": [run["seconds"] for run in found]}


def file_system(place: Path) -> str:
    """Its kind, where the system tells."""
    with suppress(OSError, subprocess.CalledProcessError):
        words = ["stat", "--file-system", "--format", "%T", str(place)]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--cases", default=",".join(CASES), help="with commas")
    parser.add_argument("--scratch", type=Path, help="where the files are made [default: the temporary folder]")
    parser.add_argument("--open", type=Path, metavar="PLACE", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if options.open is not None:
        print(json.dumps(measure_here(options.open)))
        return
    rows = {}
    for case in options.cases.split(","):
        with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
            rows[case] = measure(make_case(case, Path(scratch) / "data", options.images))
            print(json.dumps({case: rows[case]}), flush=True)
    from finesight.paper.machine import record_measurement

    result = {
        "command": f"python benchmarks/listing.py --images {options.images} --cases {options.cases!r}",
        "rows": rows,
        "file_system": file_system(options.scratch or Path(tempfile.gettempdir())),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }
    record_measurement(result, options.out)


if __name__ == "__main__":
    main()
