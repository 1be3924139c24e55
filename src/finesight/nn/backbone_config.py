"""The backbone's settings, apart from the network itself so that reading a config needs no torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class BackboneConfig(BaseModel):
    """Which network gives the feature map φ, where its weights come from, and what stays fixed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("resnet50", description="a convolutional timm model")
    weights: str = Field("imagenet", description="imagenet, random, or a .safetensors / .pth file")
    output_stride: Literal[8, 16, 32] = Field(
        32, description="pixels per cell of φ; 16 gives 7×7 at 112 px. 32 leaves the model as it is"
    )
    dilate: bool = Field(
        True, description="at output stride 8 or 16, dilate as timm does; off for networks trained from scratch"
    )
    stride_in_1x1: bool | None = Field(
        None, description="ResNets with caffe strides; by default what the weight file says of itself"
    )
    freeze: int = Field(0, ge=0, description="0 nothing, 1 the stem, 2 the stem and stage 1, …")
    frozen_norm: bool = Field(False, description="batch norms keep their statistics during training")
