"""Views to features by torch, and which encoder it is that makes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from finesight.errors import FineSightError
from finesight.features.preprocess import region_share
from finesight.features.types import Box, Embedding, Floats, View

if TYPE_CHECKING:
    from torch import Tensor

    from finesight.features.encoder import Encoder

CONFIG, WEIGHTS = "encoder.json", "encoder.safetensors"  # as ``finesight.features.encoder`` has them, which needs torch


def encoder_home(run: str | Path) -> Path:
    """The encoder folder of a run, or the folder itself if it is one."""
    run = Path(run)
    return run / "encoder" if not (run / CONFIG).exists() and (run / "encoder" / CONFIG).exists() else run


def fingerprint(folder: str | Path) -> str:
    """Of what an encoder folder says and of its weights: two that differ make different features."""
    folder = encoder_home(folder)
    digest = hashlib.blake2b(digest_size=16)
    try:
        content = json.loads((folder / CONFIG).read_text())
        digest.update(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
        with open(folder / WEIGHTS, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    except (OSError, ValueError) as error:
        raise FineSightError(f"The encoder in {folder} cannot be read: {error}") from error
    return digest.hexdigest()


def spaces_of(pooling: str) -> tuple[str, ...]:
    """The poolings an index keeps for an encoder: its own, and the plain average to compare with.

    Bilinear features are K times as wide as φ, too wide to keep of every image: the mask that sums them up stands in.
    """
    own = "rationale" if pooling == "bilinear" else pooling
    return (own,) if own == "average" else (own, "average")


def unit(features: Floats) -> Floats:
    """To length 1; what is zero stays zero. (..., D) -> (..., D)"""
    length = np.sqrt(np.square(features, dtype=np.float64).sum(-1, keepdims=True))
    scaled: Floats = (features / np.maximum(length, np.finfo(np.float32).tiny)).astype(np.float32)
    return scaled


class TorchEmbedder:
    """An encoder as an embedder. On the CPU one image at a time: a feature is its image's own, bit for bit."""

    def __init__(self, encoder: Encoder, fingerprint: str) -> None:
        self.encoder = encoder
        self.fingerprint = fingerprint
        self.spaces = spaces_of(encoder.config.pooling)
        self.resolution = encoder.config.resolution

    @classmethod
    def load(cls, run: str | Path) -> Self:
        """From an encoder folder or from the run folder that holds one."""
        from finesight.features.encoder import Encoder

        encoder = Encoder.load(run)  # first: it explains what is missing
        return cls(encoder, fingerprint(run))

    def encode(self, views: Sequence[View], regions: Sequence[Box | None] | None = None) -> list[Embedding]:
        """Views of the batch that have a region are pooled over it; the others as always."""
        regions = regions if regions is not None else [None] * len(views)
        if len(regions) != len(views):
            raise ValueError(f"{len(views)} views but {len(regions)} regions")
        embeddings: dict[int, Embedding] = {}
        for chosen in self._together(regions):
            embeddings |= zip(
                chosen, self._embeddings([views[i] for i in chosen], [regions[i] for i in chosen]), strict=True
            )
        return [embeddings[i] for i in range(len(views))]

    def _together(self, regions: Sequence[Box | None]) -> list[list[int]]:
        """What may go through the network in one batch: on a GPU all, unless masks depend on their batch."""
        places = range(len(regions))
        rationale = self.encoder.config.rationale
        if self.encoder.device.type == "cpu" or (rationale is not None and rationale.mask_range == "batch"):
            return [[i] for i in places]
        groups = [i for i in places if regions[i] is None], [i for i in places if regions[i] is not None]
        return [group for group in groups if group]

    def _embeddings(self, views: Sequence[View], regions: Sequence[Box | None]) -> list[Embedding]:
        shares = [region_share(view, box) for view, box in zip(views, regions, strict=True) if box is not None]
        encoded = self.encoder.encode(self._tensor(views), self.spaces, regions=_stacked(shares))
        features = {name: unit(values.numpy()) for name, values in encoded.features.items()}
        masks = encoded.attention.numpy()
        return [Embedding({name: values[i] for name, values in features.items()}, masks[i]) for i in range(len(views))]

    def _tensor(self, views: Sequence[View]) -> Tensor:
        """(N, 3, R, R), normalized as the encoder does it."""
        import torch

        canvas = torch.from_numpy(np.stack([view.pixels for view in views])).permute(0, 3, 1, 2)
        return self.encoder.view(canvas, torch.tensor([view.pixels.shape[:2] for view in views]))


def _stacked(shares: list[Floats]) -> Tensor | None:
    import torch

    return torch.from_numpy(np.stack(shares)) if shares else None
