"""The embedder that searches an index: by torch, or by onnxruntime where there is no torch."""

from __future__ import annotations

from pathlib import Path

from finesight.errors import FineSightError
from finesight.features.embedder import TorchEngine
from finesight.features.onnx_embedder import OnnxEngine
from finesight.features.types import Engine
from finesight.search.base import Index

ENGINES = ("torch", "onnx")
MODEL = "model.onnx"  # beside an index or in a run: found without being named


def open_engine(kind: str, index: Index, run: str | Path | None = None) -> Engine:
    """The engine that searches an index: by the encoder kept with it, or by the one of ``run`` if that is the same."""
    if kind not in ENGINES:
        raise FineSightError(f"There is no engine {kind!r}. There are: {', '.join(ENGINES)}.")
    engine: Engine
    if kind == "onnx":
        engine = open_onnx_engine(index, run)
    else:
        engine = TorchEngine.load(run if run is not None else index.encoder_folder())
    require_same(index, engine, str(run) if run is not None else "the encoder kept with the index")
    return engine


def require_same(index: Index, engine: Engine, what: str) -> None:
    """Features of two encoders cannot be compared."""
    if engine.fingerprint != index.meta.fingerprint:
        raise FineSightError(
            f"The index was made by another encoder ({index.meta.run}, fingerprint {index.meta.fingerprint[:12]}) than "
            f"{what} (fingerprint {engine.fingerprint[:12]}): their features cannot be compared. "
            "Use that encoder, or make a new index with --index."
        )


def open_onnx_engine(index: Index, model: str | Path | None = None) -> OnnxEngine:
    """By the file given, or by the ``model.onnx`` beside the index or in the run that made it."""
    if model is not None:
        file = Path(model)
        return OnnxEngine(file / MODEL if file.is_dir() else file)
    places = [index.encoder_folder().parent / MODEL, Path(index.meta.run) / MODEL]
    for place in places:
        if place.is_file():
            return OnnxEngine(place)
    raise FineSightError(
        f"There is no {MODEL} to search with. Make one with `finesight export {index.meta.run} {places[0]}`, "
        "or give one with --model."
    )
