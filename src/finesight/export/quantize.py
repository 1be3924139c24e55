"""A checked fp32 file → int8 weights and activations, and what that costs, on pictures it was not calibrated with."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError, SkipImage
from finesight.export.onnx import PHI, put_in_place
from finesight.features.embedder import unit
from finesight.features.onnx_names import ATTENTION, AVERAGE, FEATURE, IMAGES, KEY
from finesight.features.onnx_runtime import description, needed, session
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
        """For scripts."""
        facts = asdict(self)
        old = {
            "neighbours": facts.pop("neighbors"),
            "neighbours_kept": facts.pop("neighbors_kept"),
        }
        return {**facts, **old, "file": str(self.file), "warnings": self.warnings()}

    def warnings(self) -> list[str]:
        """In words, where the quality is poor."""
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
    known = description(session(model), model)
    views = _views(folder, int(known["encoder"]["resolution"]), 2 * limit, progress=progress)
    calibration, others = views[::2], views[1::2]
    small = _quantized(model, calibration, progress=progress)
    needed("onnx").helper.set_model_props(
        small, {KEY: json.dumps({**known, "precision": "int8", "calibrated": len(calibration)})}
    )
    with put_in_place(out, small) as scratch:
        outputs = [_outputs(file, others, progress=progress) for file in (model, scratch)]
    return Quantized(out, out.stat().st_size, len(calibration), len(others), **compared(*outputs))


def readable(folder: str | Path) -> ImageSource:
    """The pictures to calibrate with, if there are enough of them."""
    source = open_source(folder)
    if len(source) < FEWEST:
        raise FineSightError(f"int8 needs at least {FEWEST} pictures to calibrate with; {folder} has {len(source)}.")
    return source


def _views(folder: str | Path, resolution: int, count: int, *, progress: bool) -> list[Pixels]:
    """Of pictures spread evenly over the folder; those that cannot be read are left out."""
    source = readable(folder)
    chosen = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    views = []
    for i in track(chosen, len(chosen), "reading", show=progress):
        try:
            views.append(picture_view(source.file(i), resolution).pixels)
        except SkipImage:
            continue
    if len(views) < FEWEST:
        raise FineSightError(
            f"int8 needs at least {FEWEST} readable pictures to calibrate with; {folder} has {len(views)}."
        )
    return views


def _quantized(model: Path, views: Sequence[Pixels], *, progress: bool) -> Any:
    quantization = needed("onnxruntime.quantization")
    onnx = needed("onnx")
    batches = iter(track(views, len(views), "calibrating", show=progress))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> dict[str, Pixels] | None:
            pixels = next(batches, None)
            return None if pixels is None else {IMAGES: pixels[None]}

    with tempfile.TemporaryDirectory() as scratch, _quiet():
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


@contextmanager
def _quiet() -> Iterator[None]:
    """It logs advice for whoever wrote the graph."""
    before, runtime = logging.root.manager.disable, needed("onnxruntime")
    logging.disable(logging.WARNING)
    runtime.set_default_logger_severity(3)
    try:
        yield
    finally:
        logging.disable(before)
        runtime.set_default_logger_severity(2)  # as it begins


def before_phi(graph: Any) -> list[str]:
    """The nodes to quantize: those that φ is made by, but for the first convolution, which pixels suffer most from."""
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
    running = session(model)
    names = [FEATURE, AVERAGE, ATTENTION]
    rows = [
        running.run(names, {IMAGES: pixels[None]}) for pixels in track(views, len(views), "comparing", show=progress)
    ]
    return [np.concatenate(parts) for parts in zip(*rows, strict=True)]


def compared(whole: Sequence[NDArray[np.float32]], small: Sequence[NDArray[np.float32]]) -> dict[str, Any]:
    """Feature, average and attention of the same pictures by two files -> how well the second keeps to the first."""
    vectors = [(unit(a), unit(b)) for a, b in zip(whole[:2], small[:2], strict=True)]
    feature, average = ((a * b).sum(1) for a, b in vectors)
    ranks = [_ranked(features) for features in vectors[0]]
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


def _ranked(features: NDArray[np.float32]) -> NDArray[np.int64]:
    """The other rows, nearest first. (N, D) -> (N, N - 1)"""
    scores = features @ features.T
    np.fill_diagonal(scores, -np.inf)
    order: NDArray[np.int64] = np.argsort(-scores, axis=1, kind="stable")[:, :-1]
    return order
