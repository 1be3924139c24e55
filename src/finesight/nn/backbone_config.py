"""The backbone's settings, apart from the network itself so that reading a config needs no torch."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

HUB_PREFIX, TIMM_PREFIX = "hf-hub:", "timm/"


def is_hub_name(weights: str) -> bool:
    """Return whether weights are to be fetched from a hub; a file or folder of that name goes first."""
    return weights.startswith((HUB_PREFIX, TIMM_PREFIX)) and not Path(weights).exists()


class BackboneConfig(BaseModel):
    """Which network gives the feature map φ, where its weights come from, and what stays fixed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("resnet50", description="a timm model that has a feature map (docs/backbones.md)")
    weights: str = Field("imagenet", description="imagenet, random, a weight file or folder, hf-hub:NAME, or timm/NAME")
    output_stride: Literal[8, 16, 32] = Field(
        32, description="pixels per cell of φ; 16 gives 7×7 at 112 px. 32 leaves the model as it is, with its own"
    )
    dilate: bool = Field(
        True, description="at output stride 8 or 16, dilate as timm does; off for networks trained from scratch"
    )
    stride_in_1x1: bool | None = Field(
        None, description="ResNets with caffe strides; by default what the weight file says of itself"
    )
    signed: bool | None = Field(
        None, description="φ has negative values that count, as tokens have; by default what the network says"
    )
    freeze: int = Field(0, ge=0, description="0 nothing, 1 the stem, 2 the stem and stage 1 (of a ViT, block 1), …")
    frozen_norm: bool = Field(False, description="batch norms keep their statistics during training")
    lora: int = Field(0, ge=0, description="rank of the updates of attention, all else is frozen; 0 trains the weights")
    lora_alpha: float | None = Field(None, gt=0, description="updates are scaled by alpha / rank; by default 1")
