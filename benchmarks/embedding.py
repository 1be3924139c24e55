"""How fast images become features: one at a time (--exact), as FineSight does it, and the loops a user would write.

    python benchmarks/embedding.py --quick
    git worktree add ../before COMMIT                              # then
    python benchmarks/embedding.py --before ../before -o results/speed/embedding.json

In every round each way embeds the same images, in turns, so that whatever else the machine does falls on all alike.
What counts is the median over the rounds of the ratio to a bare loop: timm's network in batches of 32 without
gradients, by torch (channels last), by onnxruntime and by torch.compile. FineSight is measured twice: for a few images,
which it embeds by torch, and for many, with the engine that its trial chooses; with ``--half`` also in bfloat16, whose
features are not quite the same. ``--openvino`` adds the bare loop by OpenVINO (``pip install openvino``), in full
precision and in the one that it chooses itself. With one thread, seconds are those of
the processor, else of the clock. All ways run in one process, where freed memory is kept, which the loop of a user
would not have. ``--before`` adds an older commit of FineSight, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import timm
import torch
from timing import clock, ratio
from torch import Tensor

from finesight.api import frozen
from finesight.features.encoder import Encoder
from finesight.features.onnx_maps import MANY, find_faster
from finesight.io.parallel import available_cores
from finesight.nn.backbone_config import BackboneConfig
from finesight.paper.machine import record_measurement

ROWS = (("resnet50", 224), ("resnet50", 128), ("resnet18", 112), ("mobilenetv3_small_100", 224))
QUICK = ROWS[2:]  # the small networks
BATCH = 32
Way = Callable[[Tensor], Tensor]

OLDER = """
import sys, numpy, torch
from finesight.api import frozen
from finesight.nn.backbone_config import BackboneConfig
name, resolution, threads, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(threads)
torch.manual_seed(0)
encoder = frozen(BackboneConfig(name=name, weights="random"), resolution)
views = torch.from_numpy(numpy.load(file))
for line in sys.stdin:
    numpy.save(file, encoder.embed(views[: int(line)]).numpy())
    print("done", flush=True)
"""  # no more than commit 7ebbcfa knows


def ways(name: str, resolution: int, options: argparse.Namespace) -> tuple[dict[str, Way], str]:
    """Return the ways to embed a batch of normalized views, all by the same network, average pooled; and the engine."""
    torch.manual_seed(0)
    few = frozen(BackboneConfig(name=name, weights="random"), resolution)
    exact, many = Encoder(few.config, few.backbone, exact=True), Encoder(few.config, few.backbone)
    maps, gain = find_faster(few.backbone, resolution, few.batch_size(resolution**2))
    many.prepare_for(MANY, progress=False)  # the trial is remembered
    model: Any = timm.create_model(name, num_classes=0).eval().to(memory_format=torch.channels_last)
    model.load_state_dict(few.backbone.model.state_dict(), strict=False)

    @torch.no_grad()
    def bare(views: Tensor) -> Tensor:
        parts = torch.split(views.contiguous(memory_format=torch.channels_last), BATCH)
        return torch.cat([model.forward_features(part).mean((2, 3)) for part in parts])

    found: dict[str, Way] = {"exact": exact.embed, "finesight, few": few.embed, "finesight, many": many.embed}
    found |= {"bare torch": bare, "bare onnxruntime": onnx_loop(model, resolution)}
    if options.compile:
        found["bare torch.compile"] = compiled_loop(model)
    if options.openvino:
        found["bare openvino"] = openvino_loop(model, resolution, "f32")
        found["openvino, bfloat16"] = openvino_loop(model, resolution, "bf16")
    if options.half:
        half = Encoder(few.config, few.backbone)
        half.use_half_precision()
        found["finesight, half"] = half.embed
    return found, f"{'torch' if maps is None else 'onnxruntime'}; onnxruntime is {gain:.2f} times as fast as torch"


def compiled_loop(model: Any) -> Way:
    """Return the bare loop by torch.compile, which takes a minute when it is called first."""
    forward = torch.compile(lambda part: model.forward_features(part).mean((2, 3)), options={"freezing": True})

    @torch.no_grad()
    def run(views: Tensor) -> Tensor:
        parts = torch.split(views.contiguous(memory_format=torch.channels_last), BATCH)
        return torch.cat([forward(part) for part in parts])

    return run


def export(model: Any, resolution: int, file: str) -> None:
    """Export the network with its average, as a user would."""

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, views: Tensor) -> Tensor:
            return self.model.forward_features(views).mean((2, 3))

    example, axes = torch.zeros(2, 3, resolution, resolution), {"views": {0: "n"}}
    torch.onnx.export(
        Features().eval(), (example,), file, dynamo=False, input_names=["views"], dynamic_axes=axes, opset_version=17
    )


def openvino_loop(model: Any, resolution: int, precision: str) -> Way:
    """Return the same loop in OpenVINO, for batches of one size, which it is fastest with."""
    import openvino

    core = openvino.Core()
    with tempfile.TemporaryDirectory() as folder:
        export(model, resolution, f"{folder}/model.onnx")
        network = core.read_model(f"{folder}/model.onnx")
    compiled: dict[int, Any] = {}
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
    }

    def embed(part: Tensor) -> Any:
        if len(part) not in compiled:
            network.reshape([len(part), *part.shape[1:]])
            compiled[len(part)] = core.compile_model(network, "CPU", settings)
        return compiled[len(part)](part.numpy())[0].copy()

    def run(views: Tensor) -> Tensor:
        return torch.from_numpy(np.concatenate([embed(part) for part in torch.split(views, BATCH)]))

    return run


def onnx_loop(model: Any, resolution: int) -> Way:
    """Return the same loop in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        export(model, resolution, f"{folder}/model.onnx")
        session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, providers=["CPUExecutionProvider"])

    def run(views: Tensor) -> Tensor:
        parts = [session.run(None, {"views": part.numpy()})[0] for part in torch.split(views, BATCH)]
        return torch.from_numpy(np.concatenate(parts))

    return run


def older_loop(checkout: Path, name: str, views: Tensor, file: Path) -> Way:
    """Return how an older commit embeds the first of ``views``; its process ends with this one."""
    np.save(file, views.numpy())
    words = [sys.executable, "-c", OLDER, name, str(views.shape[-1]), str(torch.get_num_threads()), str(file)]
    environment = dict(os.environ) | {"PYTHONPATH": str(checkout.resolve() / "src")}
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answers = process.stdin, process.stdout

    def run(some: Tensor) -> Tensor:
        print(len(some), file=asked, flush=True)
        if answers.readline() != "done\n":
            raise SystemExit("the older commit failed: see above")
        return torch.from_numpy(np.load(file))

    return run


def measure(
    name: str, resolution: int, rounds: int, images: int, options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    now, before = clock(), options.before
    found, engine = ways(name, resolution, options)
    views = torch.randn(images, 3, resolution, resolution, generator=torch.Generator().manual_seed(0))
    if before is not None:
        found = {"before": older_loop(before, name, views, folder / f"{name}-{resolution}.npy"), **found}
    expected = found["exact"](views[:BATCH])
    error = {way: float((run(views[:BATCH]) - expected).norm() / expected.norm()) for way, run in found.items()}
    seconds: dict[str, list[float]] = {way: [] for way in found}
    for _ in range(rounds):
        for way, run in found.items():
            few = views[: max(2, images // 4)] if way in ("exact", "before") else views
            began = now()
            run(few)
            seconds[way].append((now() - began) / len(few))
    bare = min((way for way in found if way.startswith("bare")), key=lambda way: statistics.median(seconds[way]))
    return {
        "backbone": name,
        "resolution": resolution,
        "images": images,
        "engine": engine,
        "images_per_second": {way: round(1 / statistics.median(values), 2) for way, values in seconds.items()},
        **{
            f"of_{base}": {way: ratio(seconds[base], values) for way, values in seconds.items()}
            for base in ("before", "exact")
            if base in seconds
        },
        "fastest_bare": bare,
        "of_fastest_bare": {way: ratio(seconds[bare], values) for way, values in seconds.items()},
        "relative_error": error,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return images a second, and how FineSight compares with one image at a time and the fastest bare loop."""
    kinds = list(rows[0]["images_per_second"])
    bases = [base for base in ("before", "exact", "fastest_bare") if f"of_{base}" in rows[0]]
    shown = {"exact": "`--exact`", "fastest_bare": "fastest bare"}
    heads = ["network", *(shown.get(kind, kind) for kind in kinds), *(f"of {shown.get(base, base)}" for base in bases)]
    lines = [f"| {' | '.join(heads)} |", "|:---|" + "---:|" * (len(heads) - 1)]
    for row in rows:
        cells = [f"{row['images_per_second'][kind]:.1f}" for kind in kinds]
        cells += [f"{row[f'of_{base}']['finesight, many']:.2f}" for base in bases]
        lines.append(f"| {row['backbone']}, {row['resolution']} px | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds of few images, small networks only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile too, which takes up to a minute for each row"
    )
    parser.add_argument("--openvino", action="store_true", help="OpenVINO too, which must be installed")
    parser.add_argument("--half", action="store_true", help="FineSight with --half too")
    parser.add_argument("--rows", help="names of backbones, with commas")
    parser.add_argument("--before", type=Path, help="a checkout of an older commit of FineSight; needs two threads")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if options.before and options.threads == 1:
        parser.error("with one thread, seconds are those of this process, and --before runs in another")
    torch.set_num_threads(options.threads)
    rounds, images = (2, 8) if options.quick else (options.rounds, options.images)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FINESIGHT_CACHE"] = folder  # the trial is made here and now
        for name, resolution in QUICK if options.quick else ROWS:
            if options.rows and name not in options.rows.split(","):
                continue
            rows.append(measure(name, resolution, rounds, images, options, Path(folder)))
            print(f"{name} {resolution} px: {rows[-1]['images_per_second']}", flush=True)
    libraries = f", onnxruntime {version('onnxruntime')}, timm {version('timm')}"
    record_measurement({"threads": options.threads, "rounds": rounds, "rows": rows}, options.out, libraries)
    print(table(rows))


if __name__ == "__main__":
    main()
