"""Encoders of a few thousand random weights, one for each pooling and variant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.poolings import find_pooling, offered_poolings
from finesight.rationale.config import VARIANTS, VariantName

KINDS: list[tuple[str, VariantName | None]] = [
    (name, variant)
    for name, pooling in offered_poolings().items()
    for variant in (None, *VARIANTS)
    if variant is not None or not pooling.needs_branch
    if variant is None or not pooling.needs_class_token
]


def small_encoder(pooling: str, variant: VariantName | None) -> Encoder:
    tokens = find_pooling(pooling).needs_class_token
    rationale = None if variant is None else VARIANTS[variant].model_copy(update={"projections": 4})
    config = EncoderConfig(
        method="lcr",
        resolution=32,
        pooling=pooling,
        backbone=BackboneConfig(
            name="test_vit" if tokens else "test_resnet", weights="random", output_stride=32 if tokens else 8
        ),
        rationale=rationale,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        return Encoder.untrained(config)


@dataclass(frozen=True)
class ExportedRun:
    """A run with its projections' responses, in fp32 and int8. Not to be written to."""

    folder: Path
    printed: dict[str, Any]  # by the command with --json

    @property
    def file(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def int8(self) -> Path:
        return self.folder / "model.int8.onnx"
