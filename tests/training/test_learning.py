"""Every method learns: on drawn look-alikes its features find more of the same species than those it began with."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from torch import nn

from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.evaluation.retrieval import retrieval
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.methods.base import OBJECTIVES, find_method
from finesight.training.batches import Batches
from finesight.training.config import build_config
from finesight.training.module import TrainingModule
from finesight.training.save_encoder import make_encoder
from small import drive

pytestmark = pytest.mark.slow

SPECIES, SIDE, BATCH, EPOCHS = 10, 40, 32, 15
MARGIN, SEEDS = 2.0, 5  # points of mAP
SETTINGS: dict[str, Any] = {
    "batch_size": BATCH,
    "epochs": EPOCHS,
    "backbone.name": "test_resnet",
    "backbone.weights": "random",
    "backbone.output_stride": 8,
    "views.resolution": SIDE,
    "views.scale": (0.3, 1.0),
    "views.brightness": 0.4,
    "views.contrast": 0.4,
    "views.saturation": 0.2,
    "views.hue": 0.05,
    "views.gray": 0.0,
    "views.blur": 0.5,
    "views.second_blur": 0.5,
    "views.second_solarize": 0.0,
    "optim.optimizer": "sgd",
    "optim.cosine": "epoch",
    "optim.warmup_epochs": 0.0,
}
# Heads as small as the network, and rates for as few steps from random weights as these.
METHODS: dict[str, dict[str, Any]] = {
    "barlow-twins": {"epochs": 6, "optim.lr": 1e-4, "objective.hidden": 512, "objective.dim": 512},
    "byol": {"optim.lr": 0.05, "objective.hidden": 256, "objective.dim": 64, "objective.momentum": 0.99},
    "cvsa": {  # where the birds are is drawn with them
        "epochs": 6,
        "optim.lr": 0.03,
        "objective.dim": 64,
        "objective.momentum": 0.99,
        "saliency.source": "files",
    },
    "dino": {  # the shyest: its teacher gains 3.2 points with this seed, 0.4 with two others
        "epochs": 12,
        "optim.lr": 0.02,
        "optim.warmup_epochs": 2.0,
        "optim.cosine": "step",
        "views.local_crops": 0,
        "objective.hidden": 2048,  # what a rate does to the head depends on its width
        "objective.bottleneck": 16,
        "objective.prototypes": 64,
        "objective.momentum": 0.99,
        "objective.center_momentum": 0.5,
        "objective.student_temperature": 0.05,
        "objective.teacher_temperature": 0.01,
    },
    "lewel": {"epochs": 6, "optim.lr": 0.03, "objective.hidden": 256, "objective.dim": 64, "objective.momentum": 0.99},
    "lewel-byol": {  # slow: 3.2 to 5.3 points with three seeds, in half as many epochs 1.4 to 2.9
        "epochs": 30,
        "optim.lr": 0.05,
        "objective.hidden": 256,
        "objective.dim": 64,
        "objective.momentum": 0.95,
    },
    "moco-v2": {"epochs": 10, "optim.lr": 0.03, "objective.dim": 64, "objective.momentum": 0.99},
    "simclr": {
        "epochs": 6,
        "optim.lr": 0.02,
        "objective.hidden": 128,
        "objective.dim": 64,
        "objective.temperature": 0.5,
    },
    "simsiam": {  # with the color changes of the others it learns nothing: -2 points over five seeds, this way 5
        "epochs": 20,
        "optim.lr": 0.03,
        "views.brightness": 0.2,
        "views.contrast": 0.2,
        "views.saturation": 0.0,
        "views.hue": 0.0,
        "objective.hidden": 256,
        "objective.dim": 64,
        "objective.bottleneck": 256,
    },
    "supervised": {
        "epochs": 3,
        "optim.lr": 0.03,
        "optim.backbone_lr_ratio": 1.0,
        "views.jitter": 0.0,
        "views.blur": 0.0,
    },
    "vicreg": {"epochs": 10, "optim.lr": 0.003, "objective.hidden": 256, "objective.dim": 256},
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> DecodedCache:
    settings = LookalikesConfig(species=SPECIES, train_per_species=24, test_per_species=20, size=56)
    source = make_lookalikes(tmp_path_factory.mktemp("learning") / "birds", settings)
    return open_cache(source, cache_side(SIDE), cache_dir=tmp_path_factory.mktemp("cache"), progress=False)


def part(cache: DecodedCache, split: str) -> np.ndarray:
    return np.flatnonzero(cache.source.splits == split)


def settled(encoder: Encoder, cache: DecodedCache) -> Encoder:
    """With batch statistics of the train images as they are: a network that begins at random has none yet."""
    encoder = copy.deepcopy(encoder)
    norms = [module for module in encoder.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    extract(encoder, cache, part(cache, "train"), ("average",), progress=False)
    return encoder.eval()


def score(module: TrainingModule, cache: DecodedCache) -> float:
    """Mean average precision on the test images, in percent."""
    encoder = settled(make_encoder(module.config, module), cache)
    images = part(cache, "test")
    features = extract(encoder, cache, images, ("average",), progress=False).features["average"]
    return retrieval(features, cache.source.labels[images]).score("mAP")


def gain(method: str, cache: DecodedCache, **settings: Any) -> float:
    """What training adds to the score of the network as it was."""
    images = part(cache, "train")
    config = build_config({**SETTINGS, **METHODS[method], **settings, "method": method, "data": str(cache.source.root)})
    module = TrainingModule(config, images=len(images), steps_per_epoch=len(images) // BATCH, classes=SPECIES)
    before = score(module, cache)
    module.hook.on_fit_start(cache, images)
    module.train()
    for batch in Batches(cache, images, batch_size=BATCH, epochs=config.epochs, seed=config.seed, hook=module.hook):
        drive(module, batch)
    return score(module, cache) - before


def test_every_objective_is_here() -> None:
    assert {find_method(method).objective for method in METHODS} == set(OBJECTIVES)


@pytest.mark.parametrize("method", METHODS)
def test_training_improves_retrieval(method: str, drawn: DecodedCache) -> None:
    """Runs this short depend on how a processor rounds: SimSiam gained 1.3 to 12.7 points with five seeds, and without
    learning nobody gains half a point (below). So one seed of some must do.
    """
    gains: list[float] = []
    while len(gains) < SEEDS and max(gains, default=0.0) <= MARGIN:
        gains.append(gain(method, drawn, seed=len(gains)))
    assert max(gains) > MARGIN, gains


@pytest.mark.parametrize("method", ["moco-v2", "supervised"])
def test_nothing_improves_without_a_learning_rate(method: str, drawn: DecodedCache) -> None:
    """The margin is one of learning, not of views, batch statistics or chance."""
    assert abs(gain(method, drawn, **{"optim.lr": 1e-12, "epochs": 1})) < MARGIN / 4
