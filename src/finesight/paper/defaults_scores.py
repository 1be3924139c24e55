"""Leave-one-out retrieval on test images whose features are kept on disk: no image is embedded twice by a network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from finesight.data.cache import DecodedCache, open_cache
from finesight.data.geometry import Framing
from finesight.data.sources import ImageSource
from finesight.evaluation.evaluate import split_indices
from finesight.evaluation.retrieval import RetrievalScores, retrieval
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.features.wide import Features, WideRows
from finesight.io.atomic import atomic_path
from finesight.nn.poolings import find_pooling
from finesight.training.config import RuntimeConfig

Scored = dict[str, RetrievalScores]  # by pooling


@dataclass(frozen=True, eq=False)
class TestImages:
    """The decoded test images of a source at a resolution, and where their features are kept."""

    __test__ = False  # pytest would take it for a test

    cache: DecodedCache
    folder: Path
    progress: bool

    @classmethod
    def open(cls, source: ImageSource, framing: Framing, folder: Path, runtime: RuntimeConfig) -> Self:
        """Decode what is not decoded yet."""
        cache = open_cache(
            source.select(split_indices(source)[1]),
            framing.scale,
            cache_dir=runtime.cache_dir,
            workers=runtime.workers,
            progress=runtime.progress,
        )
        return cls(cache, folder, runtime.progress)

    def score(self, encoder: Encoder, poolings: Sequence[str]) -> Scored:
        """Return the scores of ``finesight evaluate`` under each pooling."""
        labels = self.cache.source.labels
        assert labels is not None
        features = self.features(encoder, poolings)
        return {name: retrieval(features[name], labels) for name in poolings}

    def features(self, encoder: Encoder, poolings: Sequence[str]) -> dict[str, Features]:
        """Return the features under each pooling; what is not on disk is embedded in one pass."""
        if not any(find_pooling(name).needs_branch for name in poolings):
            encoder = encoder.with_pooling("average")  # without its branch, which no pooling uses
        files = {name: self.folder / f"{feature_key(encoder, self.cache, name)}.npy" for name in poolings}
        known: dict[str, Features] = {name: np.load(file) for name, file in files.items() if file.exists()}
        missing = [name for name in poolings if name not in known]
        if missing:
            known |= extract(encoder, self.cache, np.arange(len(self.cache)), missing, progress=self.progress).features
        for name in missing:
            if not isinstance(features := known[name], WideRows):
                with atomic_path(files[name]) as scratch:
                    np.save(scratch, features)
        return known


def feature_key(encoder: Encoder, cache: DecodedCache, pooling: str) -> str:
    """Return a digest of everything that features depend on: weights, view, pooling and images.

    A network that a run left as it was has the key of the frozen one.
    """
    config = encoder.config
    view = {"pooling": pooling, "resolution": config.resolution, "mean": config.mean, "std": config.std}
    network = encoder.backbone.config.model_dump(exclude={"weights", "freeze", "frozen_norm", "lora", "lora_alpha"})
    parts = {"backbone": encoder.backbone.state_dict()}
    if find_pooling(pooling).needs_branch and encoder.branch is not None and config.rationale is not None:
        network["rationale"] = config.rationale.model_dump(mode="json")
        parts["branch"] = encoder.branch.state_dict()
    digest = hashlib.blake2b(json.dumps([view, network], sort_keys=True).encode(), digest_size=12)
    for part, state in parts.items():
        for name, values in sorted(state.items()):
            digest.update(f"{part}.{name}".encode())
            digest.update(values.cpu().contiguous().numpy().tobytes())
    digest.update(cache.keys.tobytes())
    return digest.hexdigest()
