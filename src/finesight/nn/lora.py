"""LoRA: low-rank updates of attention, for networks that are too large to train whole (Hu et al., ICLR 2022).

Each projection W of the attention gets W + (alpha / rank) B A, where A and B are the only weights that learn: their
gradients and the state of the optimizer take a hundredth of the memory. B begins at zero, so the network begins as it
is. The packages of ``finesight[lora]`` do the work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from torch import nn

from finesight.errors import FineSightError

EXTRA = "pip install finesight[lora]"


def has_lora() -> bool:
    """Return whether peft is installed."""
    return find_spec("peft") is not None


def add_lora(model: nn.Module, layers: Iterable[str], rank: int, alpha: float) -> None:
    """Add updates of this rank to the named linear layers; nothing else of the model can be trained any more."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise FineSightError(f"backbone.lora needs peft: {EXTRA}") from error
    pattern = "|".join(map(re.escape, layers))
    options: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "target_modules": pattern}
    inject_adapter_in_model(LoraConfig(**options), model)


def merge_lora(model: nn.Module) -> None:
    """Add the updates to the weights and leave the plain model."""
    from peft.tuners.lora import LoraLayer

    layers: dict[str, Any] = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, layer in layers.items():
        layer.merge()
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.get_base_layer())
    del model.peft_config  # by which peft knows the model


def plain_name(parameter: str) -> str:
    """Return the name that a parameter of a model with updates, or of an update, has in the plain model."""
    layer, found, _ = parameter.partition(".lora_")
    return f"{layer}.weight" if found else parameter.replace(".base_layer.", ".")
