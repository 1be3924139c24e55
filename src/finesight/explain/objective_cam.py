"""GradCAM (Eq. 3) of the objective a run was trained with, on images of choice: what the loss looks at.

Every objective is called as in training: the first view is the image as the encoder sees it, the second the same image
flipped. Nothing is random, so a picture is the same every time.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.methods.base import Objective, find_method
from finesight.rationale.gradcam import gradcam
from finesight.training.checkpoints import load_checkpoint
from finesight.training.hooks import rename_hook_state
from finesight.training.module import TrainingModule
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import restored_config

Rectify = Literal["abs", "relu"]


class NoGradCAM(FineSightError):
    """A run has no loss to differentiate; the rest of an explanation does not need it."""


class ObjectiveCam:
    """Computes GradCAM by the run's last checkpoint: momentum copies, queues and centers are as it has them.

    The network is the one that was trained. What a run exports may differ from it: DINO's teacher, an average with the
    initial weights (``initial_weight_ratio``), the best epoch instead of the last.
    """

    def __init__(self, run: RunFolder, encoder: Encoder) -> None:
        module = restore_module(run, encoder)
        self.objective: Objective = module.objective.to(encoder.device).eval().requires_grad_(False)
        self.hook = module.hook
        # Only heads and loss are differentiated: φ becomes a leaf, and no activation of the backbone is kept.
        self.objective.backbone.register_forward_hook(lambda network, views, phi: phi.detach().requires_grad_())

    @property
    def least(self) -> int:
        """The number of images that the loss needs at once."""
        return 2 if self.objective.couples_batch else 1

    def __call__(self, views: Tensor, rectify: Rectify = "abs") -> Tensor:
        """Return the maps of normalized views, which are one batch to the loss. (N, 3, R, R) -> (N, H, W)"""
        if len(views) < self.least:
            raise NoGradCAM(
                f"The loss of {type(self.objective).__name__} compares the images of a batch: explain {self.least} "
                "or more at once."
            )
        views = views.to(next(self.objective.backbone.parameters()).device)
        full = self.hook.complete_views(views, self.objective)
        pair = [full, full.flip(3)]
        labels = self.objective.predicted_labels(views)
        with torch.enable_grad():
            output = self.objective(pair[: self.objective.views], torch.Generator().manual_seed(0), labels)
            signed = gradcam(
                output,
                output.loss,
                average_pooled=self.objective.average_pooled,
                limited=self.objective.backbone.long_tokens,
            )
        signed = signed.detach().cpu()
        return F.relu(signed) if rectify == "relu" else signed.abs()


def loss_gradcam(run: RunFolder, encoder: Encoder, views: Tensor) -> Tensor | None:
    """Return |gᵀφ| of the run's objective, |Σ_c (∂L/∂φ) φ| in each cell; None if the run has no loss. -> (N, H, W)"""
    try:
        return ObjectiveCam(run, encoder)(views)
    except NoGradCAM:
        return None


def _state(run: RunFolder) -> dict[str, Tensor]:
    """Return the state of the module in the last checkpoint."""
    if not run.config_file.exists():
        raise NoGradCAM(f"{run.root} is an encoder without its run: there is no loss to differentiate.")
    try:
        method = run.config().method
    except FineSightError:
        raise NoGradCAM(f"The config.yaml of {run.root.name} is damaged or of another version of FineSight.") from None
    if find_method(method).objective is None:
        raise NoGradCAM(f"{run.root.name} was not trained (method {method}): it has no loss.")
    try:
        found = load_checkpoint(run.checkpoints)
    except FineSightError:
        raise NoGradCAM(f"None of the checkpoints of {run.root.name} can be read.") from None
    if found is None:
        raise NoGradCAM(f"{run.root.name} has no checkpoint left: GradCAM needs the heads, which only those keep.")
    state: dict[str, Tensor] = found[1]["module"]
    return state


def restore_module(run: RunFolder, encoder: Encoder) -> TrainingModule:
    """Return the run's training as its last checkpoint has it, in evaluation mode.

    Neither the dataset nor a weight file is needed: sizes that depended on the data are read off the state, and the
    backbone's settings are the encoder's. ``NoGradCAM`` says why a run has nothing to restore.
    """
    state = _state(run)
    config, classes = restored_config(run.config().model_copy(update={"backbone": encoder.config.backbone}), state)
    rename_hook_state(state)
    images = next((len(value) for name, value in state.items() if name.startswith("hook.")), 2)
    with torch.random.fork_rng(devices=()):  # the module seeds the generator
        module = TrainingModule(config, images=images, steps_per_epoch=1, classes=classes, load_weights=False)
    try:
        module.load_state_dict(state)
    except RuntimeError:
        raise NoGradCAM(f"The checkpoint of {run.root.name} is of another version of FineSight.") from None
    return module.eval()
