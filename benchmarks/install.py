"""What the first installation takes: time, download and disk, of the wheels of this tree in a new environment.

    python benchmarks/install.py finesight-onnx --python python3.12 --out results/install/finesight-onnx-3.12.json

pip keeps and uses no cache, so everything is downloaded. Then the installed command is used: its version, a doctor, and
for finesight the first run, index and search of nine drawn images, and `finesight up` until its page answers, by a
ResNet-50 with random weights, as no network is used. finesight-onnx indexes and searches with an exported encoder,
given as ``--model`` and ``--images``. Processor seconds, of all cores together, say what a busy machine hides.
``--here`` installs nothing: it sums up what the distribution needs of the environment that runs this, with all that
those packages need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = {"finesight": ROOT, "finesight-onnx": ROOT / "packaging" / "finesight-onnx"}
LARGEST = 12  # packages that are listed
FIRST_USE = (
    "lookalikes birds --species 3 --train-per-species 2 --test-per-species 1",
    "train --data birds --out run --method frozen --weights random --quiet",
    "index run birds --quiet",
    "search run birds/test/species-000/0000.png -k 1",
)
UP = "up birds --weights random --port 0 --no-open"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("distribution", choices=sorted(PROJECTS))
    parser.add_argument("--here", action="store_true", help="Only the size, in this environment.")
    parser.add_argument("--python", default=sys.executable, help="Python of the new environment.")
    parser.add_argument("--model", type=Path, help="An exported encoder to index and search with.")
    parser.add_argument("--images", type=Path, help="A folder of images for it.")
    parser.add_argument("--out", type=Path, help="Also write the numbers here.")
    args = parser.parse_args()
    if args.here:
        numbers = size_here(args.distribution)
    else:
        with tempfile.TemporaryDirectory() as place:
            numbers = measure(args.distribution, args.python, Path(place), args.model, args.images)
    text = json.dumps(numbers, indent=1)
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


def measure(name: str, python: str, place: Path, model: Path | None, images: Path | None) -> dict[str, object]:
    """Install and use a distribution below ``place``; return what that took."""
    own = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env = {**own, "FINESIGHT_CACHE": str(place / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    bin_ = place / "venv" / "bin"

    def run(*words: str | Path) -> tuple[float, str]:
        began = time.monotonic()
        done = subprocess.run([str(word) for word in words], cwd=place, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{words}: {done.stderr}")
        return round(time.monotonic() - began, 1), done.stdout

    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, PROJECTS[name])
    wheel = next(place.glob("*.whl"))
    run(python, "-m", "venv", place / "venv")
    before = disk(place / "venv")
    seconds, _ = run(bin_ / "pip", "install", "--no-cache-dir", "-q", wheel)
    packages = place.glob("venv/lib/*/site-packages/*")
    sizes = sorted(((disk(one), one.name) for one in packages), reverse=True)[:LARGEST]
    uses, processor = dict[str, float](), dict[str, float]()

    def use(words: str, key: str = "") -> str:
        began = of_children()
        uses[key or f"finesight {words}"], said = run(bin_ / "finesight", *words.split())
        processor[key or f"finesight {words}"] = round(of_children() - began, 1)
        return said

    use("--version")
    use("--version", "again")
    use("doctor")
    if name == "finesight":
        for words in FIRST_USE:
            found = use(words)
        assert Path(words.split()[2]).name in found  # the query itself is the best hit
        key = f"finesight {UP} (until the page answers)"
        uses[key], processor[key] = until_the_page([str(bin_ / "finesight"), *UP.split()], place, env)
    elif model is not None and images is not None:
        query = next(file for file in sorted(images.rglob("*")) if file.suffix in (".png", ".jpg"))
        for new, there in (("model.onnx", model), ("images", images), (query.name, query)):
            (place / new).symlink_to(there.resolve())
        use("index model.onnx images --index index --quiet", "finesight index")
        assert query.name in use(f"search index {query.name} -k 1", "finesight search")
    return {
        "distribution": name,
        "python": run(bin_ / "python", "--version")[1].split()[1],
        "install_seconds": seconds,
        "disk_mb": round((disk(place / "venv") - before) / 1e6),
        "packages": len(json.loads(run(bin_ / "pip", "list", "--format", "json")[1])),
        "largest_mb": {name: round(size / 1e6) for size, name in sizes},
        "first_use_seconds": uses,
        "of_them_processor_seconds": processor,
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, no GPU used",
        "load": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
    }


def of_children() -> float:
    """Return the processor seconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def until_the_page(command: list[str], place: Path, env: dict[str, str]) -> tuple[float, float]:
    """Return the seconds until a server's page answers, and its processor seconds until then (of Linux)."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=place, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    with urllib.request.urlopen(line.removeprefix("FineSight is at ").strip(), timeout=60) as page:
        assert b"<title>" in page.read()
    seconds = time.monotonic() - began
    times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    process.send_signal(signal.SIGINT)
    process.communicate()
    return round(seconds, 1), round(sum(map(int, times)) / os.sysconf("SC_CLK_TCK"), 1)


def size_here(name: str) -> dict[str, object]:
    """Return the size of a distribution's requirements in this environment, and of theirs."""
    project = tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text())["project"]
    waiting, sizes = [Requirement(text) for text in project["dependencies"]], dict[str, int]()
    while waiting:
        one = waiting.pop()
        try:
            found = metadata.distribution(one.name)
        except metadata.PackageNotFoundError:
            continue  # for another system
        key = canonicalize_name(one.name)
        if key not in sizes:
            files = (Path(str(file.locate())) for file in found.files or ())
            sizes[key] = sum(file.stat().st_size for file in files if file.is_file())
            asked = [Requirement(text) for text in found.requires or ()]
            waiting += [other for other in asked if other.marker is None or other.marker.evaluate({"extra": ""})]
            for extra in one.extras:
                waiting += [
                    other for other in asked if other.marker is not None and other.marker.evaluate({"extra": extra})
                ]
    largest = sorted(((size, key) for key, size in sizes.items()), reverse=True)[:LARGEST]
    return {
        "distribution": name,
        "python": platform.python_version(),
        "disk_mb": round(sum(sizes.values()) / 1e6),
        "packages": len(sizes),
        "cuda_and_torch_mb": round(
            sum(size for key, size in sizes.items() if key.startswith(("nvidia", "cuda", "torch", "triton"))) / 1e6
        ),
        "largest_mb": {key: round(size / 1e6) for size, key in largest},
        "date": time.strftime("%Y-%m-%d"),
    }


def disk(place: Path) -> int:
    """Return the bytes of a file or of all files below a folder."""
    files = [place] if place.is_file() else [file for file in place.rglob("*") if not file.is_symlink()]
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    main()
