"""The ONNX files of ``finesight export``: names of inputs and outputs, and onnxruntime.

No torch: searching by an ONNX file needs none.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from finesight.errors import FineSightError, first_line
from finesight.nn.poolings import Pooling

IMAGES, REGION = "images", "region"  # inputs
FEATURE, AVERAGE, ATTENTION, RESPONSES = "feature", "average", "attention", "responses"  # outputs
KEY = "finesight"  # of the metadata inside the file
FORMAT = 1
EXTRA = "pip install finesight[export]"
VECTOR_AXES = ("batch", "")
AXES = {
    IMAGES: ("batch", "height", "width", ""),
    REGION: ("region_batch", "region_height", "region_width"),  # each 1 or as the images: it is broadcast
    ATTENTION: ("batch", "rows", "columns"),
    RESPONSES: ("batch", "", "rows", "columns"),
}  # of every other output: VECTOR_AXES


def vector_outputs(pooling: Pooling) -> dict[str, str]:
    """Return the outputs that hold features, each with the name of its pooling.

    They are the encoder's own feature, the plain average, and what an index keeps in the place of a wide feature.
    """
    beside = {} if pooling.indexed == pooling.name else {pooling.indexed: pooling.indexed}
    return {FEATURE: pooling.name, AVERAGE: AVERAGE, **beside}


def output_names(pooling: Pooling, *, responses: bool = False) -> tuple[str, ...]:
    """Return the names of all outputs in the order of the graph."""
    feature, average, *beside = vector_outputs(pooling)
    return (feature, average, ATTENTION, *beside, *((RESPONSES,) if responses else ()))


def output_of(space: str, pooling: Pooling) -> str:
    """Return the output that holds the features of one of an index's spaces."""
    return FEATURE if space == pooling.name and space != AVERAGE else space


def require(name: str) -> ModuleType:
    """Import a package that exporting needs; if it is missing, a ``FineSightError`` says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise FineSightError(f"This needs the package {package!r} ({error}). To install it: {EXTRA}") from error


def open_session(model: Path, threads: int | None = None) -> Any:
    """Open the file in onnxruntime on the CPU, with ``threads`` threads or one for each core.

    A file that is missing or cannot be run is a ``FineSightError``.
    """
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # no warning of an input that may be left out
    if threads is not None:
        options.intra_op_num_threads = threads
    if not model.is_file():
        raise FineSightError(f"There is no file {model}.")
    try:
        return runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception of its own for each way to fail, and no common one
        raise FineSightError(f"{model} cannot be run by onnxruntime: {first_line(error)}") from error


def read_metadata(session: Any, model: Path) -> dict[str, Any]:
    """Return what ``finesight export`` wrote into the file about its encoder, or raise ``FineSightError``."""
    try:
        text = session.get_modelmeta().custom_metadata_map.get(KEY)
        if text is None:
            raise FineSightError(f"{model} was not made by `finesight export`: it does not say which encoder it is.")
        metadata = json.loads(text)
        found = metadata["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FineSightError(f"What {model} says about itself is damaged: {error}") from error
    if found != FORMAT:
        raise FineSightError(f"{model} is of format {found}, not {FORMAT}: export the run again.")
    return dict(metadata)
