"""What goes into an embedder and what comes out of it. No torch: searching needs none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from finesight.data.geometry import Framing

Floats = NDArray[np.float32]
Box = tuple[float, float, float, float]  # x, y, width, height as shares of the upright picture, each in [0, 1]


@dataclass(frozen=True)
class View:
    """The square part of a picture that the network sees."""

    pixels: NDArray[np.uint8]  # (R, R, 3)
    box: Box  # where it lies in the upright picture
    width: int  # of the upright picture
    height: int


@dataclass(frozen=True)
class Embedding:
    """What an embedder makes of one view."""

    features: dict[str, Floats]  # space -> (D,) of length 1
    mask: Floats  # (H, W) in [0, 1]


@dataclass(frozen=True)
class EncoderFacts:
    """What an index keeps of the encoder that made it."""

    method: str
    weights: str  # what its backbone began with
    channels: int
    widths: dict[str, int]  # numbers of a feature in each space


class Embedder(Protocol):
    """Turns views into features: by torch, or by onnxruntime where there is no torch."""

    fingerprint: str
    spaces: tuple[str, ...]
    framing: Framing

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        """Return one embedding per view; ``regions`` narrow the pooling to a part of the picture, as ``View.box``."""
        ...


class IndexingEmbedder(Embedder, Protocol):
    """An ``Embedder`` that knows enough about its encoder to begin an index."""

    @property
    def facts(self) -> EncoderFacts:
        """What an index keeps of the encoder."""
        ...
