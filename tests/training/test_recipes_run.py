"""Every system of the paper, small: it trains, is saved, loaded and used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finesight.data.cache import open_cache
from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import ImageSource
from finesight.features.encoder import Encoder
from finesight.methods.base import METHODS, find_method
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.metrics_log import metric_series
from finesight.training.train import train
from small import SMALL, small_settings

BATCH = 8


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> ImageSource:
    settings = LookalikesConfig(species=2, train_per_species=BATCH // 2, test_per_species=2, size=40)
    return make_lookalikes(tmp_path_factory.mktemp("recipes") / "birds", settings)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> RuntimeConfig:
    return RuntimeConfig(cache_dir=tmp_path_factory.mktemp("cache"), progress=False, log_every=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_trains_is_saved_and_embeds(
    method: str, birds: ImageSource, runtime: RuntimeConfig, tmp_path: Path
) -> None:
    objective = find_method(method).objective
    settings: dict[str, Any] = {**SMALL, "data": str(birds.root), "method": method, "validation.fraction": 0.0}
    config = build_config(
        settings | small_settings(method)
    )  # two epochs of one step: what an epoch begins with happens too
    run = train(config, tmp_path / "run", runtime)
    encoder = Encoder.load(run.root)
    assert encoder.config.method == method
    if objective is not None:
        assert [step for step, _ in metric_series(run.metrics_file)["loss"]] == [0, 1]
        assert all(np.isfinite(value) for _, value in metric_series(run.metrics_file)["loss"])
    cache = open_cache(birds.split("test"), 37, cache_dir=runtime.cache_dir, progress=False)
    features = encoder.embed(encoder.cached_views(cache, range(4)))
    wide = encoder.branch.projections if encoder.config.pooling == "bilinear" and encoder.branch else 1
    assert features.shape == (4, wide * encoder.channels)
    assert torch.isfinite(features).all()
    assert features.std(0).max() > 0, "images differ"
    alone = encoder.embed(encoder.cached_views(cache, [2]))
    apart = (alone - features[2:3]).norm() / alone.norm()
    assert apart <= 1e-5, "a feature depends on the images beside it by rounding only"
