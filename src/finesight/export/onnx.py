"""``Encoder`` → one ONNX file, checked against PyTorch before it takes its name."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.std_conv import ScaledStdConv2dSame, StdConv2dSame
from timm.models import SwinTransformer, SwinTransformerV2, SwinTransformerV2Cr

from finesight.errors import FineSightError, first_line
from finesight.export.graph import Graph
from finesight.export.verify import OutputDifference, check
from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.features.encoder_folder import fingerprint as read_fingerprint
from finesight.features.onnx_runtime import AXES, FORMAT, IMAGES, KEY, REGION, VECTOR_AXES, require
from finesight.io.atomic import atomic_path
from finesight.nn.feature_map import Sides
from finesight.version import __version__

OPSET = 18
TOLERANCE = 1e-3
PHI = "phi"
PADS_BY_SIZE = {
    (Conv2dSame, StdConv2dSame, ScaledStdConv2dSame): (
        "pads as TensorFlow does. timm mostly has the same network with plain padding, without 'tf_' in its name"
    ),
    (SwinTransformer, SwinTransformerV2, SwinTransformerV2Cr): "pads its windows by the size of the image",
}


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from PyTorch."""

    file: Path
    bytes: int
    differences: tuple[OutputDifference, ...]
    warnings: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """Return the numbers for ``--json``."""
        return {
            "file": str(self.file),
            "bytes": self.bytes,
            "differences": {
                each.output: {k: v for k, v in asdict(each).items() if k != "output"} for each in self.differences
            },
            "warnings": list(self.warnings),
        }


def export_onnx(
    run: str | Path, out: str | Path, *, responses: bool = False, tolerance: float = TOLERANCE, progress: bool = True
) -> Exported:
    """Write the encoder of a finished run as ``out``, for any image size that the network takes.

    Where the exporter cannot do that, the graph is for the encoder's own resolution, and a warning says why. If it
    differs from PyTorch by more than ``tolerance``, a ``FineSightError`` is raised and no file is left.
    """
    out = Path(out)
    check_target(out)
    encoder = Encoder.load(run)
    if responses and encoder.branch is None:
        raise FineSightError(f"There are no responses to export: the encoder in {run} has no rationale.")
    sides, fingerprint = encoder.backbone.map.sides, read_fingerprint(run)
    try:
        model = trace(encoder, responses=responses)
        return write_checked(encoder, model, out, fingerprint, tolerance, progress)
    except FineSightError as error:
        if sides.fixed:
            raise
        reason = error
    only = Sides(encoder.config.resolution, fixed=True)
    model = trace(encoder, responses=responses, sides=only)
    written = write_checked(encoder, model, out, fingerprint, tolerance, progress, sides=only)
    note = f"The graph takes images of {only.multiple} px only, any number of them. For other sizes: {reason}"
    return replace(written, warnings=(*written.warnings, note))


def write_checked(
    encoder: Encoder,
    model: Any,
    out: Path,
    fingerprint: str,
    tolerance: float = TOLERANCE,
    progress: bool = True,
    sides: Sides | None = None,
) -> Exported:
    """Write the traced ``model`` as a file if it gives what ``encoder`` does, for images with these sides."""
    describe(model, encoder.config, fingerprint, "fp32")
    names = [output.name for output in model.graph.output]
    with write_model(out, model) as scratch:
        differences = check(encoder, scratch, names, progress=progress, sides=sides)
        if worse := [one for one in differences if not one.relative <= tolerance]:  # so that a nan is no agreement
            raise FineSightError(
                f"The exported graph differs from PyTorch: {worse[0].output} by {worse[0].relative:.2g} of its largest "
                f"value, more than the tolerance {tolerance:g}. No file was written."
            )
    return Exported(out, out.stat().st_size, differences, tuple(_warnings(encoder.config)))


def check_target(out: Path) -> None:
    """Raise ``FineSightError`` if ``out`` cannot be written or a package is missing; called before the work."""
    if out.suffix.lower() != ".onnx":
        raise FineSightError(f"{out} must end in .onnx.")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise FineSightError(f"{out} cannot be written: " + ("it is a folder." if out.is_dir() else "no such folder."))
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package)


@contextmanager
def write_model(out: Path, model: Any) -> Iterator[Path]:
    """Yield the model as a scratch file, which becomes ``out`` when the block ends without an error."""
    with atomic_path(out) as scratch:
        try:
            scratch.write_bytes(model.SerializeToString())
        except ValueError as error:
            raise FineSightError(f"The network is too large for one ONNX file: {error}") from error
        except OSError as error:
            raise FineSightError(f"{out} cannot be written: {error.strerror}.") from error
        yield scratch


def trace(encoder: Encoder, *, responses: bool = False, sides: Sides | None = None) -> Any:
    """Return the graph as an onnx ``ModelProto``, for any batch and ``sides``: by default all that the network takes.

    φ is a value of it named ``phi``.
    """
    name = encoder.config.backbone.name
    side, sides = encoder.config.resolution, sides or encoder.backbone.map.sides
    # padding that every layer works out anew from the size keeps the exporter busy for hours
    for kinds, reason in () if sides.fixed else PADS_BY_SIZE.items():
        if any(isinstance(module, kinds) for module in encoder.backbone.modules()):
            raise FineSightError(f"'{name}' cannot be exported to ONNX for images of any size: it {reason}.")
    graph = Graph(encoder, responses=responses)
    # other than each other, or they would be taken for the same
    height, width = side, sides.at_least(side + encoder.backbone.stride)
    example = torch.zeros(2, height, width, 3, dtype=torch.uint8), torch.ones(2, height, width)
    free = {axis: torch.export.Dim.DYNAMIC for axis in range(1 if sides.fixed else 3)}
    try:
        with quiet():
            program = torch.onnx.export(
                graph,
                example,
                dynamo=True,
                dynamic_shapes={IMAGES: free, REGION: free},
                input_names=[IMAGES, REGION],
                output_names=[*graph.names, PHI],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter's own errors, and whatever a model's code raises when traced
        raise FineSightError(f"'{name}' cannot be exported to ONNX: {first_line(error)}") from error
    assert program is not None
    return _finish(program.model_proto, fixed=sides.fixed)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and logs of exporter and quantizer, none of which a user can act on."""
    before, runtime = logging.root.manager.disable, require("onnxruntime")
    logging.disable(logging.WARNING)
    runtime.set_default_logger_severity(3)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        runtime.set_default_logger_severity(2)  # onnxruntime's default


def _finish(model: Any, *, fixed: bool) -> Any:
    """Name the axes that are free, make the region optional, and remove φ from the outputs and paths from the nodes."""
    onnx = require("onnx")
    graph = model.graph
    graph.output.remove(next(output for output in graph.output if output.name == PHI))
    del graph.value_info[:]  # they speak of axes by the names they had
    for node in graph.node:
        del node.metadata_props[:]  # stack traces of the exporter, with paths of this machine
    for value in [*graph.input, *graph.output]:
        for dim, name in zip(value.type.tensor_type.shape.dim, AXES.get(value.name, VECTOR_AXES), strict=True):
            if name and (value.name == REGION or not (fixed and dim.dim_value)):  # a region may be left out or spread
                dim.dim_param = name
    _make_region_optional(onnx, graph)
    onnx.checker.check_model(model)
    return model


def _make_region_optional(onnx: Any, graph: Any) -> None:
    """Give the region an initializer, one 1 that is spread over the picture: such an input may be left out."""
    full, size = "region_of_image", "image_size"
    for node in graph.node:
        node.input[:] = [full if name == REGION else name for name in node.input]
    ones = onnx.helper.make_tensor(REGION, onnx.TensorProto.FLOAT, (1, 1, 1), [1.0])
    graph.initializer.append(ones)
    graph.node.insert(0, onnx.helper.make_node("Shape", [IMAGES], [size], name=size, start=0, end=3))
    graph.node.insert(1, onnx.helper.make_node("Expand", [REGION, size], [full], name=full))


def describe(model: Any, config: EncoderConfig, fingerprint: str, precision: str) -> None:
    """Write into the model what it was made of and what it expects."""
    settings, scale = config.model_dump(mode="json"), config.framing.scale
    settings["backbone"]["weights"] = PurePath(settings["backbone"]["weights"]).name  # not where someone keeps them
    metadata = {
        "format": FORMAT,
        "version": __version__,
        "fingerprint": fingerprint,
        "precision": precision,
        "encoder": settings,
        "preprocessing": {
            "short_side": scale.side,
            "squash": scale.squash,
            "centre_crop": config.resolution,
            "resize": f"antialiased {scale.interpolation}",
            "pixels": "uint8 RGB; scaled and normalized inside the graph",
        },
    }
    require("onnx").helper.set_model_props(model, {KEY: json.dumps(metadata)})
    model.producer_name, model.producer_version = "finesight", __version__
    model.doc_string = "FineSight: feature, plain average and attention of images. See the metadata 'finesight'."


def _warnings(config: EncoderConfig) -> list[str]:
    if config.rationale is None or config.rationale.mask_range == "image":
        return []
    return [
        f"This run's masks take their range over the batch (variant {config.rationale.variant!r}), and so does the "
        "graph: a feature depends on the other images of the same call. Give it one image at a time to avoid that."
    ]
