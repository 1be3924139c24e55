"""What an exported network costs and gives: torch, fp32 ONNX and int8 ONNX on the same pictures, in turns.

    python benchmarks/export.py --data CUB_200_2011 --weights FILE -o results/export/resnet50.json

Exports a ResNet-50 with the given weights (frozen, energy-gem pooled) in fp32 and int8, then times one picture at a
time. In every round each engine sees the same picture, so that whatever else the machine does falls on all alike;
processor time is what is compared.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from finesight.api import frozen
from finesight.data.sources import open_source
from finesight.export.onnx import export_onnx
from finesight.export.quantize import compare_outputs, quantize
from finesight.export.verify import reference
from finesight.features.onnx_runtime import ATTENTION, AVERAGE, FEATURE, IMAGES, open_session, require
from finesight.features.preprocess import picture_view
from finesight.nn.backbone_config import BackboneConfig
from finesight.paper.machine import record_measurement

NAMES = (FEATURE, AVERAGE, ATTENTION)


def rounds(
    encoder: Any, files: dict[str, Path], views: list[Any], threads: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and seconds of each engine, picture by picture."""
    running = {name: open_session(file, threads) for name, file in files.items()}
    engines = {
        "torch": lambda pixels: list(reference(encoder, torch.from_numpy(pixels), None, NAMES).values()),
        **{name: lambda pixels, it=it: it.run(list(NAMES), {IMAGES: pixels}) for name, it in running.items()},
    }
    for engine in engines.values():
        engine(views[0][None])  # the first is slower: memory is laid out
    outputs: dict[str, list[Any]] = {name: [] for name in engines}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for pixels in views:
        for name, engine in engines.items():
            began = time.process_time()
            outputs[name].append(engine(pixels[None]))
            seconds[name].append(time.process_time() - began)
    return {name: [np.concatenate(part) for part in zip(*rows, strict=True)] for name, rows in outputs.items()}, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--resolution", type=int, default=224)
    parser.add_argument("--images", type=int, default=50, help="to calibrate, to judge, and to time: each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    encoder = frozen(
        BackboneConfig(name=options.backbone, weights=options.weights), options.resolution, pooling="energy-gem"
    )
    source = open_source(options.data)
    chosen = np.linspace(0, len(source) - 1, options.images + 2)[1:-1].round().astype(int)
    views = [picture_view(source.file(i), options.resolution).pixels for i in chosen]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        encoder.save(run / "encoder")
        fp32, int8 = run / "model.onnx", run / "model.int8.onnx"
        whole = export_onnx(run, fp32)
        small = quantize(fp32, int8, options.data, limit=options.images)
        outputs, seconds = rounds(encoder, {"onnx fp32": fp32, "onnx int8": int8}, views, options.threads)
    times = {name: np.array(values) for name, values in seconds.items()}
    result = {
        "command": f"python benchmarks/export.py --backbone {options.backbone} --resolution {options.resolution} "
        f"--images {options.images} --threads {options.threads}",
        "bytes": {
            "torch": sum(v.nbytes for v in encoder.state_dict().values()),
            "fp32": whole.bytes,
            "int8": small.bytes,
        },
        "check": whole.summary()["differences"],
        "int8": {key: value for key, value in small.summary().items() if key != "file"},
        "on_pictures": {name: compare_outputs(outputs["torch"], outputs[name]) for name in ("onnx fp32", "onnx int8")},
        "relative_time": {name: float(np.median(values / times["torch"])) for name, values in times.items()},
        "relative_time_quartiles": {
            name: np.percentile(values / times["torch"], (25, 75)).tolist() for name, values in times.items()
        },
        "seconds": {name: float(np.median(values)) for name, values in times.items()},
    }
    print(record_measurement(result, options.out, f", onnxruntime {require('onnxruntime').__version__}"))


if __name__ == "__main__":
    main()
