"""Compare onnxruntime with PyTorch on noise and on smooth pictures, in several sizes and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from finesight.features.encoder import Encoder, projection_responses
from finesight.features.onnx_runtime import ATTENTION, IMAGES, REGION, RESPONSES, open_session, vector_outputs
from finesight.io.progress import track
from finesight.nn.feature_map import ANY_SIDE, Sides
from finesight.nn.poolings import find_pooling


@dataclass(frozen=True)
class OutputDifference:
    """The largest difference over all pictures that were tried."""

    output: str
    absolute: float
    relative: float  # to the largest value of that output for the picture; of attention, to 1 if that is larger
    cosine: float | None  # the smallest, where the output is a vector


def check(
    encoder: Encoder,
    model: Path,
    names: Sequence[str],
    *,
    seed: int = 0,
    progress: bool = True,
    sides: Sides | None = None,
) -> tuple[OutputDifference, ...]:
    """Return how far every output of the file is from what the encoder itself gives for the same pixels.

    Images have ``sides``, by default those that the network takes.
    """
    session = open_session(model)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    inputs = list(trials(encoder.config.resolution, encoder.backbone.stride, seed, sides or encoder.backbone.map.sides))
    narrow = find_pooling(encoder.config.pooling).can_narrow
    for images, given_region in track(inputs, len(inputs), "checking", show=progress):
        region = given_region if narrow else None
        given = {IMAGES: images.numpy()} | ({} if region is None else {REGION: region.numpy()})
        wanted = reference(encoder, images, region, names)
        for name, got in zip(names, session.run(list(names), given), strict=True):
            found[name] += _compare(name, wanted[name], got)
    return tuple(_worst(name, rows) for name, rows in found.items())


@torch.no_grad()
def reference(
    encoder: Encoder, images: Tensor, region: Tensor | None, names: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """Return what PyTorch makes of pixels (N, H, W, 3), by the code that embeds and evaluates, not by the graph."""
    views = encoder.normalize(images.numpy())
    poolings = vector_outputs(find_pooling(encoder.config.pooling))
    output = encoder.encode(views, tuple(dict.fromkeys(poolings.values())), regions=region)
    outputs = {name: output.features[pooling].numpy() for name, pooling in poolings.items()}
    outputs[ATTENTION] = output.attention.numpy()
    if RESPONSES in names:
        assert encoder.branch is not None
        outputs[RESPONSES] = projection_responses(encoder, views)
    return outputs


def trials(side: int, stride: int, seed: int, sides: Sides = ANY_SIDE) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield images and regions: one and several, square and not, as large as the view and larger, whole and in part.

    A network that takes one size only gets squares of that size.
    """
    draw = torch.Generator().manual_seed(seed)
    wide, tall = (sides.at_least(pixels) for pixels in (side + stride + 3, side + side // 2))
    sizes = ((1, side, side), (3, side, side), (2, side, wide), (1, tall, side))
    for n, (count, height, width) in enumerate(sizes):
        noise = torch.rand(count, 3, height, width, generator=draw)
        coarse = torch.rand(count, 3, 5, 6, generator=draw)
        smooth = 0.9 * interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1) + 0.1 * noise
        part = torch.zeros(count, height, width)
        part[:, height // 4 : height // 4 + height // 2, n * width // 8 : n * width // 8 + width // 2] = 1
        yield _pixels(noise), None
        yield _pixels(smooth), None
        yield _pixels(smooth), part


def _pixels(images: Tensor) -> Tensor:
    """Convert values in [0, 1] to bytes. (N, 3, H, W) -> (N, H, W, 3)"""
    return (255 * images).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _compare(name: str, wanted: NDArray[np.float32], got: NDArray[np.float32]) -> list[tuple[float, float, float]]:
    """Return absolute and relative difference and cosine for each of N images."""
    assert wanted.shape == got.shape, f"{name}: {wanted.shape} and {got.shape}"
    # a mask is in [0, 1], unless its divisor is the plain maximum (variant "paper"), which may be near 0
    least = 1.0 if name == ATTENTION else 1e-12
    rows = []
    for want, have in zip(wanted.astype(np.float64), got.astype(np.float64), strict=True):
        gap = float(np.abs(want - have).max())
        rows.append((gap, gap / max(float(np.abs(want).max()), least), cosine(want.ravel(), have.ravel())))
    return rows


def _worst(name: str, rows: list[tuple[float, float, float]]) -> OutputDifference:
    absolute, relative, cosines = np.transpose([(0.0, 0.0, 1.0), *rows])
    smallest = None if name in (ATTENTION, RESPONSES) else float(np.min(cosines))
    return OutputDifference(name, float(np.max(absolute)), float(np.max(relative)), smallest)  # nan if one of them is


def cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return the cosine of two vectors; 1 if both are zero."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length > 0 else float(not a.any() and not b.any())
