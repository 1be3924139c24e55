"""Small encoders, and indexes of vectors that no network made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.nn.backbone_config import BackboneConfig
from finesight.rationale.config import RationaleConfig
from finesight.search.base import Index, IndexItem, IndexMeta, NewItems
from finesight.search.faiss_index import FaissIndex
from finesight.search.structures import FaissLimits

DIMENSION = 24
SPACES = ("rationale-gem", "average")
Array = NDArray[np.float32]


def small_encoder(folder: Path, pooling: str = "rationale-gem", seed: int = 0) -> Path:
    """An untrained LCR encoder of a few thousand weights, saved as a run leaves it. -> the run"""
    torch.manual_seed(seed)
    rationale = RationaleConfig(projections=4) if pooling.startswith(("rationale", "bilinear")) else None
    config = EncoderConfig(
        method="lcr",
        resolution=32,
        pooling=pooling,
        backbone=BackboneConfig(name="test_resnet", weights="random", output_stride=8),
        rationale=rationale,
    )
    Encoder.untrained(config).save(folder / "encoder")
    return folder


def meta(root: Path | str = "/nowhere", dimension: int = DIMENSION) -> IndexMeta:
    return IndexMeta(
        fingerprint="f" * 32,
        method="lcr",
        resolution=32,
        spaces=SPACES,
        dimension=dimension,
        root=str(root),
        run="/runs/none",
    )


def units(rows: int, dimension: int = DIMENSION, seed: int = 0, clusters: int = 0) -> Array:
    """Unit vectors, loosely around ``clusters`` centers if any are asked for."""
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((rows, dimension))
    if clusters:
        vectors = random.standard_normal((clusters, dimension))[random.integers(0, clusters, rows)] + 1.2 * vectors
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def item(number: int, path: str | None = None) -> IndexItem:
    mask = np.full((3, 4), number % 7 / 7, np.float32)
    return IndexItem(number, path or f"images/{number:05d}.jpg", 100 + number, 10**18 + number, 640, 480, mask)


def batch(numbers: list[int], vectors: Array, other: Array | None = None) -> NewItems:
    second = vectors[:, ::-1] if other is None else other
    return NewItems([item(number) for number in numbers], {SPACES[0]: vectors, SPACES[1]: second})


def empty_index(folder: Path, dimension: int = DIMENSION, **limits: Any) -> FaissIndex:
    """Without an encoder: nothing here embeds."""
    encoder = folder.parent / "no-encoder"
    encoder.mkdir(exist_ok=True)
    FaissIndex.create(folder, meta(dimension=dimension), encoder).close()
    return FaissIndex(folder, FaissLimits(**limits))


def filled_index(folder: Path, vectors: Array, **limits: Any) -> FaissIndex:
    """Item ids count from 1, in the order of the rows; ``average`` holds them backwards."""
    index = empty_index(folder, vectors.shape[1], **limits)
    for start in range(0, len(vectors), 1000):
        piece = vectors[start : start + 1000]
        index.add(batch(list(range(start + 1, start + len(piece) + 1)), piece))
    index.finish()
    return index


def contents(index: Index) -> dict[str, tuple[object, ...]]:
    """Return all an index holds, by path: two of the same images must agree."""
    found = {}
    for space in index.meta.spaces:
        for ids, rows in index.blocks(space, rows=70):
            for one, row in zip(index.items(ids.tolist()), rows, strict=True):
                assert one is not None
                facts = found.setdefault(one.path, (one.id, one.bytes, one.mtime_ns, one.width, one.mask.tobytes()))
                found[one.path] = (*facts, row.tobytes())
    return found


def update_slowly(where: str, run: str, folder: str) -> None:
    """Update an index in a process that is to be killed, committing three images at a time."""
    from finesight.features.embedder import TorchEmbedder
    from finesight.search import build

    engine = TorchEmbedder.load(run, exact=True)
    index = build.open_or_create(where, engine, run, folder)
    build.update_index(index, engine, folder, workers=2, commit_images=3)
    index.close()
