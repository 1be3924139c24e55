"""Encoders of a few thousand random weights, one for each pooling and reading."""

from __future__ import annotations

import torch

from finesight.features.encoder import Encoder, EncoderConfig
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.pooling import uses_rationale
from finesight.nn.pooling_config import POOLINGS, PoolingName
from finesight.rationale.config import READINGS, ReadingName

KINDS: list[tuple[PoolingName, ReadingName | None]] = [
    (pooling, reading)
    for pooling in POOLINGS
    for reading in (None, *READINGS)
    if reading is not None or not uses_rationale(pooling)
]


def small_encoder(pooling: PoolingName, reading: ReadingName | None) -> Encoder:
    rationale = None if reading is None else READINGS[reading].model_copy(update={"projections": 4})
    config = EncoderConfig(
        method="lcr",
        resolution=32,
        pooling=pooling,
        backbone=BackboneConfig(name="test_resnet", weights="random", output_stride=8),
        rationale=rationale,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        return Encoder.untrained(config)
