"""What the fourteen defects of docs/reliability.md do to one source tree: this one, or that of an earlier commit.

    git worktree add ../before c28bea9
    PYTHONPATH=../before/src:tests python -m chaos.defects -o results/chaos/defects-before.json
    PYTHONPATH=src:tests python -m chaos.defects -o results/chaos/defects-before.json

It runs the tests of each defect against the source that PYTHONPATH names, and keeps how each ended and the first line
of what was wrong. Some probes drive the command line and the server with the files of the attacks, and keep what they
did. Both need nothing but commands, HTTP and names that both sources have; a test that an old source cannot run is
marked. Results are added to the file: ``--only 1 2 9-weights`` makes a piece of them.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx

from bombs import png_bomb
from chaos.attacks import FILES, huge_png, make_folder, measured, private_megabytes
from finesight.paper.machine import commit, machine
from indexes import small_encoder
from processes import TINY, Command, children_of, processor_seconds
from serving import Serving, drawn, form, indexed

ROOT = Path(__file__).parents[2]
BOMB = "scans-1.2MB.jpg"  # minutes of work
PATIENCE = 10.0  # seconds that a command is left alone with it
AFTER = 20.0  # seconds after Ctrl-C

TESTS = {
    1: ("tests/faults/test_attacks.py", "-k", "what_they_cost and not index"),
    2: ("tests/faults/test_attacks.py", "-k", "ctrl_c"),
    3: ("tests/faults/test_attacks.py", "-k", "test_a_large_png"),
    4: ("tests/server/test_server_process.py", "-k", "bodies_that_do_not_come and all"),
    5: ("tests/faults/test_full_disk.py",),
    6: ("tests/faults/test_formulas.py",),
    7: ("tests/search/test_damaged_index.py", "-k", "catalog"),
    8: ("tests/search/test_damaged_index.py", "-k", "not catalog and not writer and not description"),
    9: ("tests/features/test_damaged_encoder.py", "-k", "altered or without_checksum"),
    10: (
        *("tests/features/test_damaged_encoder.py", "tests/training/test_damaged_run.py"),
        *("-k", "impossible or settings or onnx"),
    ),
    11: ("tests/training/test_damaged_run.py", "-k", "checkpoint or none_that_fits"),
    12: ("tests/search/test_damaged_index.py", "-k", "writer"),
    13: ("tests/faults/test_file_names.py",),
    14: ("tests/server/test_server_access.py",),
}
# What a test says that an old source cannot run: it fails there whatever that source does.
NEW_NAMES = re.compile(r"has no attribute 'find_damaged'|No such (option|command)|must end in \.onnx")


# --- tests ------------------------------------------------------------------------------------------------------------


def run_tests(defect: int) -> dict[str, str]:
    """Return how each test of a defect ended: "passed", or the first line of what was wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        words = ["-q", "-p", "no:cacheprovider", "--reruns", "0", f"--junitxml={report}", *TESTS[defect]]
        subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
        return {one.get("name", ""): outcome(one) for one in ElementTree.parse(report).iter("testcase")}


def outcome(test: ElementTree.Element) -> str:
    """Return "passed", "skipped", or what failed."""
    for child in test:
        if child.tag in ("failure", "error"):
            message = shortened(child.get("message", ""))
            cannot_run = NEW_NAMES.search(child.get("message", "") + (child.text or ""))
            return f"cannot run there: {message}" if cannot_run else f"failed: {message}"
        if child.tag == "skipped":
            return "skipped"
    return "passed"


def shortened(text: str) -> str:
    """Return the first words and the last line of what was said, without the folders of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = " … ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
    said = re.sub(r"(/[\w.+-]+)*/(?=[\w.+-]*finesight|pytest-)[\w.+/-]*/", "…/", said)
    return re.sub(r"(/(?!api)[\w.+-]+){2,}/", "…/", said)[:240]


# --- probes -----------------------------------------------------------------------------------------------------------


def worked(process: int) -> float:
    return processor_seconds(process) + sum(map(processor_seconds, children_of(process)))


def has_open(process: int, file: Path) -> bool:
    """Return whether a process or one of its children reads a file."""
    for one in (process, *children_of(process)):
        for link in Path(f"/proc/{one}/fd").glob("*"):
            with suppress(OSError):
                if link.readlink() == file:
                    return True
    return False


def press_ctrl_c(running: Command, file: Path | None = None) -> dict[str, Any]:
    """Send SIGINT, and look whether the process is still there after some time, reading a file. Then it is killed."""
    began = time.monotonic()
    running.send(signal.SIGINT)
    while running.running and time.monotonic() - began < AFTER:
        time.sleep(0.1)
    took, alive = time.monotonic() - began, running.running
    assert running.process.pid is not None
    reads = file is not None and has_open(running.process.pid, file)
    said = Path(running._err).read_text().split("finesight: ")[-1]
    if alive:
        running.send(signal.SIGKILL)
    code = running.wait().code
    return {
        "said_after_ctrl_c": " ".join(said.split())[-60:],
        f"alive_{AFTER:g}_seconds_later": alive,
        **({"reads_the_file_then": reads} if file else {}),
        "ended_after_seconds": None if alive else round(took, 1),
        "code": None if alive else code,
    }


def probe_scans(root: Path, name: str) -> dict[str, Any]:
    """Give a command a folder with the JPEG of many scans; press Ctrl-C if it has worked on it for long."""
    run, images = small_encoder(root / "run"), make_folder(root / "images", {BOMB: FILES[BOMB]})
    commands: dict[str, tuple[str | Path, ...]] = {
        "embed": ("embed", run, images, "-o", root / "features.npz", "--quiet"),
        "index": ("index", run, images, "--index", root / "index", "--quiet"),
        "train": ("train", "--data", images, "--out", root / "out", "--epochs", "1", *TINY),
    }
    running = Command(*commands[name], FINESIGHT_CACHE=str(root / "cache"))
    process = running.process.pid
    assert process is not None
    began = opened = time.monotonic()
    took = 0.0
    while running.running and time.monotonic() - opened < PATIENCE:
        took = max(took, worked(process))
        if not has_open(process, images / BOMB):
            opened = time.monotonic()
        time.sleep(0.1)
    facts = {"seconds": round(time.monotonic() - began, 1), "processor_seconds": round(took, 1)}
    if running.running:
        return {**facts, "ended_by_itself": False, **press_ctrl_c(running, images / BOMB)}
    return {**facts, "ended_by_itself": True, "code": running.wait().code}


def probe_server_scans(root: Path) -> dict[str, Any]:
    """Upload that JPEG; then search by an ordinary picture; then press Ctrl-C."""
    run, images = small_encoder(root / "run"), make_folder(root / "images", {})
    server = Serving("serve", indexed(run, images), "--port", "0", FINESIGHT_CACHE=str(root / "cache"))
    url, content = f"{server.url}api/search", FILES[BOMB]()
    httpx.post(url, files=form(drawn()), timeout=120).raise_for_status()

    def send() -> None:
        with suppress(httpx.HTTPError):
            httpx.post(url, files=form(content), timeout=120)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    time.sleep(2)
    began = time.monotonic()
    try:
        status: int | str = httpx.post(url, files=form(drawn()), timeout=30).status_code
    except httpx.TimeoutException:
        status = "no answer in 30 seconds"
    facts = {"another_upload": status, "seconds": round(time.monotonic() - began, 1)}
    return {**facts, **press_ctrl_c(server)}


def probe_pngs(root: Path) -> dict[str, Any]:
    """Embed a folder with two PNGs of 13,000 × 13,000 pixels; upload two of 7,000 × 7,000."""
    run = small_encoder(root / "run")
    images = make_folder(root / "images", {"a.png": huge_png, "b.png": huge_png})
    running = Command("embed", run, images, "-o", root / "f.npz", "--quiet", FINESIGHT_CACHE=str(root / "cache"))
    with measured(running, "embed") as cost:
        done = running.wait()
    facts: dict[str, Any] = {"embed_megabytes": cost.megabytes, "embed_code": done.code}
    small = make_folder(root / "few", {})
    with Serving("serve", indexed(run, small), "--port", "0", FINESIGHT_CACHE=str(root / "cache")) as server:
        url, process = f"{server.url}api/search", server.process.pid
        assert process is not None
        httpx.post(url, files=form(drawn()), timeout=120).raise_for_status()
        before = private_megabytes(process)
        statuses = [httpx.post(url, files=form(png_bomb(side)), timeout=120).status_code for side in (7000, 7050)]
        time.sleep(5)
        facts |= {"server_statuses": statuses, "server_keeps_megabytes": round(private_megabytes(process) - before)}
    return facts


def probe_weights(root: Path) -> dict[str, Any]:
    """Count how many of 150 encoders with one flipped bit are loaded."""
    import numpy as np

    from finesight.errors import FineSightError
    from finesight.features.encoder import Encoder

    run = small_encoder(root / "run")
    file, random, loaded = run / "encoder" / "encoder.safetensors", np.random.default_rng(0), 0
    whole = file.read_bytes()
    for _ in range(150):
        altered = bytearray(whole)
        altered[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        file.write_bytes(altered)
        with suppress(FineSightError):
            Encoder.load(run)
            loaded += 1
    return {"altered": 150, "loaded": loaded}


DECODE = """
import resource, sys
from finesight.data.decode import read_image_and_size
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
image, _ = read_image_and_size(sys.argv[1], 512)
mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(*image.size, mine // 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def probe_decode(root: Path) -> dict[str, Any]:
    """Decode one PNG of 13,000 × 13,000 pixels in a new process."""
    (root / "a.png").write_bytes(huge_png())
    command = [sys.executable, "-c", DECODE, str(root / "a.png")]
    width, height, mine, child = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {"decoded_as": f"{width} × {height}", "megabytes_more": int(mine), "megabytes_of_a_child": int(child)}


PROBES: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{f"1-2-{name}": partial(probe_scans, name=name) for name in ("embed", "index", "train")},
    "1-2-server": probe_server_scans,
    "3-decode": probe_decode,
    "3-commands": probe_pngs,
    "9-weights": probe_weights,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument(
        "--only", nargs="+", default=["probes", *map(str, TESTS)], help="probes, and numbers of defects"
    )
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    source = commit()
    here = found.setdefault(source[:7] + "+" * source.endswith("+"), {"tests": {}, "probes": {}, "made": {}})

    def keep(table: str, name: str, facts: dict[str, Any]) -> None:
        here[table][name] = facts
        here["made"][name] = f"{machine()}, {time.strftime('%Y-%m-%d')}"
        options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(name, json.dumps(facts, ensure_ascii=False), flush=True)

    for only in options.only:
        if only in PROBES:
            with tempfile.TemporaryDirectory(prefix="finesight-defects-") as scratch:
                keep("probes", only, PROBES[only](Path(scratch)))
        else:
            keep("tests", only, run_tests(int(only)))


if __name__ == "__main__":
    main()
