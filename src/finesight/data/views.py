"""Random views of a batch of decoded images: by OpenCV on a CPU, by tensor operations on a GPU.

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
from finesight.data.crop import crop_together
from finesight.data.geometry import CROP_PCT, MAX_SIDE, CropMode, Interpolation
from finesight.data.opencv_views import Compose, make_views
from finesight.data.rows import Rows

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

PlaceCrops = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]

_CROP_TRIES = 10  # torchvision's number, part of the distribution
_JITTER: tuple[Callable[..., Tensor], ...] = (
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

    resolution: Annotated[int, Field(ge=2, le=MAX_SIDE)] = 224
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
    interpolation: Interpolation = "bilinear"  # this and the next two: of the view that a trained encoder is used on
    crop_pct: Annotated[float, Field(gt=0, le=1)] = CROP_PCT  # its share of the resized short side
    crop_mode: CropMode = "center"  # squash: both sides are resized to that
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


def apply_views(config: ViewConfig, canvas: Tensor, params: ViewParams, compose: Compose | None = None) -> Tensor:
    """uint8 (N, 3, H, W) -> normalized float32 (N, 3, R, R), each operation on the images it was drawn for.

    The padding of the canvas lies outside every crop, so the sizes of the images are not needed here. ``compose`` may
    change the cropped images, in [0, 1], before their colors are changed.
    """
    apply_all = make_views if canvas.device.type == "cpu" else apply_together
    return apply_all(config, canvas, params, compose)


def apply_together(config: ViewConfig, canvas: Tensor, params: ViewParams, compose: Compose | None = None) -> Tensor:
    """Return what ``apply_views`` says, by operations on the whole batch, as is fast on a GPU."""
    images = crop_together(canvas, params.crop.to(canvas.device), params.flip.to(canvas.device), config.resolution)
    if compose is not None:
        images = compose(images)
    drawn = params.to("cpu")  # which images an operation touches is decided without waiting for the device
    changing = drawn.jitter[:, None] & (drawn.factors != torch.tensor([1.0, 1.0, 1.0, 0.0]))
    order = drawn.order.where(changing.gather(1, drawn.order), -1)
    factors, sigma = drawn.factors.to(images.device), drawn.sigma.to(images.device)

    def change(touched: Tensor, operation: Callable[..., Tensor], *values: Tensor) -> None:
        """Apply the operation to the touched images, each with its own values."""
        rows = touched.nonzero().squeeze(1).to(images.device)
        if len(rows):
            images.index_copy_(0, rows, operation(images.index_select(0, rows), *(value[rows] for value in values)))

    for kinds in order.unbind(1):
        for kind, adjust in enumerate(_JITTER):
            change(kinds == kind, adjust, factors[:, kind])
    change(drawn.gray, to_gray)
    change(drawn.blur, partial(gaussian_blur, kernel_size=config.blur_kernel), sigma)
    change(drawn.solarize, partial(solarize, threshold=config.solarize_threshold))
    return normalize(images, config.mean, config.std)
