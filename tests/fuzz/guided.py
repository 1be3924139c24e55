"""Fuzzing guided by coverage (atheris): bytes that reach new lines of FineSight are kept and changed further.

    python tests/fuzz/guided.py --seconds 120 -o results/chaos/guided.json          # every target, one after the other
    python tests/fuzz/guided.py decode lists --seconds 600

Each input must be read, or refused with a ``FineSightError`` or ``SkipImage``: another error, more than 30 seconds or
more than 3 GB end the target, and the input is kept in ``--findings``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
try:
    import atheris
except ImportError:
    raise SystemExit('atheris is missing: pip install "finesight[fuzz]" (Linux and macOS)') from None

SECONDS, MEGABYTES = 30, 3000  # that one input may take
Read = Callable[[bytes], object]


def decode(scratch: Path) -> tuple[Read, list[bytes]]:
    """The front of the decoder: what is opened, refused, or decoded in a process of its own."""
    import io

    from test_fuzz_images import FILES

    from finesight.data.decode import read_image_and_size

    return lambda data: read_image_and_size(io.BytesIO(data), 16), FILES


def lists(scratch: Path) -> tuple[Read, list[bytes]]:
    """Lists of images with labels and splits."""
    from finesight.data.lists import read_list

    def read(data: bytes) -> None:
        (scratch / "list.csv").write_bytes(data)
        read_list(scratch / "list.csv")

    return read, [
        b"path,label,split\na.jpg,1,train\nb.jpg,2,test\n",
        b"a.jpg 0\nb/c.jpg 1\n",
        b"a.jpg\n",
        b"a;b\n'=c;-1",
    ]


def config(scratch: Path) -> tuple[Read, list[bytes]]:
    """Settings of a training in YAML."""
    from finesight.training.config import build_config
    from finesight.training.config_file import read_yaml, write_yaml

    write_yaml(build_config({"data": "x", "method": "lcr"}, warn=False), scratch / "whole.yaml")

    def read(data: bytes) -> None:
        (scratch / "config.yaml").write_bytes(data)
        build_config(read_yaml(scratch / "config.yaml"), warn=False)

    return read, [(scratch / "whole.yaml").read_bytes(), b"data: x\nmethod: byol\nrationale: {projections: 4}\n"]


def encoder(scratch: Path) -> tuple[Read, list[bytes]]:
    """``encoder.json``: no checksum, so that whatever is a setting is used."""
    from finesight.features.encoder import Encoder
    from finesight.features.encoder_folder import fingerprint
    from indexes import small_encoder

    folder = small_encoder(scratch / "run") / "encoder"
    whole = json.loads((folder / "encoder.json").read_text())
    del whole["weights_checksum"]

    def read(data: bytes) -> None:
        (folder / "encoder.json").write_bytes(data)
        fingerprint(folder)
        Encoder.load(folder)

    return read, [json.dumps(whole).encode()]


def index(scratch: Path) -> tuple[Read, list[bytes]]:
    """The files of an index: the first byte says which one is replaced."""
    from finesight.search.faiss_index import FaissIndex
    from indexes import SPACES, filled_index, units

    filled_index(scratch / "whole", units(4)).close()
    names = ["index.json", "items.db", f"vectors-0/{SPACES[0]}.f32"]

    def read(data: bytes) -> None:
        folder = scratch / "index"
        shutil.copytree(scratch / "whole", folder, dirs_exist_ok=True)
        (folder / names[data[0] % 3 if data else 0]).write_bytes(data[1:])
        opened = FaissIndex.open(folder)
        try:
            opened.search(units(1), 2, SPACES[0])
            opened.items(opened.list_items().ids.tolist())
            opened.find_damaged(everything=True)
        finally:
            opened.close()

    return read, [bytes([number]) + (scratch / "whole" / name).read_bytes() for number, name in enumerate(names)]


def annotations(scratch: Path) -> tuple[Read, list[bytes]]:
    """Annotations of datasets: the first byte says which file of which dataset is replaced."""
    from finesight.data.sources import open_source
    from layouts import EXAMPLES

    found = []
    for number, build in enumerate(one for some in EXAMPLES.values() for one in some):
        root = build(scratch / str(number)).root
        files = sorted(path for path in root.rglob("*") if path.suffix in (".txt", ".json", ".csv", ".mat", ""))
        found += [(root, file, file.read_bytes()) for file in files if file.is_file() and file.stat().st_size < 50_000]

    def read(data: bytes) -> None:
        root, file, whole = found[data[0] % len(found) if data else 0]
        file.write_bytes(data[1:])
        try:
            open_source(root)
        finally:
            file.write_bytes(whole)

    return read, [bytes([number]) + whole for number, (_, _, whole) in enumerate(found[:256])]


def onnx(scratch: Path) -> tuple[Read, list[bytes]]:
    """What an ONNX file says about itself, and all of its bytes where the first one is odd."""
    from finesight.features.embedder import OnnxEmbedder
    from tiny_onnx import FACTS, tiny_onnx

    def read(data: bytes) -> None:
        content = data[1:] if data[:1] and data[0] % 2 else tiny_onnx(data[1:].decode("utf-8", "replace"))
        (scratch / "model.onnx").write_bytes(content)
        OnnxEmbedder(scratch / "model.onnx")

    return read, [b"\0" + json.dumps(FACTS).encode(), b"\1" + tiny_onnx(json.dumps(FACTS))]


TARGETS = {one.__name__: one for one in (decode, lists, config, encoder, index, annotations, onnx)}


def fuzz(name: str, seconds: int, findings: Path) -> None:
    """Fuzz one target in this process; the process ends with it."""
    with atheris.instrument_imports(include=["finesight", "PIL", "yaml"]):
        from finesight.errors import FineSightError, SkipImage

        scratch = Path(tempfile.mkdtemp(prefix="finesight-fuzz-"))
        read, seeds = TARGETS[name](scratch)
    warnings.simplefilter("ignore")
    corpus = scratch / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
        read(seed) if number == 0 else None  # the first one is whole

    def one(data: bytes) -> None:
        with suppress(FineSightError, SkipImage):
            read(data)

    options = [f"-max_total_time={seconds}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}", "-max_len=20000"]
    options += ["-print_final_stats=1", f"-artifact_prefix={findings}/{name}-", "-use_value_profile=1", str(corpus)]
    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


def run(name: str, seconds: int, findings: Path) -> dict[str, object]:
    """Fuzz one target in a process of its own, and return what came of it."""
    command = [sys.executable, __file__, name, "--inside", "--seconds", str(seconds), "--findings", str(findings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    (findings / f"{name}.log").write_text(done.stdout)
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)|Done (\d+) runs", done.stdout)
    covered = re.findall(r"cov: (\d+)", done.stdout)
    return {
        "target": name,
        "executions": int(executed.group(1) or executed.group(2)) if executed else 0,
        "edges_at_first": int(covered[0]) if covered else 0,
        "edges": int(covered[-1]) if covered else 0,
        "raw": [line for line in done.stdout.splitlines() if line.startswith(("Done ", "stat::"))],
        "failed": done.returncode != 0,
        "end": [] if done.returncode == 0 else done.stdout.splitlines()[-25:],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=120, help="for each target")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if wrong := set(given.targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(wrong)}")
    given.findings.mkdir(parents=True, exist_ok=True)
    if given.inside:
        fuzz(given.targets[0], given.seconds, given.findings)
        return 0
    found = []
    for name in given.targets or TARGETS:
        found.append(run(name, given.seconds, given.findings))
        print(json.dumps(found[-1]), flush=True)
        if given.out:
            given.out.write_text(json.dumps({"seconds": given.seconds, "targets": found}, indent=1) + "\n")
    return 1 if any(one["failed"] for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
