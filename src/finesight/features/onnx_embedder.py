"""Views to features by onnxruntime: searching where there is no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finesight.errors import FineSightError
from finesight.features.embedder import spaces_of, unit
from finesight.features.onnx_names import ATTENTION, IMAGES, REGION, output_of
from finesight.features.onnx_runtime import description, session
from finesight.features.preprocess import region_share
from finesight.search.base import Box, Index, Look, View

MODEL = "model.onnx"  # beside an index or in a run: found without being named


class OnnxEngine:
    """A file of ``finesight export`` as an engine. One image at a time: a feature does not depend on its batch."""

    def __init__(self, model: str | Path, threads: int | None = None) -> None:
        self.model = Path(model)
        self._session = session(self.model, threads)
        known = description(self._session, self.model)
        try:
            self.fingerprint = str(known["fingerprint"])
            self.precision = str(known["precision"])
            self.resolution = int(known["encoder"]["resolution"])
            pooling = str(known["encoder"]["pooling"])
        except (KeyError, TypeError, ValueError) as error:
            raise FineSightError(f"What {model} says about itself is damaged: {error}") from error
        self.spaces = spaces_of(pooling)
        self._outputs = [*(output_of(space, pooling) for space in self.spaces), ATTENTION]

    def look(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Look]:
        """Views that have a region are pooled over it; the others as always."""
        regions = regions if regions is not None else [None] * len(views)
        return [self._look(view, region) for view, region in zip(views, regions, strict=True)]

    def _look(self, view: View, region: Box | None) -> Look:
        given: dict[str, Any] = {IMAGES: view.pixels[None]}
        if region is not None:
            given[REGION] = region_share(view, region)[None]
        *features, mask = self._session.run(self._outputs, given)  # (1, D) each, (1, H, W)
        return Look({space: unit(one[0]) for space, one in zip(self.spaces, features, strict=True)}, mask[0])


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
