"""Views on a CPU: one image after the other, by OpenCV, large ones in as many threads as torch may use.

The result is that of the batched operations for GPUs (``crop``, ``color``) but for rounding. Two things make it faster:
OpenCV works on an image that stays in the cache of a core and gives the lock of the interpreter free meanwhile; and
brightness, contrast, saturation, gray and normalization are one matrix wherever no number can leave [0, 1] between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.data.color import LUMA
from finesight.data.shares import in_shares

if TYPE_CHECKING:
    from finesight.data.views import ViewConfig, ViewParams

THREADED_SIDE = 224  # pixels from which threads gain time: a smaller view is made mostly by Python, one at a time
Compose = Callable[[Tensor], Tensor]
Pixels = NDArray[Any]  # float32 (R, R, 3), or (R, R) where the three are equal

cv2.setNumThreads(1)  # images are shared out among threads already


def make_views(config: ViewConfig, canvas: Tensor, params: ViewParams, compose: Compose | None = None) -> Tensor:
    """Return what ``apply_views`` says, with the three numbers of a pixel beside each other in memory."""
    side, kernel_size, mean, std = config.resolution, config.blur_kernel, np.array(config.mean), np.array(config.std)
    crop = _cropper(canvas, params.crop, params.flip, side)
    if compose is not None:
        crop = _as_images(compose(_make(len(canvas), side, crop))).__getitem__
    columns = (params.jitter, params.order, params.factors, params.gray, params.blur, params.sigma, params.solarize)
    drawn = list(zip(*(column.tolist() for column in columns), strict=True))

    def make(i: int) -> Pixels:
        jitter, order, factors, gray, blur, sigma, solarize = drawn[i]
        colors = _Colors(crop(i))
        for kind in order if jitter else ():
            colors.jitter(kind, factors[kind])
        if gray:
            colors.make_gray()
        if blur:
            colors.blur(sigma, kernel_size)
        if solarize:
            colors.solarize(config.solarize_threshold)
        return colors.normalized(mean, std)

    return _make(len(canvas), side, make)


def crop_images(canvas: Tensor, crop: Tensor, flip: Tensor, resolution: int) -> Tensor:
    """Return what ``crop_resize_flip`` says, with the three numbers of a pixel beside each other in memory."""
    return _make(len(canvas), resolution, _cropper(canvas, crop, flip, resolution))


def _make(count: int, side: int, make: Callable[[int], Pixels]) -> Tensor:
    """Return all images that ``make`` makes, (N, 3, R, R)."""
    images = np.empty((count, side, side, 3), np.float32)

    def work(share: slice) -> None:
        for i in range(count)[share]:
            images[i] = make(i)

    if side < THREADED_SIDE:
        work(slice(0, count))
    else:
        in_shares(work, count)
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def _cropper(canvas: Tensor, crop: Tensor, flip: Tensor, side: int) -> Callable[[int], Pixels]:
    """Return what makes the view of image ``i`` with its colors as they are."""
    images, corners, flips = _as_images(canvas), crop.tolist(), flip.tolist()

    def make(i: int) -> Pixels:
        top, left, height, width = corners[i]
        pixels = images[i, top : top + height, left : left + width] * np.float32(1 / 255)
        view = cv2.resize(pixels, (side, side), interpolation=cv2.INTER_LINEAR)
        return cv2.flip(view, 1) if flips[i] else view

    return make


def _as_images(batch: Tensor) -> NDArray[Any]:
    """(N, 3, H, W) -> (N, H, W, 3), without a copy where pixels lie so in memory."""
    return batch.permute(0, 2, 3, 1).contiguous().numpy()


class _Colors:
    """The pixels of an image, and a matrix that they are still to be multiplied by; its last column is added."""

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels
        self.matrix = np.eye(3, 4)

    def jitter(self, kind: int, factor: float) -> None:
        """Change brightness 0, contrast 1, saturation 2 by a factor, or turn the hue 3."""
        if kind == 3:
            if factor != 0:
                self._turn_hue(factor)
            return
        other, gray = np.zeros(4), LUMA @ self.matrix
        if kind == 1:
            other[3] = gray @ [*cv2.mean(self.pixels)[:3], 1]
        elif kind == 2:
            other = gray
        self.matrix = factor * self.matrix + (1 - factor) * other
        if factor > 1:  # a mixture by a smaller one stays in [0, 1]
            self._multiply()
            np.clip(self.pixels, 0, 1, out=self.pixels)

    def _turn_hue(self, shift: float) -> None:
        self._multiply()
        hsv: Pixels = cv2.cvtColor(self.pixels, cv2.COLOR_RGB2HSV)
        hsv[..., 0] += np.float32(360 * (shift % 1))  # OpenCV takes no negative hue
        self.pixels = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)

    def make_gray(self) -> None:
        self.pixels = cv2.transform(self.pixels, (LUMA @ self.matrix)[None].astype(np.float32))
        self.matrix = np.eye(1, 2)

    def blur(self, sigma: float, kernel_size: int) -> None:
        """Blur the pixels as they are: a matrix of colors does the same before and after."""
        offsets = np.arange(kernel_size) - kernel_size // 2
        weights = np.exp(-0.5 * (offsets / sigma) ** 2)
        taps = (weights / weights.sum()).astype(np.float32)
        self.pixels = cv2.sepFilter2D(self.pixels, -1, taps, taps, borderType=cv2.BORDER_REFLECT_101)

    def solarize(self, threshold: float) -> None:
        self._multiply()
        self.pixels += (self.pixels >= threshold) * (1 - 2 * self.pixels)

    def normalized(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> Pixels:
        self.matrix = self.matrix / std[:, None]
        self.matrix[:, -1] -= mean / std
        self._multiply()
        return self.pixels

    def _multiply(self) -> None:
        self.pixels = cv2.transform(self.pixels, self.matrix.astype(np.float32))
        self.matrix = np.eye(*self.matrix.shape)
