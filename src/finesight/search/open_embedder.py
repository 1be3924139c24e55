"""Open the embedder that searches an index: by torch, or by onnxruntime where there is no torch."""

from __future__ import annotations

from pathlib import Path

from finesight.errors import FineSightError
from finesight.features.embedder import OnnxEmbedder, TorchEmbedder
from finesight.features.types import Embedder
from finesight.search.base import Index

ENGINES = ("torch", "onnx")
MODEL = "model.onnx"  # beside an index or in a run: found without being named


def open_embedder(kind: str, index: Index, run: str | Path | None = None, *, exact: bool = False) -> Embedder:
    """Open what embeds queries of an index: the encoder kept with it, or that of ``run`` if it is the same.

    onnxruntime always takes one image at a time, torch if ``exact``.
    """
    if kind not in ENGINES:
        raise FineSightError(f"There is no engine {kind!r}. There are: {', '.join(ENGINES)}.")
    embedder: Embedder
    if kind == "onnx":
        embedder = open_onnx_embedder(index, run)
    else:
        embedder = TorchEmbedder.load(run if run is not None else index.encoder_folder(), exact=exact)
    require_same(index, embedder, str(run) if run is not None else "the encoder kept with the index")
    return embedder


def require_same(index: Index, embedder: Embedder, what: str) -> None:
    """Raise ``FineSightError`` if the embedder is not that of the index: their features cannot be compared."""
    if embedder.fingerprint != index.meta.fingerprint:
        raise FineSightError(
            f"The index was made by another encoder ({index.meta.run}, fingerprint {index.meta.fingerprint[:12]}) than "
            f"{what} (fingerprint {embedder.fingerprint[:12]}): their features cannot be compared. "
            "Use that encoder, or make a new index with --index."
        )


def open_onnx_embedder(index: Index, model: str | Path | None = None) -> OnnxEmbedder:
    """Open the file given, or the ``model.onnx`` beside the index or in the run that made it."""
    if model is not None:
        file = Path(model)
        return OnnxEmbedder(file / MODEL if file.is_dir() else file)
    candidates = [index.encoder_folder().parent / MODEL, Path(index.meta.run) / MODEL]
    for candidate in candidates:
        if candidate.is_file():
            return OnnxEmbedder(candidate)
    raise FineSightError(
        f"There is no {MODEL} to search with. Make one with `finesight export {index.meta.run} {candidates[0]}`, "
        "or give one with --model."
    )
