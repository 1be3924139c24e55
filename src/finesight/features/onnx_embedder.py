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
from finesight.features.types import Box, Embedding, View


class OnnxEmbedder:
    """A file of ``finesight export`` as an embedder. One image at a time: a feature does not depend on its batch."""

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

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        """Views that have a region are pooled over it; the others as always."""
        regions = regions if regions is not None else [None] * len(views)
        return [self._encode(view, region) for view, region in zip(views, regions, strict=True)]

    def _encode(self, view: View, region: Box | None) -> Embedding:
        given: dict[str, Any] = {IMAGES: view.pixels[None]}
        if region is not None:
            given[REGION] = region_share(view, region)[None]
        *features, mask = self._session.run(self._outputs, given)  # (1, D) each, (1, H, W)
        return Embedding({space: unit(one[0]) for space, one in zip(self.spaces, features, strict=True)}, mask[0])
