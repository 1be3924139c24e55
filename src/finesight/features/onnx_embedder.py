"""Embed views with onnxruntime: searching where there is no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finesight.errors import FineSightError
from finesight.features.embedder import unit
from finesight.features.onnx_runtime import ATTENTION, IMAGES, REGION, open_session, output_of, read_metadata
from finesight.features.preprocess import region_share
from finesight.features.types import Box, Embedding, View
from finesight.nn.poolings import find_pooling


class OnnxEmbedder:
    """An ``Embedder`` that runs a file of ``finesight export``, one image at a time: a feature is its image's own."""

    def __init__(self, model: str | Path) -> None:
        self.model = Path(model)
        self._session = open_session(self.model)
        metadata = read_metadata(self._session, self.model)
        try:
            self.fingerprint = str(metadata["fingerprint"])
            self.resolution = int(metadata["encoder"]["resolution"])
            pooling = find_pooling(str(metadata["encoder"]["pooling"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FineSightError(f"What {model} says about itself is damaged: {error}") from error
        self.spaces = pooling.spaces
        self._outputs = [*(output_of(space, pooling) for space in self.spaces), ATTENTION]

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        """Return one embedding per view; a view that has a region is pooled over that part alone."""
        regions = regions if regions is not None else [None] * len(views)
        return [self._encode(view, region) for view, region in zip(views, regions, strict=True)]

    def _encode(self, view: View, region: Box | None) -> Embedding:
        inputs: dict[str, Any] = {IMAGES: view.pixels[None]}
        if region is not None:
            inputs[REGION] = region_share(view, region)[None]
        *features, mask = self._session.run(self._outputs, inputs)  # (1, D) each, (1, H, W)
        return Embedding({space: unit(one[0]) for space, one in zip(self.spaces, features, strict=True)}, mask[0])
