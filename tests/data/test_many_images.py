"""Many images: seconds, and a bounded memory. Measured in a process of its own, whose peak is nobody else's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES, FOLDERS = 20_000, 20
LINES = 250_000

# Seconds of a bare walk (or of a csv reader over the lines) and of open_source, the growth of the peak in MB.
MEASURE = """
import csv, json, os, resource, sys, time
from finesight.data.layouts.layout import recognize_layout
from finesight.data.sources import open_source
from pathlib import Path

def bare(place):
    if os.path.isfile(place):
        with open(place) as stream:
            return sum(len(row) for row in csv.reader(stream))
    found, folders = [], [place]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                (folders if entry.is_dir() else found).append(entry.path)
    return len(sorted(found))

def peak():  # not getrusage's where it can be helped: on Linux that begins with the parent's
    if os.path.exists("/proc/self/status"):
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

recognize_layout(Path(sys.argv[1]).parent)  # imports what opening imports
before, began = peak(), time.process_time()
source = open_source(sys.argv[1])
seconds, grown = time.process_time() - began, peak() - before
facts = [source.kind, len(source), len(source.classes), str(source.paths[0]), str(source.paths[-1])]
facts += [None if source.labels is None else [int(source.labels[0]), int(source.labels[-1])]]
del source
began = time.process_time()
bare(sys.argv[1])
print(json.dumps({"bare": time.process_time() - began, "seconds": seconds, "mb": grown, "facts": facts}))
"""


def measured(place: Path) -> dict:
    words = [sys.executable, "-c", MEASURE, str(place)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=300)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many") / "data"
    for folder in range(FOLDERS):
        (root / f"class-{folder:04d}").mkdir(parents=True)
        place = os.open(root / f"class-{folder:04d}", os.O_RDONLY)
        for number in range(FILES // FOLDERS):
            os.close(os.open(f"image-{number:06d}.jpg", os.O_CREAT | os.O_WRONLY, dir_fd=place))
        os.close(place)
    return root


@pytest.mark.slow
def test_a_large_tree_takes_about_as_long_as_a_walk(tree: Path) -> None:
    found = measured(tree)
    last = f"class-{FOLDERS - 1:04d}/image-{FILES // FOLDERS - 1:06d}.jpg"
    assert found["facts"] == ["class folders", FILES, FOLDERS, "class-0000/image-000000.jpg", last, [0, FOLDERS - 1]]
    assert found["seconds"] < 4.5 * found["bare"]  # about 2
    assert found["mb"] < 25  # about 10, of which 5 are the paths


@pytest.mark.slow
@pytest.mark.parametrize(("table", "megabytes"), [(False, 85), (True, 100)])  # about 49 and 58
def test_a_long_list(tmp_path: Path, table: bool, megabytes: int) -> None:
    file = tmp_path / "list"
    with open(file, "w") as stream:
        if table:
            stream.write("path,label,split\n")
        for i in range(LINES):
            path = f"class-{i // 1000:04d}/image-{i % 1000:06d}.jpg"
            stream.write(f"{path},class-{i // 1000:04d},{'train' if i % 2 else 'test'}\n" if table else f"{path}\n")
    found = measured(file)
    ends = ["class-0000/image-000000.jpg", f"class-{LINES // 1000 - 1:04d}/image-000999.jpg"]
    classes, labels = (LINES // 1000, [0, LINES // 1000 - 1]) if table else (0, None)
    assert found["facts"] == ["list", LINES, classes, *ends, labels]
    assert found["seconds"] < 12 * found["bare"]
    assert found["mb"] < megabytes  # of which 26 are the paths
