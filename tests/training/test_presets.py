"""What a run is made of where nothing is given: for every method, any number of images, both kinds of weights."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from finesight.methods.base import METHODS
from finesight.training.config import TrainConfig, build_config
from finesight.training.gentle import choose_settings
from finesight.training.lengths import Circumstances, fit_batch, suitable_steps

TRAINED = [name for name, method in METHODS.items() if method.objective is not None]


def chosen_config(given: dict[str, Any], there: Circumstances, preset: str) -> TrainConfig:
    chosen = choose_settings(given, there, preset)
    assert all(choice.reason for choice in chosen.values())
    assert not chosen.keys() & given.keys()
    return build_config({**{key: choice.value for key, choice in chosen.items()}, "data": "-", **given})


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.parametrize("images", [50, 200, 5_000, 1_000_000])
@pytest.mark.parametrize("gpu", [False, True])
def test_gentle_settings_spare_a_pretrained_network(method: str, images: int, gpu: bool) -> None:
    config = chosen_config({"method": method}, Circumstances(images, True, gpu), "gentle")
    per_epoch = images // config.batch_size
    steps = config.count_steps(per_epoch)
    assert steps == suitable_steps(images)
    assert per_epoch >= 4
    assert images % config.batch_size <= images // 10
    assert config.epochs == math.ceil(steps / per_epoch)
    assert config.backbone.freeze == 3
    assert config.backbone.frozen_norm
    assert config.initial_weight_ratio == 0.5
    assert (config.views.resolution, config.encoder_resolution) == (128, 224)
    assert config.pooling != "average"
    optim = config.optim
    assert optim.freeze_epochs * per_epoch == pytest.approx(steps / 4, abs=0.01 * steps)
    assert optim.warmup_epochs <= 0.11 * steps / per_epoch
    assert optim.cosine == "step"
    assert optim.lr * optim.backbone_lr_ratio <= (0.031 if optim.optimizer == "lars" else 0.0091)
    assert getattr(config.objective, "freeze_epochs", 0) <= 0.11 * steps / per_epoch


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.parametrize("images", [50, 200, 5_000, 1_000_000])
def test_random_weights_take_the_papers_recipe_in_a_batch_that_suits(method: str, images: int) -> None:
    config = chosen_config({"method": method}, Circumstances(images, False), "scratch")
    paper = build_config({"method": method, "data": "-", "batch_size": config.batch_size})
    assert config == paper
    assert config.batch_size <= 128
    assert images // config.batch_size >= 4


@pytest.mark.parametrize(("images", "size"), [(2, 2), (9, 9), (45, 9), (180, 20), (270, 32), (10_000, 32)])
def test_a_batch_leaves_several_steps_and_few_images_out(images: int, size: int) -> None:
    assert fit_batch(Circumstances(images, True), 32, 128).value == size


def test_a_batch_can_be_shared_and_fits_the_memory() -> None:
    assert fit_batch(Circumstances(10_000, True, processes=3), 32, 128).value == 30
    little = fit_batch(Circumstances(10_000, True, memory=2.0), 32, 128)
    assert little.value == 10
    assert "2.0 GB" in little.reason


def test_what_is_given_wins() -> None:
    given = {"method": "lcr", "batch_size": 16, "epochs": 8, "views.hue": 0.3, "backbone.freeze": 1}
    config = chosen_config(given, Circumstances(1500, True), "gentle")
    assert (config.batch_size, config.epochs, config.max_steps) == (16, 8, None)
    assert (config.views.hue, config.backbone.freeze) == (0.3, 1)
    assert config.optim.freeze_epochs == 2, "a quarter of the given length"
    config = chosen_config({"max_steps": 40}, Circumstances(1500, True), "gentle")
    assert config.count_steps(46) == 40
    assert config.optim.freeze_epochs * 46 == pytest.approx(10, abs=0.01)


@pytest.mark.parametrize(
    ("backbone", "frozen", "parts", "batch_norms"),
    [
        ("resnet18", 3, "5 parts (stem and stages)", True),
        ("convnext_tiny", 3, "5 parts (stem and stages)", False),
        ("efficientnet_b0", 4, "8 parts (stem and stages)", True),
        ("densenet121", 3, "5 parts (stem and stages)", True),
        ("swin_tiny_patch4_window7_224", 3, "5 parts (stem and stages)", False),
        ("vit_small_patch14_dinov2", 7, "13 parts (stem and blocks)", False),
    ],
)
def test_every_backbone_is_frozen_in_part(backbone: str, frozen: int, parts: str, batch_norms: bool) -> None:
    """Batch norms are spoken of only where there are some."""
    chosen = choose_settings({"backbone.name": backbone}, Circumstances(1500, True), "gentle")
    assert chosen["backbone.freeze"].value == frozen
    assert f"the first {frozen} of {parts}" in chosen["backbone.freeze"].reason
    assert ("backbone.frozen_norm" in chosen) == batch_norms
    assert any("batch norm" in choice.reason for choice in chosen.values()) == batch_norms
    chosen_config({"backbone.name": backbone}, Circumstances(1500, True), "gentle")


@pytest.mark.parametrize("method", TRAINED)
def test_transformers_get_adamw_whatever_the_method(method: str) -> None:
    given = {"method": method, "backbone.name": "vit_small_patch14_dinov2"}
    config = chosen_config(given, Circumstances(1500, True), "gentle")
    optim = config.optim
    assert (optim.optimizer, optim.lr, optim.layer_decay, optim.weight_decay) == ("adamw", 5e-4, 0.75, 0.05)
    assert optim.lr * optim.backbone_lr_ratio == pytest.approx(5e-5)
    assert (config.backbone.freeze, config.backbone.lora, config.initial_weight_ratio) == (7, 0, 0.5)
    assert not config.backbone.frozen_norm


@pytest.mark.parametrize("setting", [{"optim.optimizer": "sgd"}, {"optim.lr": 0.02}])
def test_a_given_optimizer_or_rate_keeps_the_methods_own(setting: dict[str, Any]) -> None:
    given = {"backbone.name": "test_vit", **setting}
    optim = chosen_config(given, Circumstances(1500, True), "gentle").optim
    assert (optim.optimizer, optim.layer_decay, optim.backbone_lr_ratio) == ("sgd", 1.0, 0.3)


def test_large_transformers_get_lora() -> None:
    """304 million weights; a base model has 86 million. The rate is that of the updates then."""
    given = {"backbone.name": "vit_large_patch14_dinov2"}
    chosen = choose_settings(given, Circumstances(1500, True), "gentle")
    assert chosen["backbone.lora"].value == 8
    assert "304 million weights" in chosen["backbone.lora"].reason
    config = chosen_config(given, Circumstances(1500, True), "gentle")
    assert (config.optim.layer_decay, config.optim.lr * config.optim.backbone_lr_ratio) == (1.0, pytest.approx(2e-4))
    assert config.backbone.freeze == 15
    for other in (
        {"backbone.lora": 0},
        {"backbone.name": "vit_base_patch16_224"},
        {"backbone.name": "convnext_xxlarge"},
    ):
        assert chosen_config({**given, **other}, Circumstances(1500, True), "gentle").backbone.lora == 0


def test_without_peft_the_preset_says_how_to_get_it() -> None:
    """The package is hidden from a process of its own."""
    program = (
        "import sys; sys.modules['peft'] = None\n"
        "from finesight.training.gentle import choose_settings\n"
        "from finesight.training.lengths import Circumstances\n"
        "given = {'backbone.name': 'vit_large_patch14_dinov2'}\n"
        "print(choose_settings(given, Circumstances(1500, True), 'gentle')['backbone.lora'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    assert "value=0" in done.stdout
    assert "pip install finesight[lora]" in done.stdout


def test_a_frozen_network_gets_its_best_pooling_and_nothing_else() -> None:
    chosen = choose_settings({"method": "frozen"}, Circumstances(None, True), "gentle")
    assert {key: choice.value for key, choice in chosen.items()} == {"test_pooling": "energy-gem"}
