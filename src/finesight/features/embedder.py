"""Embed views with torch, or with onnxruntime where there is no torch. Importing this loads neither."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from finesight.data.geometry import Framing
from finesight.errors import FineSightError
from finesight.features.encoder_folder import fingerprint
from finesight.features.onnx_runtime import (
    ATTENTION,
    AVERAGE,
    IMAGES,
    REGION,
    open_session,
    output_of,
    read_metadata,
)
from finesight.features.preprocess import region_share
from finesight.features.types import Box, Embedding, EncoderFacts, Floats, View
from finesight.nn.poolings import find_pooling, whole_picture_only

if TYPE_CHECKING:
    from finesight.features.encoder import Encoder


def unit(features: Floats) -> Floats:
    """Scale vectors to length 1; a zero vector stays zero. (..., D) -> (..., D)"""
    length = np.sqrt(np.square(features, dtype=np.float64).sum(-1, keepdims=True))
    scaled: Floats = (features / np.maximum(length, np.finfo(np.float32).tiny)).astype(np.float32)
    return scaled


class TorchEmbedder:
    """An ``Embedder`` that runs an encoder in torch; a feature depends on its batch by rounding only, as there."""

    def __init__(self, encoder: Encoder, fingerprint: str) -> None:
        self.encoder, self.fingerprint = encoder, fingerprint
        self.spaces = find_pooling(encoder.config.pooling).spaces
        self.framing = encoder.config.framing

    @classmethod
    def load(cls, run: str | Path, *, exact: bool = False) -> Self:
        """Load from an encoder folder, or from the run folder that holds one."""
        from finesight.features.encoder import Encoder

        encoder = Encoder.load(run, exact=exact)  # first: it explains what is missing
        return cls(encoder, fingerprint(run))

    @property
    def facts(self) -> EncoderFacts:
        """What an index keeps of the encoder."""
        config = self.encoder.config
        widths = {space: self.encoder.feature_width(space) for space in self.spaces}
        return EncoderFacts(config.method, str(config.backbone.weights), self.encoder.channels, widths)

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        """Return one embedding per view; a view that has a region is pooled over that part alone."""
        regions = regions if regions is not None else [None] * len(views)
        if len(regions) != len(views):
            raise ValueError(f"{len(views)} views but {len(regions)} regions")
        embeddings: dict[int, Embedding] = {}
        for rows in self._batches(regions):
            embeddings |= zip(rows, self._encode([views[i] for i in rows], [regions[i] for i in rows]), strict=True)
        return [embeddings[i] for i in range(len(views))]

    def _batches(self, regions: Sequence[Box | None]) -> list[list[int]]:
        """Group the views, those with a region and those without; one by one if masks depend on the batch."""
        every = range(len(regions))
        on_gpu = self.encoder.device.type != "cpu"
        size = len(regions) if on_gpu else self.encoder.batch_size(self.framing.resolution**2)
        size = 1 if self.encoder.pooler.joint_masks else size
        groups = [i for i in every if regions[i] is None], [i for i in every if regions[i] is not None]
        return [group[start : start + size] for group in groups for start in range(0, len(group), size)]

    def _encode(self, views: Sequence[View], regions: Sequence[Box | None]) -> list[Embedding]:
        import torch

        shares = [region_share(view, box) for view, box in zip(views, regions, strict=True) if box is not None]
        inputs = self.encoder.normalize(np.stack([view.pixels for view in views]))
        output = self.encoder.encode(
            inputs, self.spaces, regions=torch.from_numpy(np.stack(shares)) if shares else None
        )
        features = {name: unit(values.numpy()) for name, values in output.features.items()}
        masks = output.attention.numpy()
        return [Embedding({name: values[i] for name, values in features.items()}, masks[i]) for i in range(len(views))]


class OnnxEmbedder:
    """An ``Embedder`` that runs a file of ``finesight export``, one image at a time: a feature is its image's own."""

    def __init__(self, model: str | Path) -> None:
        self.model = Path(model)
        self._session = open_session(self.model)
        metadata = read_metadata(self._session, self.model)
        try:
            self.fingerprint = str(metadata["fingerprint"])
            self.framing = Framing.of(metadata["encoder"])
            pooling = find_pooling(str(metadata["encoder"]["pooling"]))
            there = {one.name for one in (*self._session.get_outputs(), *self._session.get_inputs())}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FineSightError(f"What {model} says about itself is damaged: {error}") from error
        self.spaces = pooling.spaces
        self._pooling = pooling
        self._outputs = [*(output_of(space, pooling) for space in self.spaces), ATTENTION]
        if missing := {IMAGES, *self._outputs} - there:
            raise FineSightError(f"{model} is damaged: its graph has no {', '.join(sorted(missing))}. Export it again.")
        self._metadata = metadata

    @property
    def facts(self) -> EncoderFacts:
        """What an index keeps of the encoder."""
        columns = {output.name: output.shape[-1] for output in self._session.get_outputs()}
        widths = {space: columns[output_of(space, self._pooling)] for space in self.spaces}
        if not all(isinstance(width, int) for width in (columns[AVERAGE], *widths.values())):
            raise FineSightError(f"{self.model} does not say how many numbers its features have. Export it again.")
        encoder = self._metadata["encoder"]
        try:
            return EncoderFacts(str(encoder["method"]), str(encoder["backbone"]["weights"]), columns[AVERAGE], widths)
        except (KeyError, TypeError) as error:
            raise FineSightError(f"What {self.model} says about itself is damaged: {error}") from error

    @property
    def precision(self) -> str:
        """``fp32`` or ``int8``."""
        return str(self._metadata.get("precision", "fp32"))

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        """Return one embedding per view; a view that has a region is pooled over that part alone."""
        regions = regions if regions is not None else [None] * len(views)
        return [self._encode(view, region) for view, region in zip(views, regions, strict=True)]

    def _encode(self, view: View, region: Box | None) -> Embedding:
        inputs: dict[str, Any] = {IMAGES: view.pixels[None]}
        if region is not None:
            if not self._pooling.can_narrow:
                raise FineSightError(whole_picture_only(self._pooling))
            inputs[REGION] = region_share(view, region)[None]
        *features, mask = self._session.run(self._outputs, inputs)  # (1, D) each, (1, H, W)
        return Embedding({space: unit(one[0]) for space, one in zip(self.spaces, features, strict=True)}, mask[0])
