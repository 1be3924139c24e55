"""The settings that the gentle preset chooses for transformers, from random weights on drawn birds: no collapse.

How good these settings are for pretrained weights cannot be told so.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest

from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.training.batches import Batches
from finesight.training.config import build_config
from finesight.training.gentle import choose_settings
from finesight.training.health import collapse_warning
from finesight.training.lengths import Circumstances
from finesight.training.module import TrainingModule
from small import drive

pytestmark = pytest.mark.slow

SPECIES, EACH, SIDE, BATCH, EPOCHS = 8, 16, 32, 32, 8
PER_EPOCH = SPECIES * EACH // BATCH


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> DecodedCache:
    root: Path = tmp_path_factory.mktemp("drawn")
    settings = LookalikesConfig(species=SPECIES, train_per_species=EACH, test_per_species=2, size=40)
    return open_cache(make_lookalikes(root / "birds", settings), cache_side(SIDE), cache_dir=root / "c", progress=False)


def trained(cache: DecodedCache, method: str, **settings: Any) -> list[dict[str, float]]:
    """The metrics of each step."""
    given = {"method": method, "backbone.name": "test_vit", "backbone.weights": "random", "batch_size": BATCH}
    given |= {"epochs": EPOCHS, "views.resolution": SIDE, "test_resolution": SIDE, "data": str(cache.source.root)}
    images = np.flatnonzero(cache.source.splits == "train")
    chosen = choose_settings({**given, **settings}, Circumstances(len(images), True), "gentle")
    config = build_config({**{key: choice.value for key, choice in chosen.items()}, **given, **settings})
    assert (config.optim.optimizer, config.backbone.freeze) == ("adamw", 4)
    module = TrainingModule(config, images=len(images), steps_per_epoch=PER_EPOCH, classes=SPECIES).train()
    history = []
    for batch in Batches(cache, images, batch_size=BATCH, epochs=EPOCHS, seed=config.seed, hook=module.hook):
        drive(module, batch)
        history.append(dict(module.metrics))
    return history


@pytest.mark.parametrize("lora", [0, 4])
def test_the_chosen_settings_do_not_collapse(drawn: DecodedCache, lora: int) -> None:
    history = trained(drawn, "lcr", **{"backbone.lora": lora})
    assert all(np.isfinite(list(step.values())).all() for step in history)
    assert not any(collapse_warning(step) for step in history[PER_EPOCH:])
    assert history[-1]["effective_rank"] > 4


def test_the_backbone_learns_beside_the_head(drawn: DecodedCache) -> None:
    """At the head's rate, for random weights have more to learn; and more than a head on a frozen network does."""
    end = {}
    for ratio in (0.0, 1.0):
        settings = {"optim.backbone_lr_ratio": ratio, "optim.lr": 2e-3}
        settings |= {"views.jitter": 0.0, "views.blur": 0.0, "optim.optimizer": "adamw", "optim.layer_decay": 0.75}
        end[ratio] = mean(step["objective"] for step in trained(drawn, "supervised", **settings)[-PER_EPOCH:])
    assert end[1.0] < end[0.0] - 0.05
