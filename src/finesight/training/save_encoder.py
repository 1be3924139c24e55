"""What leaves a run: the encoder, and the branches that were studied beside its own."""

from __future__ import annotations

import copy

import torch
from safetensors.torch import load_file, save_file

from finesight.features.encoder import Encoder, EncoderConfig
from finesight.nn.backbone import Backbone
from finesight.rationale.branch import FittingBranch
from finesight.training.config import TrainConfig
from finesight.training.module import TrainingModule
from finesight.training.run_folder import RunFolder


def untrained_encoder(config: TrainConfig) -> Encoder:
    """Return the network as training with ``config`` finds it, average pooled."""
    module = TrainingModule(config, images=2, steps_per_epoch=1)
    changes = {"method": "untrained", "pooling": "average", "rationale": None}
    backbone = module.objective.exported
    return Encoder(_encoder_config(config, backbone).model_copy(update=changes), backbone)


def make_encoder(config: TrainConfig, module: TrainingModule) -> Encoder:
    """Return the encoder as training has it now. It shares the weights unless initial ones are mixed in."""
    branch = module.rationale.branch if module.rationale is not None else None
    backbone = module.objective.exported
    if config.initial_weight_ratio > 0:
        backbone = mix_with_initial(backbone, config)
    return Encoder(_encoder_config(config, backbone), backbone, branch)


def mix_with_initial(backbone: Backbone, config: TrainConfig) -> Backbone:
    """Return a backbone with the average of trained and initial weights, which keeps what training forgot.

    After Wortsman et al., Robust fine-tuning of zero-shot models (CVPR 2022), batch statistics included.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.seed)  # as TrainingModule did, for weights that begin at random
        initial = Backbone(config.backbone).state_dict()
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
    )


def save_encoder(config: TrainConfig, run: RunFolder, module: TrainingModule) -> None:
    """Save the best encoder where the variant wants that, else the last. Its folder marks a finished run."""
    wants_best = config.rationale is not None and config.rationale.checkpoint == "best"
    best = wants_best and run.best_encoder.exists()
    encoder = Encoder.load(run.best_encoder) if best else make_encoder(config, module)
    if module.rationale is not None and len(module.rationale.study):
        save_file({k: v.contiguous().cpu() for k, v in module.rationale.study.state_dict().items()}, run.study)
    encoder.save(run.encoder)


def save_frozen(config: TrainConfig, run: RunFolder) -> None:
    """Save the backbone with the weights it begins with, for methods that train nothing."""
    torch.manual_seed(config.seed)  # for random weights
    backbone = Backbone(config.backbone)
    Encoder(_encoder_config(config, backbone), backbone).save(run.encoder)


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
