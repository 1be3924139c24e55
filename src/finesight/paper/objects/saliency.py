"""Find the salient object of each image by a classical detector, or read it from mask pictures.

The detector needs no training: it is the minimum barrier distance to the image border with the backgroundness cue,
the MB+ of Zhang et al., "Minimum Barrier Salient Object Detection at 80 FPS" (ICCV 2015). What cannot be reached from
the border without crossing an edge, and is not colored like the border either, is taken for the object. Frames around
pictures, which 5 % of CUB's have, are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from finesight.data.cache import DecodedCache, default_cache_dir
from finesight.data.color import gaussian_blur
from finesight.errors import FineSightError
from finesight.io.parallel import bounded_map
from finesight.paper.objects import saliency_store as store

SIDE = 64  # of a map, which spans the whole cached image stretched to a square
VERSION = 1  # of what the detector computes: kept maps of another version are never read

CHUNK = 64  # images at once: the sweeps of more leave the processor's cache
_ROUNDS = 3  # of sweeps: more change nothing visible
_FAR = 1e4  # a barrier that no path has
_FRAME = 6  # a frame is at most this part (1/6) of the side
STRIP = 0.1  # of the side: how wide each of the four border strips is
NOTICEABLE = 1.0  # in Lab: a smaller difference is none to the eye
_SMOOTH = 0.02  # of the side, σ
CENTER_SIGMA = 0.4  # of the side, σ: photographers put the object there
SLOPE = 10.0  # of the contrast sigmoid, as in the paper

_D65 = ((0.433953, 0.376219, 0.189828), (0.212673, 0.715152, 0.072175), (0.017757, 0.109469, 0.872774))  # XYZ / white


def detect_objects(
    cache: DecodedCache,
    *,
    cache_dir: Path | None = None,
    progress: bool = True,
    detector: Callable[[Tensor], Tensor] | None = None,
    shard: int = store.SHARD,
) -> NDArray[np.uint8]:
    """Return a map of every image, (N, SIDE, SIDE), computed once and kept beside the decoded images.

    ``detector`` is ``saliency_maps`` by default; so many maps as ``shard`` says are computed and written at once.
    """
    find = detector or saliency_maps
    folder = Path(cache_dir or default_cache_dir()).absolute() / f"v{VERSION}-saliency{SIDE}"
    keys, first, inverse = np.unique(cache.keys, return_index=True, return_inverse=True)  # an image may be listed twice

    def compute(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        maps = find(_squares(cache, first[rows]))
        return maps.mul(255).round().to(torch.uint8).numpy()

    return store.load_or_compute(folder, keys, compute, SIDE, progress, shard)[inverse]


def read_masks(cache: DecodedCache, folder: Path | None) -> NDArray[np.uint8]:
    """Return masks (N, SIDE, SIDE) from a folder that mirrors the images, or (None) from those of the source itself.

    A folder's gray values are kept as alpha; the source's own masks are object wherever they are not zero. Raises
    FineSightError if a mask is missing or cannot be read.
    """
    files = store.own_masks(cache.source) if folder is None else store.mirrored_masks(cache.source, folder)
    read = store.read_binary if folder is None else store.read_alpha

    def square(i: int) -> NDArray[np.uint8]:
        whole = replace(cache.geometry(i), size=(SIDE, SIDE))
        return np.asarray(whole.resize(whole.trim_rows(read(files[i]))))

    return np.stack([mask for _, mask in bounded_map(square, range(len(cache)))])


def fill_boxes(cache: DecodedCache) -> NDArray[np.uint8]:
    """Return masks (N, SIDE, SIDE) of the annotated boxes: the share of each cell of the image that the box covers.

    Raises FineSightError if the source has no boxes.
    """
    if cache.source.boxes is None:
        raise FineSightError(f"{cache.source.root} has no boxes; let the objects be detected: saliency.source=detector")
    masks = np.zeros((len(cache), SIDE, SIDE), np.uint8)
    for i, size in enumerate(cache.sizes):
        box = cache.box(i)
        assert box is not None
        (x, y, width, height), edges = (float(value) for value in box), np.linspace(0, 1, SIDE + 1)
        covers = []  # of rows, then of columns
        for low, length, whole in ((y, height, size[0]), (x, width, size[1])):
            inside = np.clip(edges * whole, low, low + length)
            covers.append(np.diff(inside) * SIDE / whole)
        masks[i] = np.round(255 * np.outer(*covers))
    return masks


def _squares(cache: DecodedCache, indices: NDArray[np.int64]) -> Tensor:
    """(N, 3, SIDE, SIDE) in [0, 1], each whole image stretched to the square."""
    pictures = [Image.fromarray(cache.image(i)).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for i in indices]
    pixels = np.stack([np.asarray(picture) for picture in pictures])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)  # (N, S, S, 3) -> (N, 3, S, S)


# --- the detector -------------------------------------------------------------------------------------


def saliency_maps(images: Tensor) -> Tensor:
    """RGB in [0, 1], (N, 3, H, W) -> (N, H, W) in [0, 1]; each image on its own, all zeros where it shows nothing."""
    return torch.cat([_maps(chunk) for chunk in torch.split(images, CHUNK)])


def _maps(images: Tensor) -> Tensor:
    if not len(images):
        return images.new_zeros(images[:, 0].shape)
    lab = remove_frame(rgb_to_lab(images))
    cues = _divide_by_max(barrier_distances(lab).sum(dim=1)) + _divide_by_max(backgroundness(lab))
    colors = lab.flatten(2)
    shows_something = (colors.amax(2) - colors.amin(2)).amax(1) >= NOTICEABLE  # (N,)
    down, along = (_center_weights(side, lab) for side in lab.shape[2:])
    return stretch_contrast(_smooth(cues) * down[:, None] * along) * shows_something[:, None, None]


def rgb_to_lab(rgb: Tensor) -> Tensor:
    """Convert sRGB to CIE Lab (white D65), where equal distances look about equally different. (N, 3, H, W)"""
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    red, green, blue = linear.unbind(1)
    x, y, z = (_cube_root(a * red + b * green + c * blue) for a, b, c in _D65)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=1)


def _cube_root(t: Tensor) -> Tensor:
    """Return the cube root as Lab has it, with a straight line near zero."""
    edge = 6 / 29
    return torch.where(t > edge**3, t.clamp_min(edge**3) ** (1 / 3), t / (3 * edge**2) + 4 / 29)


def remove_frame(lab: Tensor) -> Tensor:
    """Replace the frame of a picture, if it has one, by the picture's outermost lines; else all inside were object."""
    for axis in (2, 3):
        lines = lab.transpose(2, axis)  # (N, 3, lines, length)
        last = lines.shape[2] - 1
        position = torch.arange(last + 1, device=lab.device).expand(len(lab), -1)
        position = torch.maximum(position, _frame(lines)[:, None])
        position = torch.minimum(position, last - _frame(lines.flip(2))[:, None])  # (N, lines)
        lab = lines.gather(2, position[:, None, :, None].expand_as(lines)).transpose(2, axis)
    return lab


def _frame(lines: Tensor) -> Tensor:
    """(N, 3, lines, length) -> (N,): with which line the picture begins.

    Lines of a frame have one color each; then, past a blended line and between the frame's other sides, nearly the
    whole line is another color.
    """
    deepest, ends = lines.shape[2] // _FRAME, lines.shape[3] // _FRAME
    if deepest < 2:
        return torch.zeros(len(lines), dtype=torch.int64, device=lines.device)
    outer, inner = lines[:, :, :deepest], lines[:, :, 2 : deepest + 2]
    even = (outer.std(3, correction=0).amax(1) < 4 * NOTICEABLE).cumprod(1)  # (N, deepest)
    steps = (inner - outer).square().sum(1)[:, :, ends : lines.shape[3] - ends]
    jumps = (steps > (8 * NOTICEABLE) ** 2).float().mean(2) > 0.8
    begins = torch.arange(2, deepest + 2, device=lines.device)
    return (even * jumps * begins).amax(1)


def barrier_distances(channels: Tensor, rounds: int = _ROUNDS) -> Tensor:
    """(N, C, H, W), per channel: the least (highest - lowest) value along any path to the border, nearly.

    Like the paper's raster scans, sweeps carry the extremes of the best path so far from pixel to pixel; here whole
    rows take part at once (down, up) and whole columns (right, left). Never below the exact distance.
    """
    rows = channels.permute(2, 0, 1, 3).contiguous()  # (N, C, H, W) -> (H, N, C, W): a row is one piece of memory
    columns = _swap_rows_and_columns(rows)  # (W, N, C, H)
    high, low = rows + _FAR, rows - _FAR
    for border in ((0,), (-1,), (..., 0), (..., -1)):
        high[border] = low[border] = rows[border]
    for _ in range(rounds):
        _sweep(rows, high, low)
        high, low = _swap_rows_and_columns(high), _swap_rows_and_columns(low)
        _sweep(columns, high, low)
        high, low = _swap_rows_and_columns(high), _swap_rows_and_columns(low)
    return (high - low).permute(1, 2, 0, 3)  # (H, N, C, W) -> (N, C, H, W)


def _swap_rows_and_columns(rows: Tensor) -> Tensor:
    return rows.transpose(0, 3).contiguous()


def _sweep(values: Tensor, high: Tensor, low: Tensor) -> None:
    """Sweep down and back up: a pixel takes the path of its neighbor where that has a lower barrier."""
    lines = list(zip(values, high, low, strict=True))
    for order in (lines, lines[::-1]):
        for (_, high_before, low_before), (value, high_here, low_here) in pairwise(order):
            higher, lower = torch.maximum(high_before, value), torch.minimum(low_before, value)
            better = (higher - lower < high_here - low_here).to(value.dtype)
            high_here.lerp_(higher, better)  # with weights 0 and 1: chooses, faster than where
            low_here.lerp_(lower, better)


def backgroundness(lab: Tensor) -> Tensor:
    """(N, 3, H, W) -> (N, H, W): how far a pixel's color is from those of the border.

    Mahalanobis distances to the four border strips, less the largest: one strip may lie on the object.
    """
    tall, wide = (max(1, round(side * STRIP)) for side in lab.shape[2:])
    strips = (lab[:, :, :tall], lab[:, :, -tall:], lab[..., :wide], lab[..., -wide:])
    distances = torch.stack([_divide_by_max(_mahalanobis(lab, strip)) for strip in strips])  # (4, N, H, W)
    return distances.sum(0) - distances.amax(0)


def _mahalanobis(lab: Tensor, strip: Tensor) -> Tensor:
    """(N, 3, H, W) to the colors of (N, 3, h, w); a strip of one color still has a noticeable spread."""
    sample = strip.flatten(2)  # (N, 3, P)
    mean = sample.mean(2, keepdim=True)
    centered = sample - mean
    covariance = centered @ centered.transpose(1, 2) / sample.shape[2]  # (N, 3, 3)
    spread = covariance + NOTICEABLE**2 * torch.eye(3, dtype=lab.dtype, device=lab.device)
    away = lab.flatten(2) - mean
    solved: Tensor = torch.linalg.solve(spread, away)
    return (away * solved).sum(1).clamp_min(0).sqrt().view(-1, *lab.shape[2:])


def _divide_by_max(maps: Tensor) -> Tensor:
    return maps / maps.amax((1, 2), keepdim=True).clamp_min(1e-6)


def _smooth(maps: Tensor) -> Tensor:
    short = min(maps.shape[1:])
    sigma = maps.new_full((len(maps),), _SMOOTH * short)
    radius = min(math.ceil(3 * _SMOOTH * short), short - 1)
    return gaussian_blur(maps[:, None], sigma, 2 * radius + 1)[:, 0]


def _center_weights(side: int, like: Tensor) -> Tensor:
    """Return a wide Gaussian around the middle."""
    pixels = torch.arange(side, dtype=like.dtype, device=like.device)
    return torch.exp(-0.5 * (((pixels + 0.5) / side - 0.5) / CENTER_SIGMA) ** 2)


def stretch_contrast(maps: Tensor) -> Tensor:
    """Min-max, then the sigmoid, its ends at 0 and 1.

    The object's own level counts as 1, not its brightest spot: the mean of what exceeds twice the map's mean, the
    adaptive threshold of Achanta et al., "Frequency-tuned Salient Region Detection" (CVPR 2009).
    """
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = (maps - low) / (high - low).clamp_min(1e-6)
    above = (maps > 2 * maps.mean((1, 2), keepdim=True)).to(maps.dtype)
    count = above.sum((1, 2), keepdim=True)
    level = torch.where(count > 0, (maps * above).sum((1, 2), keepdim=True) / count.clamp_min(1), 1)
    steep = torch.sigmoid(SLOPE * ((maps / level).clamp_max(1) - 0.5))
    least = 1 / (1 + math.exp(SLOPE / 2))
    return ((steep - least) / (1 - 2 * least)).clamp(0, 1)
