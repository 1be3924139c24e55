"""Color operations on float images in [0, 1], (N, 3, H, W), with one parameter per image.

They compute what torchvision's functional operations compute, but on a whole batch whose images each have
their own factor. Everything is elementwise float32 (no convolution, no matrix product), so that reduced
matrix precision (TF32, autocast) on a GPU cannot change a view. The result is written into ``out`` if it is given,
which may be ``images`` itself.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, rounded as torchvision does


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _luminance(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return torch.add(_LUMA[0] * red, green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])[:, None]  # (N, 1, H, W)


def _blend(images: Tensor, other: Tensor, factor: Tensor, out: Tensor | None) -> Tensor:
    return torch.lerp(other, images, _per_image(factor), out=out).clamp_(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.mul(images, _per_image(factor), out=out).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    gray = _luminance(images)
    gray.copy_(gray.mean(dim=(2, 3), keepdim=True))  # on a CPU, lerp is slow if two of its three tensors are expanded
    return _blend(images, gray, factor, out)


def adjust_saturation(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    return _blend(images, _luminance(images), factor, out)


def adjust_hue(images: Tensor, shift: Tensor, out: Tensor | None = None) -> Tensor:
    """Turn the hue by ``shift`` (in turns, -0.5 to 0.5) at unchanged HSV saturation and value.

    Each channel of a color with hue h is min + (max - min) · f(h), f a trapezoid; so saturation itself
    is never needed, and gray pixels (max = min) need no special case.
    """
    red, green, blue = images.unbind(1)
    high = torch.maximum(red, green)
    torch.maximum(high, blue, out=high)
    low = torch.minimum(red, green)
    torch.minimum(low, blue, out=low)
    not_red, not_green = (high - red).sign_(), (high - green).sign_()  # 0 or 1
    # lerp with weights 0 and 1 chooses, and on CPU many times faster than where
    other = (blue - red).lerp_(red - green, not_green)
    hue = (green - blue).lerp_(other, not_red)
    chroma = high.sub_(low)
    hue.div_(torch.clamp_min(chroma, torch.finfo(chroma.dtype).tiny, out=other))  # sixths of a turn
    hue.addcmul_(not_red, not_green.mul_(2).add_(2)).add_(6 * shift.view(-1, 1, 1))
    hue.sub_(torch.div(hue, 6, out=other).floor_(), alpha=6)
    turned = torch.empty_like(images) if out is None else out
    two = hue.new_full((), 2.0)
    for channel, center in zip(turned.unbind(1), (3, 2, 4), strict=True):
        distance = torch.sub(hue, center, out=other).abs_()
        trapezoid = distance.sub_(1) if center == 3 else torch.sub(two, distance, out=distance)
        torch.addcmul(low, chroma, trapezoid.clamp_(0, 1), out=channel)
    return turned


def to_gray(images: Tensor, out: Tensor | None = None) -> Tensor:
    gray = _luminance(images).expand_as(images)
    return gray if out is None else out.copy_(gray)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel_size: int, out: Tensor | None = None) -> Tensor:
    """Blur each image with its own ``sigma`` in pixels, edges reflected; ``kernel_size`` is odd.

    Two passes of shifted sums: on CPU as fast as a grouped convolution, and bit for bit the same.
    """
    radius = kernel_size // 2
    offsets = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-0.5 * (offsets / sigma[:, None]) ** 2)  # (N, K)
    taps = [_per_image(tap) for tap in (weights / weights.sum(1, keepdim=True)).unbind(1)]
    padded = F.pad(images, (radius,) * 4, mode="reflect")
    return _weighted_shifts(_weighted_shifts(padded, taps, dim=3), taps, dim=2, out=out)


def _weighted_shifts(images: Tensor, taps: list[Tensor], dim: int, out: Tensor | None = None) -> Tensor:
    length = images.shape[dim] - len(taps) + 1
    total = torch.mul(images.narrow(dim, 0, length), taps[0], out=out)
    for start, tap in enumerate(taps[1:], start=1):
        total.addcmul_(images.narrow(dim, start, length), tap)
    return total


def solarize(images: Tensor, threshold: float, out: Tensor | None = None) -> Tensor:
    return torch.where(images >= threshold, 1 - images, images, out=out)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float], out: Tensor | None = None) -> Tensor:
    middle, spread = (images.new_tensor(values).view(3, 1, 1) for values in (mean, std))
    return torch.sub(images, middle, out=out).div_(spread)
