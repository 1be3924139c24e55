"""Training low-rank updates: what is saved is a plain network, a run goes on, two processes agree."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finesight.features.encoder import Encoder
from finesight.training.module import TrainingModule
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import frozen_encoder, make_encoder
from processes import TooLate, command, in_time, refused, rows, succeeded, trained
from ranks import stopped_pair
from small import assert_continues, small_module, take_step

VIT: dict[str, Any] = {
    "backbone.name": "test_vit",
    "backbone.output_stride": 32,
    "views.local_resolution": 16,
    "backbone.freeze": 2,
    "backbone.lora": 4,
    "optim.optimizer": "adamw",
    "optim.lr": 1e-2,
}
TINY = (
    *("--backbone", "test_vit", "--weights", "random", "--resolution", "32", "--batch-size", "8", "--projections", "4"),
    *("--freeze", "3", "--set", "backbone.lora=2"),
    *("--log-every", "1", "--accelerator", "cpu", "--quiet"),
)


def learned(method: str = "lcr", **settings: Any) -> TrainingModule:
    module = small_module(method, **VIT, **settings)
    for step in range(3):
        take_step(module, step)
    return module


def weights(encoder: Encoder) -> dict[str, torch.Tensor]:
    return encoder.backbone.state_dict()


@pytest.mark.parametrize("method", ["lcr", "dino"])  # dino keeps its momentum copy
def test_the_encoder_is_a_plain_network_that_computes_the_same(method: str, tmp_path: Path) -> None:
    module = learned(method)
    encoder = make_encoder(module.config, module)
    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder")
    assert loaded.backbone.config.lora == 0
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mine = module.objective.exported.eval()(images)
        torch.testing.assert_close(loaded.backbone(images), mine, rtol=1e-5, atol=1e-5)
    start = weights(frozen_encoder(module.config))
    moved = {name for name, value in weights(loaded).items() if not torch.equal(value, start[name])}
    layers = {f"model.blocks.{block}.attn.{layer}.weight" for block in range(1, 6) for layer in ("qkv", "proj")}
    assert moved == layers


def test_mixed_with_the_initial_weights_half_of_the_update_is_left() -> None:
    whole, half = (make_encoder(m.config, m) for m in (learned(), learned(initial_weight_ratio=0.5)))
    start = weights(frozen_encoder(learned().config))
    for name, value in weights(half).items():
        torch.testing.assert_close(value - start[name], (weights(whole)[name] - start[name]) / 2, rtol=1e-4, atol=1e-7)
    assert any((weights(whole)[name] - value).abs().max() > 1e-4 for name, value in start.items())


def test_stopped_and_continued_is_never_stopped() -> None:
    assert_continues(*(small_module("lcr", **VIT) for _ in range(3)))


def test_updates_learn_by_parts() -> None:
    module = small_module("moco-v2", **{**VIT, "optim.layer_decay": 0.5, "optim.lr": 0.8})
    names = {id(p): name for name, p in module.objective.backbone.model.named_parameters()}
    found = {names[id(p)]: g["base_lr"] for g in module.optimizer.param_groups for p in g["params"] if id(p) in names}
    assert {name.split(".")[1]: rate for name, rate in found.items()} == pytest.approx(
        {"1": 0.05, "2": 0.1, "3": 0.2, "4": 0.4, "5": 0.8}
    )


@pytest.mark.slow
def test_two_processes_learn_as_one_and_go_on(birds: Path, tmp_path: Path) -> None:
    """Those that are interrupted, with Ctrl-C in both, go on in one process and end as if nothing had been."""
    options = ("--data", str(birds), "--epochs", "3", *TINY)
    one = tmp_path / "one"
    trained(one, *options)

    def interrupt(place: Path) -> None:
        two = place / "run"
        code, err = stopped_pair(two, 4, lambda pair: os.killpg(pair, signal.SIGINT), *options)
        if len(rows(two)) == 15:
            raise TooLate
        assert code == 130, err
        assert len(rows(two)) >= 4
        trained(two, *options)
        assert_same_training(one, two)

    in_time(interrupt, tmp_path)


def assert_same_training(one: Path, two: Path) -> None:
    losses = [[float(row["loss"]) for row in rows(run)] for run in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    first, second = (load_file(run / "encoder" / "encoder.safetensors") for run in (one, two))
    start = weights(frozen_encoder(RunFolder(one).config()))
    moved = sum(float((first[f"backbone.{name}"] - value).square().sum()) for name, value in start.items()) ** 0.5
    apart = sum(float((first[f"backbone.{name}"] - second[f"backbone.{name}"]).square().sum()) for name in start) ** 0.5
    assert moved > 0
    assert apart < 1e-2 * moved


@pytest.mark.slow
def test_the_gentle_preset_with_updates_from_the_command_line(birds: Path, tmp_path: Path) -> None:
    """Trained, saved without peft's layers (so exported as every transformer is), and scored."""
    out = tmp_path / "run"
    tiny = ("--backbone", "test_vit", "--weights", "random", "--resolution", "32", "--test-resolution", "32")
    options = (
        "--preset",
        "gentle",
        "--set",
        "backbone.lora=4",
        "--epochs",
        "2",
        "--batch-size",
        "8",
        "--projections",
        "4",
    )
    succeeded(command("train", "--data", birds, "--out", out, *tiny, *options, "--accelerator", "cpu", "--quiet"))
    config = RunFolder(out).config()
    assert (config.optim.optimizer, config.backbone.lora, config.backbone.freeze) == ("adamw", 4, 4)
    kept = load_file(out / "encoder" / "encoder.safetensors")
    assert not [name for name in kept if "lora" in name or "base_layer" in name]
    succeeded(command("evaluate", out, "--data", birds, "--json", "--quiet"))


def test_a_rank_below_zero_is_refused(birds: Path, tmp_path: Path) -> None:
    wrong = ("--set", "backbone.lora=-1")
    refused(command("train", "--data", birds, "--out", tmp_path / "x", *TINY, *wrong), "backbone.lora", "-1")
