"""Open an embedder: torch, or onnxruntime where there is no torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from finesight.errors import FineSightError
from finesight.features.embedder import OnnxEmbedder, TorchEmbedder
from finesight.features.encoder_folder import is_model_file
from finesight.features.types import Embedder
from finesight.search.base import FEATURES, MODEL, Index

ENGINES = ("torch", "onnx")


def open_embedder(
    kind: str | None, index: Index, run: str | Path | None = None, *, exact: bool = False
) -> TorchEmbedder | OnnxEmbedder:
    """Open what embeds queries of an index: the encoder kept with it, or that of ``run`` if it is the same.

    ``kind`` is torch or onnx. None is torch, or onnx where torch is not installed or an exported file is all there is.
    onnxruntime always takes one image at a time, torch if ``exact``.
    """
    if kind is None:
        is_exported = is_model_file(index.meta.run if run is None else run)
        kind = "onnx" if is_exported or not has_torch() else "torch"
    if kind not in ENGINES:
        raise FineSightError(f"There is no engine {kind!r}. There are: {', '.join(ENGINES)}.")
    if index.meta.method == FEATURES:
        raise FineSightError(
            f"This index is of the features in {index.meta.run}, and what made them is not known: it can be grouped, "
            "looked through for duplicates and searched by a feature (finesight.open_index(…).by_vector), but not by a "
            "picture."
        )
    embedder: TorchEmbedder | OnnxEmbedder
    if kind == "onnx":
        embedder = open_onnx_embedder(index, run)
    else:
        embedder = TorchEmbedder.load(run if run is not None else index.encoder_folder(), exact=exact)
    require_same(index, embedder, str(run) if run is not None else "the encoder kept with the index")
    return embedder


def open_indexing_embedder(run: Path, *, exact: bool = False) -> TorchEmbedder | OnnxEmbedder:
    """Open what makes an index: the encoder of a run, an encoder folder, or a file of ``finesight export``.

    Without torch, a run is used by its ``model.onnx``. A file in 8 bits is a ``FineSightError``: its features are near
    those of the encoder, not the same, and an index must not mix them.
    """
    if not is_model_file(run):
        model = run / MODEL
        if has_torch():
            return TorchEmbedder.load(run, exact=exact)
        if not run.is_dir():
            raise FineSightError(f"{run} is no folder: give a file of `finesight export`, or a run that holds one.")
        if not model.is_file():
            raise FineSightError(
                f"torch is not installed, so an index is made by an exported encoder, and there is no {model}. Make it "
                f"with `finesight export {run} {model}` where torch is installed, or `pip install finesight` here."
            )
        run = model
    embedder = OnnxEmbedder(run)
    if embedder.precision != "fp32":
        raise FineSightError(
            f"{run} is in 8 bits: it searches, but its features are not quite those of the encoder, and an index must "
            "not mix them. Make the index with the file that export wrote beside it."
        )
    return embedder


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    try:
        return find_spec("torch") is not None
    except (ImportError, ValueError):  # something in its place, or a finder that refuses it
        return False


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
    kept, run = index.model_file(), Path(index.meta.run)
    for candidate in (kept, run if is_model_file(run) else run / MODEL):
        if candidate.is_file():
            return OnnxEmbedder(candidate)
    where = "" if has_torch() else " where torch is installed"
    raise FineSightError(
        f"There is no {MODEL} to search with. Make one with `finesight export {index.meta.run} {kept}`{where}, "
        "or give one with --model."
    )
