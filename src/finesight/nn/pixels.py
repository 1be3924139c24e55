"""What a pretrained network was trained to see: the scale of its pixels, and how pictures are resized and cropped."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import timm

from finesight.data.geometry import CROP_PCT, CropMode, Interpolation
from finesight.data.views import IMAGENET_MEAN, IMAGENET_STD
from finesight.nn.backbone_config import BackboneConfig

Color = tuple[float, float, float]


class Pixels(NamedTuple):
    """Mean and deviation of pixels in [0, 1], and how a picture is resized and cropped when the network is used.

    The defaults are for networks that have nothing of their own.
    """

    mean: Color = IMAGENET_MEAN
    std: Color = IMAGENET_STD
    interpolation: Interpolation = "bilinear"
    crop_pct: float = CROP_PCT
    crop_mode: CropMode = "center"


def own_pixels(backbone: BackboneConfig) -> Pixels:
    """Return what timm keeps with a model's weights, which a weight file is taken to share.

    Networks that start from random weights have nothing of their own, nor do names that timm does not know. ResNets are
    resized and cropped by the defaults, the usual protocol of their weight files, whatever timm's own weights of that
    name were trained with.
    """
    try:
        known = timm.get_pretrained_cfg(backbone.name)
    except RuntimeError:  # a tag of weights that does not exist: building the network says so
        known = None
    if known is None or backbone.weights == "random":
        return Pixels()
    own = Pixels(_color(known.mean), _color(known.std))
    if backbone.name.partition(".")[0] in _resnets():
        return own
    return own._replace(
        interpolation="bilinear" if known.interpolation == "bilinear" else "bicubic",
        crop_pct=min(1.0, float(known.crop_pct)),  # above 1, timm adds a black border
        crop_mode="squash" if known.crop_mode == "squash" else "center",  # "border" adds one too
    )


@cache
def _resnets() -> frozenset[str]:
    return frozenset(timm.list_models(module="resnet"))


def _color(values: tuple[float, ...]) -> Color:
    red, green, blue = values
    return float(red), float(green), float(blue)
