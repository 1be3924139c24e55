"""The Python API: the steps of the command line as functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finesight.evaluation.evaluate import Evaluation
from finesight.evaluation.evaluate import evaluate as evaluate_encoder
from finesight.features.encoder import Encoder, EncoderConfig
from finesight.nn.backbone_config import BackboneConfig
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.train import train as train_run


def load(path: str | Path) -> Encoder:
    """Return the encoder of a finished run (the run folder, or its ``encoder`` folder)."""
    return Encoder.load(path)


def train(
    data: str | Path, out: str | Path, *, runtime: RuntimeConfig | None = None, restart: bool = False, **settings: Any
) -> Encoder:
    """Train on ``data`` into the run folder ``out`` and load what it leaves behind; called again, it continues.

    ``settings`` are those of ``config.yaml``, nested or with dots: ``epochs=20``, ``**{"views.resolution": 112}``.
    """
    config = build_config({"data": str(data), **settings})
    return Encoder.load(train_run(config, Path(out), runtime, restart=restart).root)


def evaluate(encoder: Encoder | str | Path, data: str | Path, **options: Any) -> Evaluation:
    """Retrieval, linear probe and localization; see ``finesight.evaluation.evaluate``."""
    return evaluate_encoder(encoder if isinstance(encoder, Encoder) else load(encoder), data, **options)


def frozen(backbone: BackboneConfig, resolution: int, pooling: str = "average") -> Encoder:
    """Return a network with its weights as they are, the baseline of every training."""
    settings = EncoderConfig(method="frozen", resolution=resolution, pooling=pooling, backbone=backbone)
    return Encoder.untrained(settings)
