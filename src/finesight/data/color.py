"""Color operations on float images in [0, 1], (N, 3, H, W), with one parameter per image.

They compute what torchvision's functional operations compute, but on a whole batch whose images each have
their own factor. Everything is elementwise float32 (no convolution, no matrix product), so that reduced
matrix precision (TF32, autocast) on a GPU cannot change a view.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, rounded as torchvision does


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _luminance(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue)[:, None]  # (N, 1, H, W)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other, images, _per_image(factor)).clamp_(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * _per_image(factor)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _luminance(images).mean(dim=(2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _luminance(images), factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by ``shift`` (in turns, -0.5 to 0.5) at unchanged HSV saturation and value.

    Each channel of a color with hue h is min + (max - min) · f(h), f a trapezoid; so saturation itself
    is never needed, and gray pixels (max = min) need no special case.
    """
    red, green, blue = images.unbind(1)
    low, high = images.amin(1), images.amax(1)
    chroma = high - low
    hue = torch.where(high == green, 2 * chroma + blue - red, 4 * chroma + red - green)
    hue = torch.where(high == red, green - blue, hue) / chroma.clamp_min(torch.finfo(chroma.dtype).tiny)
    turned = (hue + 6 * shift.view(-1, 1, 1)).remainder(6)  # sixths of a turn
    shares = ((turned - 3).abs() - 1, 2 - (turned - 2).abs(), 2 - (turned - 4).abs())
    return torch.stack([torch.addcmul(low, chroma, share.clamp(0, 1)) for share in shares], dim=1)


def to_gray(images: Tensor) -> Tensor:
    return _luminance(images).expand_as(images)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Blur each image with its own ``sigma`` in pixels, edges reflected; ``kernel_size`` is odd."""
    radius = kernel_size // 2
    offsets = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-0.5 * (offsets / sigma[:, None]) ** 2)  # (N, K)
    taps = [_per_image(tap) for tap in (weights / weights.sum(1, keepdim=True)).unbind(1)]
    padded = F.pad(images, (radius,) * 4, mode="reflect")
    return _weighted_shifts(_weighted_shifts(padded, taps, dim=3), taps, dim=2)


def _weighted_shifts(images: Tensor, taps: list[Tensor], dim: int) -> Tensor:
    length = images.shape[dim] - len(taps) + 1
    total = images.narrow(dim, 0, length) * taps[0]
    for start, tap in enumerate(taps[1:], start=1):
        total.addcmul_(images.narrow(dim, start, length), tap)
    return total


def solarize(images: Tensor, threshold: float) -> Tensor:
    return torch.where(images >= threshold, 1 - images, images)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    middle, spread = (images.new_tensor(values).view(3, 1, 1) for values in (mean, std))
    return (images - middle).div_(spread)
