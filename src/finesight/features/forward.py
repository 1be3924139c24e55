"""An encoder called as other modules are: normalized images in, features out, gradients through the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from finesight.errors import FineSightError
from finesight.nn.poolings import ATTENTION, find_pooling

if TYPE_CHECKING:
    from finesight.features.encoder import Encoder


def module_features(encoder: Encoder, images: Any) -> Tensor:
    """Return features (N, D) of normalized images (N, 3, H, W), by the weights themselves and no faster copy of them.

    Anything but a tensor of floats is a ``FineSightError`` that says what to call instead.
    """
    if not isinstance(images, Tensor):
        raise FineSightError(
            "encoder(images) takes a tensor (N, 3, height, width): for files and pictures use encoder.embed(images), "
            "or encoder(encoder.prepare(images)) with gradients."
        )
    if not images.is_floating_point():
        raise FineSightError(
            f"encoder(images) takes normalized images, not {images.dtype}: encoder.normalize(pixels) makes them of "
            "uint8 pixels (N, height, width, 3)."
        )
    if images.ndim != 4 or images.shape[1] != 3:
        raise FineSightError(f"A tensor of images must be (N, 3, height, width), got {tuple(images.shape)}.")
    name = encoder.config.pooling
    pooling = find_pooling(name)
    output = encoder.backbone.outputs(images, attention=pooling.shown_mask == ATTENTION, earlier=pooling.needs_earlier)
    return encoder.pool(output, (name,)).features[name]
