"""Settings that had other names in earlier versions: old files and command lines keep working."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# old name, with dots -> the name now
RENAMED: dict[str, str] = {
    "batch": "batch_size",
    "initial_share": "initial_weight_ratio",
    "optim.rule": "optim.optimizer",
    "optim.bias_share": "optim.bias_lr_ratio",
    "optim.backbone_share": "optim.backbone_lr_ratio",
    "optim.hold_epochs": "optim.freeze_epochs",
    "optim.floor": "optim.min_lr_ratio",
    "optim.accumulate": "optim.accumulate_grad_batches",
    "optim.clip": "optim.clip_grad_norm",
    "optim.clip_each": "optim.clip_grad_norm_per_tensor",
    "validation.most": "validation.max_images",
    "validation.every": "validation.every_n_epochs",
    "focus.every": "focus.every_n_epochs",
    "saliency.every": "saliency.every_n_epochs",
    "objective.hold_epochs": "objective.freeze_epochs",
    "rationale.reading": "rationale.variant",
    "views.grey": "views.gray",
    "views.solarise": "views.solarize",
    "views.solarise_threshold": "views.solarize_threshold",
    "views.second_solarise": "views.second_solarize",
    "objective.centre_momentum": "objective.center_momentum",
}
# setting: old value -> the value now
RENAMED_VALUES: dict[str, dict[Any, Any]] = {"focus.source": {"centre": "center"}}


def current_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return dotted ``settings`` under the names of this version, and one line for each that was renamed."""
    current: dict[str, Any] = {}
    notes = []
    for key, value in settings.items():
        name = RENAMED.get(key, key)
        if name != key:
            notes.append(f"The setting {key} is called {name} now.")
        if isinstance(value, str) and value in (values := RENAMED_VALUES.get(name, {})):
            notes.append(f"{name} {value} is called {values[value]} now.")
            value = values[value]
        current[name] = value
    return current, notes
