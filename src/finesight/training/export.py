"""What leaves a run: the encoder, and the branches that were studied beside its own."""

from __future__ import annotations

from safetensors.torch import load_file, save_file

from finesight.config import TrainConfig
from finesight.encoder import Encoder, EncoderConfig
from finesight.rationale.branch import FittingBranch
from finesight.training.module import TrainingModule
from finesight.training.run import RunFolder


def untrained_encoder(config: TrainConfig) -> Encoder:
    """The network as training with ``config`` finds it, average pooled."""
    module = TrainingModule(config, images=2, steps_per_epoch=1)
    settings = _encoder_config(config, module).model_copy(update={"method": "untrained", "pooling": "average"})
    return Encoder(settings.model_copy(update={"rationale": None}), module.objective.backbone)


def encoder_of(config: TrainConfig, module: TrainingModule) -> Encoder:
    """As training has it now, sharing its weights."""
    branch = module.rationale.branch if module.rationale is not None else None
    return Encoder(_encoder_config(config, module), module.objective.backbone, branch)


def _encoder_config(config: TrainConfig, module: TrainingModule) -> EncoderConfig:
    return EncoderConfig(
        method=config.method,
        resolution=config.encoder_resolution,
        pooling=config.pooling,
        backbone=module.objective.backbone.config,
        rationale=config.rationale,
        mean=config.views.mean,
        std=config.views.std,
    )


def save_encoder(config: TrainConfig, run: RunFolder, module: TrainingModule) -> None:
    """The best one where the reading wants that, else the last; the encoder's folder is what marks a finished run."""
    wants_best = config.rationale is not None and config.rationale.checkpoint == "best"
    encoder = Encoder.load(run.best_encoder) if wants_best and run.best_encoder.exists() else encoder_of(config, module)
    if module.rationale is not None and len(module.rationale.study):
        save_file({k: v.contiguous().cpu() for k, v in module.rationale.study.state_dict().items()}, run.study)
    encoder.save(run.encoder)


def studied_branches(run: RunFolder) -> dict[int, FittingBranch]:
    """The branches of other K that the run fitted beside its own (``rationale.study``)."""
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
