"""A short measurement of this machine: how many images it decodes and embeds in a second."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from finesight.features.preprocess import picture_view
from finesight.features.types import Embedder, View
from finesight.io.parallel import bounded_map
from finesight.search.open_embedder import has_torch, open_indexing_embedder

SIZE = (1000, 750)  # pixels of the pictures: as a web page has them
FILES, SECONDS = 32, 2.0  # pictures, and the time for which they are decoded or embedded over and over
GROUP = 8
NETWORK = "ResNet-50 with random weights at 224 px"


def measure_decoding() -> float:
    """Return how many JPEGs of 1000 × 750 pixels become views of 224 pixels in a second, on all cores."""
    files = [_jpeg(seed) for seed in range(FILES)]

    def run() -> int:
        return sum(1 for _ in bounded_map(lambda data: picture_view(io.BytesIO(data), 224), files))

    return _rate(run)


def measure_embedding(encoder: Path | None = None) -> tuple[str, float] | None:
    """Return what was measured and how many images it embeds in a second; None if there is nothing to measure.

    That is ``encoder``, a run or an exported file, or else a ResNet-50 in torch, where that is installed.
    """
    if encoder is None and not has_torch():
        return None
    embedder, name = (open_indexing_embedder(encoder), str(encoder)) if encoder is not None else (_resnet(), NETWORK)
    view = picture_view(io.BytesIO(_jpeg(0)), embedder.framing)
    views: list[View] = [view] * GROUP

    def run() -> int:
        return len(embedder.encode(views))

    return name, _rate(run)


def _resnet() -> Embedder:
    from finesight.features.embedder import TorchEmbedder
    from finesight.features.encoder import Encoder
    from finesight.features.encoder_config import EncoderConfig
    from finesight.nn.backbone_config import BackboneConfig

    backbone = BackboneConfig(name="resnet50", weights="random")
    config = EncoderConfig(method="untrained", resolution=224, pooling="average", backbone=backbone)
    return TorchEmbedder(Encoder.untrained(config).eval(), "")


def _rate(run: Callable[[], int]) -> float:
    run()  # the first time is slower
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        done += run()
    return done / (time.perf_counter() - began)


def _jpeg(seed: int) -> bytes:
    """Return a picture with shapes and some grain, so that it decodes as a photograph does."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
        SIZE, Image.Resampling.BICUBIC
    )
    grain = random.integers(-12, 13, (SIZE[1], SIZE[0], 3))
    buffer = io.BytesIO()
    Image.fromarray((np.asarray(coarse, np.int16) + grain).clip(0, 255).astype(np.uint8)).save(
        buffer, "JPEG", quality=85
    )
    return buffer.getvalue()
