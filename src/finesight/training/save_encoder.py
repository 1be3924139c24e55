"""What leaves a run: the encoder, and the branches that were studied beside its own."""

from __future__ import annotations

import copy

import torch
from safetensors.torch import load_file

from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.features.encoder_folder import warn_of_random_weights
from finesight.io.atomic import atomic_path
from finesight.io.tensors import save_tensors
from finesight.nn.backbone import Backbone
from finesight.nn.feature_map import find_map
from finesight.rationale.branch import FittingBranch
from finesight.training.config import TrainConfig
from finesight.training.module import TrainingModule
from finesight.training.run_folder import RunFolder

# How a network that was not trained can be pooled (it has no rationale). rank-1 / mAP of an ImageNet ResNet-50:
#     birds, 200 classes (results/cub/cpu-200)   36.3 / 13.0   48.2 / 19.9   47.6 / 20.1   50.4 / 21.6
#     birds, 50 classes (results/cub/cpu-50)     55.7 / 26.2   65.7 / 35.1   63.6 / 35.5   66.2 / 36.8
#     cars, 16 classes of Stanford Cars               –        70.9 / 31.2        –        70.2 / 32.0
FROZEN_POOLINGS = ("average", "gem", "energy", "energy-gem")
FROZEN_POOLING = "energy-gem"  # the best of them in mAP on all three, and in rank-1 on both sets of birds


def frozen_pooling(backbone: str) -> str:
    """Return the best pooling of a network that was not trained: by its own attention where that can be had.

    Of a small vision transformer (results/signed-maps, docs/backbones.md) rank-1 / mAP are 40.6 / 22.8 by attention,
    39.7 / 21.7 by energy-gem, 39.6 / 21.8 by average and 40.7 / 22.5 by class-token-and-average.
    """
    return "attention" if find_map(backbone).map.attention else FROZEN_POOLING


def frozen_poolings(encoder: Encoder) -> tuple[str, ...]:
    """Return how a network that was not trained can be pooled: vision transformers in more ways than others."""
    found = encoder.backbone.map
    tokens = ("class-token", "class-token-and-average") if found.class_token else ()
    return (*FROZEN_POOLINGS, *tokens, *(("attention", "attention-gem") if found.attention else ()))


def frozen_encoder(config: TrainConfig, pooling: str = FROZEN_POOLING) -> Encoder:
    """Return the network with the weights that training with ``config`` begins with, to be compared with.

    No objective is built, and the random numbers of the caller stay as they are.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.seed)  # as TrainingModule does, for weights that begin at random
        backbone = Backbone(config.backbone.model_copy(update={"lora": 0, "lora_alpha": None}))
    changes = {"method": "frozen", "pooling": pooling, "rationale": None}
    return Encoder(_encoder_config(config, backbone).model_copy(update=changes), backbone)


def make_encoder(config: TrainConfig, module: TrainingModule) -> Encoder:
    """Return the encoder as training has it now: a plain network, updates of LoRA merged.

    It shares the weights unless they are merged or initial ones are mixed in.
    """
    branch = module.rationale.branch if module.rationale is not None else None
    backbone = module.objective.exported.merged()
    if config.initial_weight_ratio > 0:
        backbone = mix_with_initial(backbone, config)
    return Encoder(_encoder_config(config, backbone), backbone, branch)


def mix_with_initial(backbone: Backbone, config: TrainConfig) -> Backbone:
    """Return a backbone with the average of trained and initial weights, which keeps what training forgot.

    After Wortsman et al., Robust fine-tuning of zero-shot models (CVPR 2022), batch statistics included.
    """
    initial = frozen_encoder(config).backbone.state_dict()
    mixed = copy.deepcopy(backbone)
    for name, value in mixed.state_dict().items():
        if value.is_floating_point():
            value.lerp_(initial[name].to(value), config.initial_weight_ratio)
    return mixed


def _encoder_config(config: TrainConfig, backbone: Backbone) -> EncoderConfig:
    return EncoderConfig(
        method=config.method,
        resolution=config.encoder_resolution,
        pooling=config.pooling,
        backbone=backbone.config,
        rationale=config.rationale,
        mean=config.views.mean,
        std=config.views.std,
        interpolation=config.views.interpolation,
        crop_pct=config.views.crop_pct,
        crop_mode=config.views.crop_mode,
        earlier_weight=config.earlier_weight,
    )


def save_encoder(config: TrainConfig, run: RunFolder, module: TrainingModule) -> None:
    """Save the best encoder where the variant wants that, else the last. The run is finished then."""
    wants_best = config.rationale is not None and config.rationale.checkpoint == "best"
    best = wants_best and run.best_encoder.exists()
    encoder = Encoder.load(run.best_encoder) if best else make_encoder(config, module)
    if module.rationale is not None and len(module.rationale.study):
        with atomic_path(run.study) as scratch:
            save_tensors(module.rationale.study.state_dict(), scratch)
    encoder.save(run.encoder)
    run.goes_on.unlink(missing_ok=True)


def save_frozen(config: TrainConfig, run: RunFolder) -> None:
    """Save the encoder of a method that trains nothing."""
    frozen_encoder(config, config.pooling).save(run.encoder)
    warn_of_random_weights(run.encoder)


def load_studied_branches(run: RunFolder) -> dict[int, FittingBranch]:
    """Return the branches of other K that the run fitted beside its own (``rationale.study``)."""
    config = run.config().rationale
    if config is None or not config.study:
        return {}
    weights = load_file(run.study)
    branches = {}
    for k in config.study:
        own = {name.removeprefix(f"{k}."): value for name, value in weights.items() if name.startswith(f"{k}.")}
        branches[k] = FittingBranch(own["filters.weight"].shape[1], config.model_copy(update={"projections": k}))
        branches[k].load_state_dict(own)
    return branches
