"""Where the salient object of each image is: found by a classical detector, or read from mask pictures.

The detector needs no training: it is the minimum barrier distance to the image border with the backgroundness cue,
the MB+ of Zhang et al., "Minimum Barrier Salient Object Detection at 80 FPS" (ICCV 2015). What cannot be reached from
the border without crossing an edge, and is not colored like the border either, is taken for the object. Frames around
pictures, which 5 % of CUB's have, are looked through.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
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
from finesight.data.saliency_store import kept, mirrored_masks, own_masks, read_alpha, read_binary

SIDE = 64  # of a map, which spans the whole cached image stretched to a square
VERSION = 1  # of what the detector computes: kept maps of another version are never read

_CHUNK = 64  # images at once: the sweeps of more leave the processor's cache
_ROUNDS = 3  # of sweeps: more change nothing visible
_FAR = 1e4  # a barrier that no path has
_FRAME = 6  # a frame is at most this part (1/6) of the side
_STRIP = 0.1  # of the side: how wide each of the four border strips is
_NOTICEABLE = 1.0  # in Lab: a smaller difference is none to the eye
_SMOOTH = 0.02  # of the side, σ
_CENTER = 0.4  # of the side, σ: photographers put the object there
_SLOPE = 10.0  # of the contrast sigmoid, as in the paper

_D65 = ((0.433953, 0.376219, 0.189828), (0.212673, 0.715152, 0.072175), (0.017757, 0.109469, 0.872774))  # XYZ / white


def detected(cache: DecodedCache, *, cache_dir: Path | None = None, progress: bool = True) -> NDArray[np.uint8]:
    """(N, SIDE, SIDE): the detector's map of every image, computed once and kept beside the decoded images."""
    folder = Path(cache_dir or default_cache_dir()).absolute() / f"v{VERSION}-saliency{SIDE}"
    keys, first, place = np.unique(cache.keys, return_index=True, return_inverse=True)  # an image may be listed twice

    def compute(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        maps = saliency_maps(_squares(cache, first[rows]))
        return maps.mul(255).round().to(torch.uint8).numpy()

    return kept(folder, keys, compute, SIDE, progress)[place]


def masks_from(cache: DecodedCache, folder: Path | None) -> NDArray[np.uint8]:
    """(N, SIDE, SIDE): alpha from a folder of masks that mirrors the images, or (None) from the source's own masks.

    A folder's gray values are kept as alpha; the source's own masks are object wherever they are not zero.
    """
    files = own_masks(cache.source) if folder is None else mirrored_masks(cache.source, folder)
    read = read_binary if folder is None else read_alpha

    def square(i: int) -> NDArray[np.uint8]:
        whole = replace(cache.geometry(i), size=(SIDE, SIDE))
        return np.asarray(whole.resize(whole.trimmed(read(files[i]))))

    with ThreadPoolExecutor() as pool:
        return np.stack(list(pool.map(square, range(len(cache)))))


def areas(maps: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(N, H, W) -> (N,): the mean alpha of each map, to tell masks that hold nearly nothing or nearly everything."""
    means: NDArray[np.float32] = maps.mean(axis=(1, 2), dtype=np.float64).astype(np.float32) / 255
    return means


def _squares(cache: DecodedCache, indices: NDArray[np.int64]) -> Tensor:
    """(N, 3, SIDE, SIDE) in [0, 1], each whole image stretched to the square."""
    pictures = [Image.fromarray(cache.image(i)).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for i in indices]
    pixels = np.stack([np.asarray(picture) for picture in pictures])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)  # (N, S, S, 3) -> (N, 3, S, S)


# --- the detector -------------------------------------------------------------------------------------


def saliency_maps(images: Tensor) -> Tensor:
    """RGB in [0, 1], (N, 3, H, W) -> (N, H, W) in [0, 1]; each image on its own, all zeros where it shows nothing."""
    return torch.cat([_maps(chunk) for chunk in torch.split(images, _CHUNK)])


def _maps(images: Tensor) -> Tensor:
    if not len(images):
        return images.new_zeros(images[:, 0].shape)
    lab = _unframed(_lab(images))
    cues = _scaled(barrier_distances(lab).sum(dim=1)) + _scaled(backgroundness(lab))
    colors = lab.flatten(2)
    shows_something = (colors.amax(2) - colors.amin(2)).amax(1) >= _NOTICEABLE  # (N,)
    return _contrasted(_centered(_smoothed(cues))) * shows_something[:, None, None]


def _lab(rgb: Tensor) -> Tensor:
    """sRGB -> CIE Lab (white D65), where equal distances look about equally different."""
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    red, green, blue = linear.unbind(1)
    x, y, z = (_cube_root(a * red + b * green + c * blue) for a, b, c in _D65)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=1)


def _cube_root(t: Tensor) -> Tensor:
    """Lab's: a straight line near zero."""
    edge = 6 / 29
    return torch.where(t > edge**3, t.clamp_min(edge**3) ** (1 / 3), t / (3 * edge**2) + 4 / 29)


def _unframed(lab: Tensor) -> Tensor:
    """The outermost lines of the picture in place of its frame, if it has one: behind that, all would be object."""
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
    even = (outer.std(3, correction=0).amax(1) < 4 * _NOTICEABLE).cumprod(1)  # (N, deepest)
    steps = (inner - outer).square().sum(1)[:, :, ends : lines.shape[3] - ends]
    jumps = (steps > (8 * _NOTICEABLE) ** 2).float().mean(2) > 0.8
    begins = torch.arange(2, deepest + 2, device=lines.device)
    return (even * jumps * begins).amax(1)


def barrier_distances(channels: Tensor, rounds: int = _ROUNDS) -> Tensor:
    """(N, C, H, W), per channel: the least (highest - lowest) value along any path to the border, nearly.

    Like the paper's raster scans, sweeps carry the extremes of the best path so far from pixel to pixel; here whole
    rows take part at once (down, up) and whole columns (right, left). Never below the exact distance.
    """
    rows = channels.permute(2, 0, 1, 3).contiguous()  # (N, C, H, W) -> (H, N, C, W): a row is one piece of memory
    columns = _turned(rows)  # (W, N, C, H)
    high, low = rows + _FAR, rows - _FAR
    for border in ((0,), (-1,), (..., 0), (..., -1)):
        high[border] = low[border] = rows[border]
    for _ in range(rounds):
        _sweep(rows, high, low)
        high, low = _turned(high), _turned(low)
        _sweep(columns, high, low)
        high, low = _turned(high), _turned(low)
    return (high - low).permute(1, 2, 0, 3)  # (H, N, C, W) -> (N, C, H, W)


def _turned(rows: Tensor) -> Tensor:
    return rows.transpose(0, 3).contiguous()


def _sweep(values: Tensor, high: Tensor, low: Tensor) -> None:
    """From the first row to the last and back: a pixel takes its neighbor's path where that has a lower barrier."""
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
    tall, wide = (max(1, round(side * _STRIP)) for side in lab.shape[2:])
    strips = (lab[:, :, :tall], lab[:, :, -tall:], lab[..., :wide], lab[..., -wide:])
    distances = torch.stack([_scaled(_mahalanobis(lab, strip)) for strip in strips])  # (4, N, H, W)
    return distances.sum(0) - distances.amax(0)


def _mahalanobis(lab: Tensor, strip: Tensor) -> Tensor:
    """(N, 3, H, W) to the colors of (N, 3, h, w); a strip of one color still has a noticeable spread."""
    sample = strip.flatten(2)  # (N, 3, P)
    mean = sample.mean(2, keepdim=True)
    centered = sample - mean
    covariance = centered @ centered.transpose(1, 2) / sample.shape[2]  # (N, 3, 3)
    spread = covariance + _NOTICEABLE**2 * torch.eye(3, dtype=lab.dtype, device=lab.device)
    away = lab.flatten(2) - mean
    solved: Tensor = torch.linalg.solve(spread, away)
    return (away * solved).sum(1).clamp_min(0).sqrt().view(-1, *lab.shape[2:])


def _scaled(maps: Tensor) -> Tensor:
    return maps / maps.amax((1, 2), keepdim=True).clamp_min(1e-6)


def _smoothed(maps: Tensor) -> Tensor:
    short = min(maps.shape[1:])
    sigma = maps.new_full((len(maps),), _SMOOTH * short)
    radius = min(math.ceil(3 * _SMOOTH * short), short - 1)
    return gaussian_blur(maps[:, None], sigma, 2 * radius + 1)[:, 0]


def _centered(maps: Tensor) -> Tensor:
    """Weighed by a wide Gaussian around the middle."""
    down, along = (
        torch.exp(
            -0.5 * (((torch.arange(side, dtype=maps.dtype, device=maps.device) + 0.5) / side - 0.5) / _CENTER) ** 2
        )
        for side in maps.shape[1:]
    )
    return maps * down[:, None] * along


def _contrasted(maps: Tensor) -> Tensor:
    """Min-max, then the sigmoid, its ends at 0 and 1.

    The object's own level counts as 1, not its brightest spot: the mean of what exceeds twice the map's mean, the
    adaptive threshold of Achanta et al., "Frequency-tuned Salient Region Detection" (CVPR 2009).
    """
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = (maps - low) / (high - low).clamp_min(1e-6)
    above = (maps > 2 * maps.mean((1, 2), keepdim=True)).to(maps.dtype)
    count = above.sum((1, 2), keepdim=True)
    level = torch.where(count > 0, (maps * above).sum((1, 2), keepdim=True) / count.clamp_min(1), 1)
    steep = torch.sigmoid(_SLOPE * ((maps / level).clamp_max(1) - 0.5))
    least = 1 / (1 + math.exp(_SLOPE / 2))
    return ((steep - least) / (1 - 2 * least)).clamp(0, 1)
