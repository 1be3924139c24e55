"""The pooling that training leaves to the encoder: with its settings, and refused at once where it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from finesight.errors import FineSightError
from finesight.training.config import build_config
from finesight.training.save_encoder import frozen_encoder, make_encoder
from finesight.training.train import train
from small import SMALL, small_module


@pytest.mark.parametrize(("method", "pooling"), [("lcr", "rationale-gem-two-maps"), ("moco-v2", "energy-gem-two-maps")])
def test_two_maps_and_their_weight(method: str, pooling: str) -> None:
    module = small_module(method, test_pooling=pooling, earlier_weight=0.3)
    encoder = make_encoder(module.config, module)
    assert (encoder.config.pooling, encoder.config.earlier_weight) == (pooling, 0.3)
    assert encoder.embed(torch.randn(2, 3, 32, 32)).shape == (2, 96 + 192)
    assert frozen_encoder(module.config).config.earlier_weight == 0.3
    with pytest.raises(FineSightError, match="earlier_weight"):
        build_config({**SMALL, "earlier_weight": -1})


@pytest.mark.parametrize(
    ("pooling", "name", "words"),
    [("energy-gem-two-maps", "test_vit", "no map of an earlier stage"), ("attention", "test_resnet", "class token")],
)
def test_one_that_the_network_cannot_have_is_refused_before_training(
    birds: Path, tmp_path: Path, pooling: str, name: str, words: str
) -> None:
    settings = {**SMALL, "backbone.name": name, "backbone.output_stride": 32, "views.resolution": 64}
    config = build_config({**settings, "data": str(birds), "method": "moco-v2", "test_pooling": pooling})
    with pytest.raises(FineSightError, match=words):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.csv").exists()
