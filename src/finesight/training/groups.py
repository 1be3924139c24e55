"""Which weights of the backbone learn at which rate: parameter groups of the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from finesight.nn.backbone import Backbone
from finesight.training.config import OptimConfig

Group = dict[str, Any]


def backbone_groups(backbone: Backbone, optim: OptimConfig) -> list[Group]:
    """Return one group, or with ``layer_decay`` one for each part that learns, the first part at the smallest rate.

    Part l of L learns at the backbone's rate times ``layer_decay`` to the power of L - l (Bao et al., BEiT, 2022).
    """
    rate = optim.lr * optim.backbone_lr_ratio
    if optim.layer_decay == 1:
        parts, rates = [{name: p for name, p in backbone.model.named_parameters() if p.requires_grad}], [rate]
    else:
        parts = backbone.trained_parts()
        rates = [rate * optim.layer_decay ** (len(parts) - part) for part in range(1, len(parts) + 1)]
    common = {"optimizer": optim.optimizer, "freeze_epochs": optim.freeze_epochs}
    tokens = [name for name, _ in backbone.model.named_parameters(recurse=False)]  # class token, position embedding
    undecayed = {*tokens, *getattr(backbone.model, "no_weight_decay", set)()}
    return [
        group
        for part, base_lr in zip(parts, rates, strict=True)
        if part or optim.layer_decay == 1
        for group in split_decay([{"params": list(part.values()), "base_lr": base_lr, **common}], part, undecayed)
    ]


def split_decay(
    groups: Iterable[Group], names: Mapping[str, nn.Parameter] | None = None, undecayed: Iterable[str] = ()
) -> list[Group]:
    """Return groups of AdamW split in two: biases, norms and what ``undecayed`` names have no weight decay."""
    plain = {names[name] for name in undecayed if name in names} if names else set()
    split: list[Group] = []
    for group in groups:
        if group["optimizer"] != "adamw":
            split.append(group)
            continue
        without = [p for p in group["params"] if p.ndim < 2 or p in plain]
        with_decay = [p for p in group["params"] if not (p.ndim < 2 or p in plain)]
        split.append({**group, "params": with_decay})
        if without:
            split.append({**group, "params": without, "weight_decay": 0.0})
    return split
