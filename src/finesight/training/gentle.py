"""Settings that suit what there is (weights, images, device), each with its reason.

Gentle ones keep what a pretrained network knows: its early stages or blocks, and batch norms where it has some, are
frozen, the rest learns slowly after a pause, and the mean of the initial and the trained weights is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finesight.io.console import format_count
from finesight.methods.base import Objective, find_method
from finesight.methods.moco import MoCo
from finesight.nn.lora import EXTRA, has_lora
from finesight.nn.parts import Parts, find_parts
from finesight.training.color_rule import MILD
from finesight.training.config import TrainConfig, build_config
from finesight.training.lengths import (
    Choice,
    Choices,
    Circumstances,
    fit_batch,
    length_settings,
    schedule_settings,
    suitable_steps,
)
from finesight.training.save_encoder import frozen_pooling

# Chosen on a validation part of CUB's train images (docs/results.md), never on test.
GENTLE: dict[str, Any] = {
    "views.resolution": 128,
    "test_resolution": 224,
    "backbone.freeze": 3,  # stem, layer1 and layer2
    "backbone.frozen_norm": True,
    "objective.momentum": 0.99,
    "optim.lr": 0.03,
    "optim.backbone_lr_ratio": 0.3,
    "initial_weight_ratio": 0.5,
}
# Of transformers, from the literature; not measured here (docs/presets.md). DINO's rate is 5e-4 for 256 images, or
# 6e-5 for 32; BEiT's decay of the rate is 0.65 to 0.75 a block, its weight decay 0.05.
TRANSFORMER: dict[str, Any] = {
    "optim.optimizer": "adamw",
    "optim.lr": 5e-4,
    "optim.weight_decay": 0.05,
    "optim.backbone_lr_ratio": 0.1,
    "optim.layer_decay": 0.75,
}
LORA_ABOVE = 150_000_000  # weights: gradients and AdamW's two moments take 12 bytes for each, 1.8 GB
LORA_RANK, LORA_RATIO = 8, 0.4  # a rate of 2e-4, as Hu et al. have for their updates
BATCH = 32
SCRATCH_BATCH = 128  # the paper's
LARS_RATE = 0.03  # at most, of a pretrained backbone: a step of LARS is a thousandth of the weights times the rate
LARS_BIAS = 0.1  # at most: LARS steps plainly there, by rates that are meant for its other steps

_WHY = {
    "views.resolution": "small views are quick to train on; the features are used at more pixels",
    "test_resolution": "features of larger images tell more details apart",
    "backbone.frozen_norm": "batch norms keep the statistics of the pretrained network",
    "objective.momentum": "in a short run the momentum copy must follow quickly",
    "optim.lr": "the rate of the new head",
    "optim.backbone_lr_ratio": "the pretrained backbone learns slowly",
    "optim.optimizer": "transformers are trained with AdamW",
    "optim.weight_decay": "BEiT's, not on biases, norms, tokens and position embeddings",
    "optim.layer_decay": "early {kind} learn more slowly than late ones",
    "initial_weight_ratio": "the mean of the initial and the trained weights keeps what training forgets",
}


def settings_for(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return those of ``settings``, which are written for MoCo v2, that another method takes.

    Data, views, epochs, batch size and what is frozen are the same for all. Of the objective's own settings a method
    takes those it has (a queue, an EMA momentum). Its authors' optimizer stays, learning rate included, where they
    have another one. Nobody tunes this rule.
    """
    kind, fields = find_method(method).find_objective(), TrainConfig.model_fields
    if kind is None or kind is MoCo:
        return dict(settings)
    batch, epochs = (settings.get(name, fields[name].default) for name in ("batch_size", "epochs"))
    theirs = {key for key in kind.defaults(batch, epochs) if key.startswith("optim.")}
    foreign = {
        key
        for key in settings
        if key.startswith("objective.") and key.removeprefix("objective.") not in kind.Config.model_fields
    }
    return {key: value for key, value in settings.items() if key not in theirs | foreign}


def choose_settings(
    given: Mapping[str, Any], there: Circumstances, preset: str, colors: Choices | None = None
) -> Choices:
    """Return what ``preset`` (gentle or scratch) chooses where nothing is ``given`` (settings with dots).

    ``colors`` are the strengths of the color changes that suit the images; without them they are mild.
    """
    method, gentle = str(given.get("method", "lcr")), preset == "gentle"
    objective = find_method(method).find_objective()
    chosen: Choices = {}
    base = build_config({**given, "data": "-"}, warn=False)
    if gentle and base.pooling == "average":
        why = "averaged features of a pretrained network tell look-alikes apart less well"
        chosen["test_pooling"] = Choice(frozen_pooling(base.backbone.name), why)
    if objective is None:
        return _not_given(chosen, given)
    if gentle:
        chosen |= {key: Choice(value, _WHY[key]) for key, value in settings_for(GENTLE, method).items() if key in _WHY}
        chosen |= _network(find_parts(base.backbone.name), given)
        if not find_parts(base.backbone.name).batch_norms:
            del chosen["backbone.frozen_norm"]
        if not objective.labeled:
            chosen |= colors or {
                key: Choice(value, "mild changes until images are looked at") for key, value in MILD.items()
            }
    if there.images is not None:
        resolution = chosen.get("views.resolution", Choice(base.views.resolution, "")).value
        chosen["batch_size"] = fit_batch(there, _largest_batch(there, gentle=gentle), resolution)
    elif gentle:
        chosen["batch_size"] = Choice(BATCH, "the number of images is not known")
    if gentle:
        batch = base.batch_size if "batch_size" in given else chosen["batch_size"].value
        chosen |= _length(base, given, there.images, batch, objective)
        chosen |= tame_lars(objective, {**{key: choice.value for key, choice in chosen.items()}, **given}, batch)
    return _not_given(chosen, given)


def _not_given(chosen: Choices, given: Mapping[str, Any]) -> Choices:
    return {key: choice for key, choice in chosen.items() if key not in given}


def _largest_batch(there: Circumstances, *, gentle: bool) -> int:
    if not gentle:
        return SCRATCH_BATCH
    images = there.images or 0
    return BATCH if not there.gpu or images <= 5_000 else 64 if images <= 20_000 else 128


def _length(
    base: TrainConfig, given: Mapping[str, Any], images: int | None, batch: int, objective: type[Objective]
) -> Choices:
    """Return the length that suits the images, or what follows from a given one."""
    if base.max_steps is not None and images is not None:
        return length_settings(base.max_steps, images, batch, objective, "", gentle=True)
    if "epochs" in given or base.max_steps is not None:
        return schedule_settings(base.epochs, objective, gentle=True)
    if images is None:
        words = Choice(4, "the number of images is not known")
        return {"epochs": words, **schedule_settings(4, objective, gentle=True)}
    why = f"a length that suits {format_count(images, 'image')}"
    return length_settings(suitable_steps(images), images, batch, objective, why, gentle=True)


def _network(parts: Parts, given: Mapping[str, Any]) -> Choices:
    """Return what is frozen, as much as stem, layer1 and layer2 are of a ResNet, and how a transformer learns."""
    if not parts:
        why = "FineSight does not know the stages of this network: none is frozen, the small rate alone protects them"
        return {"backbone.freeze": Choice(0, why), "optim.backbone_lr_ratio": Choice(0.1, "no stage is frozen")}
    count = GENTLE["backbone.freeze"] * len(parts) // 5
    why = f"the first {count} of {len(parts)} parts (stem and {parts.kind}) keep what they know of edges and textures"
    chosen = {"backbone.freeze": Choice(count, why)}
    if not parts.transformer:
        return chosen
    if "backbone.lora" not in given and parts.parameters > LORA_ABOVE and parts.attention:
        chosen["backbone.lora"] = _lora(parts)
    if given.keys() & {"optim.optimizer", "optim.lr"}:  # a rate is meant for the method's own optimizer
        return chosen
    chosen |= {key: Choice(value, _WHY[key].format(kind=parts.kind)) for key, value in TRANSFORMER.items()}
    if given.get("backbone.lora", chosen.get("backbone.lora", Choice(0, "")).value):
        del chosen["optim.layer_decay"]
        why = "updates of LoRA begin at zero and learn faster than pretrained weights may"
        chosen["optim.backbone_lr_ratio"] = Choice(LORA_RATIO, why)
    return chosen


def _lora(parts: Parts) -> Choice:
    """Return the rank of the updates of a large transformer; 0, and how to have them, without the package."""
    size = f"{parts.parameters / 1e6:,.0f} million weights"
    if has_lora():
        return Choice(LORA_RANK, f"of {size}, only low-rank updates of the attention learn, which takes less memory")
    return Choice(0, f"all {size} would need much memory to train; LoRA needs less: {EXTRA}")


def tame_lars(objective: type[Objective], values: Mapping[str, Any], batch: int) -> Choices:
    """Return ratios by which LARS, whose rates are made for random weights, spares a pretrained network."""
    theirs = objective.defaults(batch, 10)
    if values.get("optim.optimizer", theirs.get("optim.optimizer")) != "lars":
        return {}
    ratio = min(GENTLE["optim.backbone_lr_ratio"], LARS_RATE / values.get("optim.lr", theirs["optim.lr"]))
    bias = min(LARS_BIAS, theirs.get("optim.bias_lr_ratio", 1.0))
    return {
        "optim.backbone_lr_ratio": Choice(round(ratio, 4), _WHY["optim.backbone_lr_ratio"]),
        "optim.bias_lr_ratio": Choice(bias, "LARS steps plainly on biases and norms, too far for pretrained ones"),
    }
