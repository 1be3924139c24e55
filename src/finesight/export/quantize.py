"""Quantize a checked fp32 file to int8, and measure what that costs on pictures it was not calibrated with."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.geometry import Framing
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError, SkipImage
from finesight.export.onnx import PHI, quiet, write_model
from finesight.features.embedder import unit
from finesight.features.onnx_runtime import (
    ATTENTION,
    AVERAGE,
    FEATURE,
    IMAGES,
    KEY,
    open_session,
    read_metadata,
    require,
)
from finesight.features.preprocess import picture_view
from finesight.io.progress import track

Pixels = NDArray[np.uint8]
OPERATIONS = ("Conv", "Gemm", "MatMul", "Add", "Relu", "MaxPool")
FEWEST = 4  # pictures: to find ranges by, and others to compare with
NEIGHBORS = 10
POOR = 0.98  # median cosine to the fp32 feature


@dataclass(frozen=True)
class Quantized:
    """What was written, and how near its answers are to those of the fp32 file."""

    file: Path
    bytes: int
    calibrated: int  # pictures that set the ranges
    compared: int  # other pictures, which all that follows is measured on
    feature_cosine_min: float
    feature_cosine_median: float
    average_cosine_min: float
    average_cosine_median: float
    attention_error: float  # mean absolute
    nearest_kept: float  # share of pictures whose nearest other picture is the same
    neighbors: int  # how many nearest ones are looked at: ten, or half of the others where they are few
    neighbors_kept: float  # the share of them that are the same

    def summary(self) -> dict[str, Any]:
        """Return the numbers for ``--json``."""
        facts = asdict(self)
        spelled = {f"neighbours{end}": facts.pop(f"neighbors{end}") for end in ("", "_kept")}  # as ever in JSON
        return {**facts, **spelled, "file": str(self.file), "warnings": self.warnings()}

    def warnings(self) -> list[str]:
        """Return what to say where the quality is poor."""
        if self.feature_cosine_median >= POOR:
            return []
        return [
            f"The int8 features are far from the fp32 ones: median cosine {self.feature_cosine_median:.3f}, and "
            f"{1 - self.nearest_kept:.0%} of the pictures have another nearest one. This network does not bear 8 bits "
            "well: use the fp32 file."
        ]


def quantize(model: Path, out: Path, folder: str | Path, *, limit: int = 64, progress: bool = True) -> Quantized:
    """Write ``out``. ``limit`` pictures of ``folder`` set the ranges of activations, as many others judge the result.

    The network up to φ is quantized, its pooling and its branch are not: they are small, and a mask lives by small
    differences. Weights are kept to 7 bits: without VNNI, a processor adds products in 16 bits, which 8 overflow.
    """
    metadata = read_metadata(open_session(model), model)
    views = _views(folder, Framing.of(metadata["encoder"]), 2 * limit, progress=progress)
    calibration, others = views[::2], views[1::2]
    small = _quantize(model, calibration, progress=progress)
    require("onnx").helper.set_model_props(
        small, {KEY: json.dumps({**metadata, "precision": "int8", "calibrated": len(calibration)})}
    )
    with write_model(out, small) as scratch:
        outputs = [_outputs(file, others, progress=progress) for file in (model, scratch)]
    return Quantized(out, out.stat().st_size, len(calibration), len(others), **compare_outputs(*outputs))


def open_calibration(folder: str | Path) -> ImageSource:
    """Open the pictures to calibrate with; too few of them are a ``FineSightError``."""
    source = open_source(folder)
    if len(source) < FEWEST:
        raise FineSightError(f"int8 needs at least {FEWEST} pictures to calibrate with; {folder} has {len(source)}.")
    return source


def _views(folder: str | Path, framing: Framing, count: int, *, progress: bool) -> list[Pixels]:
    """Return views of pictures spread evenly over the folder, without those that cannot be read."""
    source = open_calibration(folder)
    chosen = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    views = []
    for i in track(chosen, len(chosen), "reading", show=progress):
        try:
            views.append(picture_view(source.file(i), framing).pixels)
        except SkipImage:
            continue
    if len(views) < FEWEST:
        raise FineSightError(
            f"int8 needs at least {FEWEST} readable pictures to calibrate with; {folder} has {len(views)}."
        )
    return views


def _quantize(model: Path, views: Sequence[Pixels], *, progress: bool) -> Any:
    quantization = require("onnxruntime.quantization")
    onnx = require("onnx")
    batches = iter(track(views, len(views), "calibrating", show=progress))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> dict[str, Pixels] | None:
            pixels = next(batches, None)
            return None if pixels is None else {IMAGES: pixels[None]}

    with tempfile.TemporaryDirectory() as scratch, quiet():
        written = Path(scratch) / "int8.onnx"
        quantization.quantize_static(
            str(model),
            str(written),
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=list(OPERATIONS),
            nodes_to_quantize=before_phi(onnx.load(str(model)).graph),
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod.MinMax,
        )
        return onnx.load(str(written))


def before_phi(graph: Any) -> list[str]:
    """Return the nodes to quantize: those that make φ, except the first convolution, which would lose most."""
    makers = {name: node for node in graph.node for name in node.output}
    found: dict[str, Any] = {}
    waiting = [PHI]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node.name not in found:
            found[node.name] = node
            waiting.extend(node.input)
    first = next((node.name for node in graph.node if node.op_type == "Conv"), None)
    return [name for name, node in found.items() if node.op_type in OPERATIONS and name != first]


def _outputs(model: Path, views: Sequence[Pixels], *, progress: bool) -> list[NDArray[np.float32]]:
    session = open_session(model)
    names = [FEATURE, AVERAGE, ATTENTION]
    rows = [
        session.run(names, {IMAGES: pixels[None]}) for pixels in track(views, len(views), "comparing", show=progress)
    ]
    return [np.concatenate(parts) for parts in zip(*rows, strict=True)]


def compare_outputs(whole: Sequence[NDArray[np.float32]], small: Sequence[NDArray[np.float32]]) -> dict[str, Any]:
    """Return how near the second file's feature, average and attention of the same pictures are to the first's."""
    vectors = [(unit(a), unit(b)) for a, b in zip(whole[:2], small[:2], strict=True)]
    feature, average = ((a * b).sum(1) for a, b in vectors)
    ranks = [_rank_others(features) for features in vectors[0]]
    k = min(NEIGHBORS, max(1, (len(ranks[0]) - 1) // 2))
    shared = [len(set(a[:k]) & set(b[:k])) / k for a, b in zip(*ranks, strict=True)]
    return {
        "feature_cosine_min": float(feature.min()),
        "feature_cosine_median": float(np.median(feature)),
        "average_cosine_min": float(average.min()),
        "average_cosine_median": float(np.median(average)),
        "attention_error": float(np.abs(whole[2] - small[2]).mean()),
        "nearest_kept": float((ranks[0][:, 0] == ranks[1][:, 0]).mean()),
        "neighbors": k,
        "neighbors_kept": float(np.mean(shared)),
    }


def _rank_others(features: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the other rows, nearest first. (N, D) -> (N, N - 1)"""
    scores = features @ features.T
    np.fill_diagonal(scores, -np.inf)
    order: NDArray[np.int64] = np.argsort(-scores, axis=1, kind="stable")[:, :-1]
    return order
