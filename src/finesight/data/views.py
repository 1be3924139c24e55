"""Random views of a batch of decoded images, as tensor operations on the training device.

What is random is drawn first, on the CPU, for the whole batch (``sample_params``) and applied afterwards
(``apply_views``): the views of a seed are the same on every device, and each rank of a distributed run can
draw for the joined batch and apply its own share. The parameters follow torchvision's distributions and the
operations its functional ones, with every image having its own parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Self

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from finesight.data.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    gaussian_blur,
    normalize,
    solarize,
    to_gray,
)
from finesight.data.rows import Rows

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

PlaceCrops = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]

_CROP_TRIES = 10  # torchvision's number, part of the distribution
_JITTER: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)


def _ascending(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise ValueError(f"the smaller number comes first, got {pair}")
    return pair


Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Strength = Annotated[float, Field(ge=0)]
Range = Annotated[tuple[Positive, Positive], AfterValidator(_ascending)]
UnitRange = Annotated[
    tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]],
    AfterValidator(_ascending),
]


class ViewConfig(BaseModel):
    """How a random view is made; the defaults are MoCo v2's.

    ``blur_sigma`` is in pixels of a view of ``blur_resolution`` and shrinks with the resolution, so that
    small views keep the details that tell look-alikes apart.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    resolution: Annotated[int, Field(ge=2)] = 224
    scale: UnitRange = (0.2, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    flip: Probability = 0.5
    jitter: Probability = 0.8
    brightness: Strength = 0.4
    contrast: Strength = 0.4
    saturation: Strength = 0.4
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    gray: Probability = 0.2
    blur: Probability = 0.5
    blur_sigma: Range = (0.1, 2.0)
    blur_resolution: Annotated[int, Field(ge=1)] = 224
    solarize: Probability = 0.0
    solarize_threshold: Probability = 0.5
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[Positive, Positive, Positive] = IMAGENET_STD
    second_blur: Probability | None = None  # in every second view, where it is not as the first
    second_solarize: Probability | None = None
    local_crops: Annotated[int, Field(ge=0)] = 0  # small views beside the two large ones
    local_resolution: Annotated[int, Field(ge=2)] | None = None  # None: three sevenths, as 96 of 224 px
    local_scale: UnitRange = (0.05, 0.14)
    local_blur: Probability | None = None
    paste: Probability = 0.0  # the object on another background: needs to know where it is (``saliency``)
    second_paste: Probability | None = None
    backdrops: tuple[Strength, Strength, Strength] = (1.0, 0.0, 0.0)  # shares: other images, gray levels, textures

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        if self.local_crops and self.local_side > self.resolution:
            raise ValueError(f"local crops of {self.local_side} px are larger than the views of {self.resolution} px")
        if not any(self.backdrops):
            raise ValueError("backdrops must have a share above zero")
        return self

    @property
    def local_side(self) -> int:
        return self.local_resolution or max(2, round(self.resolution * 3 / 7))

    def kinds(self) -> list[ViewConfig]:
        """Return how each view of an image is made: two large ones, then the local crops."""
        plain = self.model_copy(
            update={
                **dict.fromkeys(("second_blur", "second_solarize", "second_paste", "local_resolution", "local_blur")),
                "local_crops": 0,
            }
        )
        second = {"blur": self.second_blur, "solarize": self.second_solarize, "paste": self.second_paste}
        local = {"resolution": self.local_side, "scale": self.local_scale, "blur": self.local_blur}
        small = plain.model_copy(update={name: value for name, value in local.items() if value is not None})
        other = plain.model_copy(update={name: value for name, value in second.items() if value is not None})
        return [plain, other, *[small] * self.local_crops]

    @property
    def pastes(self) -> bool:
        """Whether any view is pasted on another background."""
        return max(self.paste, self.second_paste or 0.0) > 0

    @property
    def blur_kernel(self) -> int:
        """Return the odd kernel size that holds three of the largest σ and can still be reflected at the edge."""
        radius = math.ceil(3 * self.blur_sigma[1] * self.resolution / self.blur_resolution)
        return 2 * min(radius, self.resolution - 1) + 1


@dataclass(frozen=True)
class ViewParams(Rows):
    """Everything random about N views, one row each."""

    crop: Tensor  # (N, 4) int64: top, left, height, width
    flip: Tensor  # (N,) bool
    jitter: Tensor  # (N,) bool
    order: Tensor  # (N, 4) int64: a permutation of brightness 0, contrast 1, saturation 2, hue 3
    factors: Tensor  # (N, 4) float32: brightness, contrast, saturation factors, hue shift
    gray: Tensor  # (N,) bool
    blur: Tensor  # (N,) bool
    sigma: Tensor  # (N,) float32, in pixels of the view
    solarize: Tensor  # (N,) bool


def sample_params(
    config: ViewConfig, sizes: Tensor, generator: torch.Generator, place: PlaceCrops | None = None
) -> ViewParams:
    """Draw one view of each image; ``sizes`` (N, 2) as (height, width), the generator on the CPU.

    ``place`` may put the crops elsewhere: it is given the drawn corners, the sizes of the images and of the crops
    (N, 2) and the generator, and returns the corners to use.
    """
    count = len(sizes)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)

    def happens(probability: float) -> Tensor:
        return uniform(0, 1) < probability

    strengths = (config.brightness, config.contrast, config.saturation)
    factors = [uniform(max(0.0, 1 - strength), 1 + strength) for strength in strengths]
    factors.append(uniform(-config.hue, config.hue))
    return ViewParams(
        crop=_sample_crops(config, sizes.cpu(), generator, place),
        flip=happens(config.flip),
        jitter=happens(config.jitter),
        order=torch.rand(count, 4, generator=generator, dtype=torch.float64).argsort(dim=1),
        factors=torch.stack(factors, dim=1).float(),
        gray=happens(config.gray),
        blur=happens(config.blur),
        sigma=uniform(*config.blur_sigma).mul(config.resolution / config.blur_resolution).float(),
        solarize=happens(config.solarize),
    )


def _sample_crops(config: ViewConfig, sizes: Tensor, generator: torch.Generator, place: PlaceCrops | None) -> Tensor:
    """Draw as torchvision's RandomResizedCrop: the first of ten tries that fits, else the largest centered crop."""
    height, width = sizes.double()[:, :, None].unbind(1)  # (N, 1) each
    draws = torch.rand(2, len(sizes), _CROP_TRIES, generator=generator, dtype=torch.float64)
    area = height * width * (config.scale[0] + (config.scale[1] - config.scale[0]) * draws[0])
    shortest, longest = config.ratio
    ratio = torch.exp(math.log(shortest) + math.log(longest / shortest) * draws[1])
    fallback_h = torch.minimum(height, (width / shortest).round().clamp_min(1))
    fallback_w = torch.minimum(width, (height * longest).round().clamp_min(1))
    tried_h = torch.cat([(area / ratio).sqrt().round(), fallback_h], dim=1)  # (N, 10 + 1)
    tried_w = torch.cat([(area * ratio).sqrt().round(), fallback_w], dim=1)
    fits = (tried_h >= 1) & (tried_h <= height) & (tried_w >= 1) & (tried_w <= width)
    first = fits.int().argmax(dim=1, keepdim=True)  # the first of equals; the fallback always fits
    crop = torch.cat([tried_h.gather(1, first), tried_w.gather(1, first)], dim=1)  # (N, 2)
    room = torch.cat([height, width], dim=1) - crop
    random = (torch.rand(crop.shape, generator=generator, dtype=torch.float64) * (room + 1)).floor()
    if place is not None:
        random = place(random, sizes.double(), crop, generator)
    corner = torch.where(first == _CROP_TRIES, (room / 2).floor(), random)
    return torch.cat([corner, crop], dim=1).long()


def apply_views(
    config: ViewConfig, canvas: Tensor, params: ViewParams, compose: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """uint8 (N, 3, H, W) -> normalized float32 (N, 3, R, R), each operation on the images it was drawn for.

    The padding of the canvas lies outside every crop, so the sizes of the images are not needed here. ``compose`` may
    change the cropped images, in [0, 1], before their colors are changed.
    """
    drawn = params.to("cpu")  # which images an operation touches is decided without waiting for the device
    params = params.to(canvas.device)
    images = crop_resize_flip(canvas, params.crop, params.flip, config.resolution)
    if compose is not None:
        images = compose(images)
    neutral = torch.tensor([1.0, 1.0, 1.0, 0.0])
    for position in range(4):
        for kind, adjust in enumerate(_JITTER):
            touched = drawn.jitter & (drawn.order[:, position] == kind) & (drawn.factors != neutral)[:, kind]
            _change(images, touched, adjust, params.factors[:, kind])
    _change(images, drawn.gray, to_gray)
    _change(images, drawn.blur, partial(gaussian_blur, kernel_size=config.blur_kernel), params.sigma)
    _change(images, drawn.solarize, partial(solarize, threshold=config.solarize_threshold))
    return normalize(images, config.mean, config.std)


def _change(images: Tensor, touched: Tensor, operation: Callable[..., Tensor], *values: Tensor) -> None:
    """Apply the operation in place to the touched images, each with its own values."""
    rows = touched.nonzero().squeeze(1).to(images.device)
    if len(rows):
        images.index_copy_(0, rows, operation(images[rows], *(value[rows] for value in values)))


def crop_resize_flip(canvas: Tensor, crop: Tensor, flip: Tensor, resolution: int) -> Tensor:
    """Sample each image's crop on one affine grid: uint8 (N, 3, H, W) -> float32 in [0, 1] (N, 3, R, R).

    Bilinear without antialias, as torchvision's ``resized_crop(antialias=False)``. The grid has no rotation,
    so rows are sampled first and columns after. Pixels are addressed by integers that stay inside the crop:
    unlike ``grid_sample`` with its coordinates relative to the canvas, a view does not depend in any bit on
    the padding or on how large the batch's canvas is.
    """
    count, channels, height, width = canvas.shape
    top, left, crop_height, crop_width = crop.unbind(1)
    upper, lower, down = _grid(top, crop_height, torch.zeros_like(flip), resolution)
    before, after, along = _grid(left, crop_width, flip, resolution)
    rows = canvas.reshape(-1, width)  # (N*3*H, W)
    planes = torch.arange(count * channels, device=canvas.device).view(count, channels, 1) * height

    def take_rows(index: Tensor) -> Tensor:
        chosen = (planes + index[:, None]).flatten()  # (N, R) -> (N*3*R,)
        return rows.index_select(0, chosen).view(count, channels, resolution, width).float()

    def take_columns(images: Tensor, index: Tensor) -> Tensor:
        return images.gather(3, index[:, None, None].expand(-1, channels, resolution, -1))

    sampled = take_rows(upper).lerp_(take_rows(lower), down[:, None, :, None])  # (N, 3, R, W)
    right = take_columns(sampled, after)
    return take_columns(sampled, before).lerp_(right, along[:, None, None]).div_(255)


def _grid(start: Tensor, size: Tensor, flip: Tensor, resolution: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each of R output pixels, its two source pixels and how far it lies between them, (N, R) each."""
    target = torch.arange(resolution, device=start.device).expand(len(start), -1)
    target = torch.where(flip[:, None], resolution - 1 - target, target)
    last = (size - 1)[:, None]
    position = (target + 0.5) * (size.float() / resolution)[:, None] - 0.5
    position = torch.minimum(position.clamp_min(0), last)
    first = position.long()
    return start[:, None] + first, start[:, None] + torch.minimum(first + 1, last), position - first
