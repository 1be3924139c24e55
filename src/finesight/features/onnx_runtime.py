"""onnxruntime and its relatives, which come with an extra. No torch: searching by an ONNX file needs none."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from finesight.errors import FineSightError
from finesight.features.onnx_names import FORMAT, KEY

EXTRA = "pip install finesight[export]"


def needed(name: str) -> ModuleType:
    """Import a package of the extra; a missing one is said in words."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise FineSightError(f"This needs the package {package!r} ({error}). To install it: {EXTRA}") from error


def session(model: Path, threads: int | None = None) -> Any:
    """The file in onnxruntime on the CPU; ``threads`` by default one for each core."""
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # an input that may be left out is worth no warning
    if threads is not None:
        options.intra_op_num_threads = threads
    if not model.is_file():
        raise FineSightError(f"There is no file {model}.")
    try:
        return runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception of its own for each way to fail, and no common one
        raise FineSightError(f"{model} cannot be run by onnxruntime: {_first_line(error)}") from error


def description(running: Any, model: Path) -> dict[str, Any]:
    """What ``finesight export`` wrote into the file about itself."""
    text = running.get_modelmeta().custom_metadata_map.get(KEY)
    if text is None:
        raise FineSightError(f"{model} was not made by `finesight export`: it does not say which encoder it is.")
    try:
        known = json.loads(text)
        found = known["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise FineSightError(f"What {model} says about itself is damaged: {error}") from error
    if found != FORMAT:
        raise FineSightError(f"{model} is of format {found}, not {FORMAT}: export the run again.")
    return dict(known)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
