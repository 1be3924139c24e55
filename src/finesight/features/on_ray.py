"""Embed images on a Ray cluster: shards of the listing → decode → network → back here, where results are written.

Decoding runs as tasks and the network in actors, one encoder in each. Ray runs again what a lost machine had not
delivered. Every result comes to this process, which alone writes, and drops what it has already. Machines need the
images under the same paths (a shared folder, or an address as s3://); weights are sent to them.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.decode import UnreachableFile
from finesight.data.geometry import Framing
from finesight.errors import FineSightError, SkipImage
from finesight.features.encoder_folder import encoder_folder
from finesight.features.types import Floats
from finesight.io.progress import track

SHARD = 256  # images that are handed out together
BATCH = 32  # images that are decoded, and go through the network, together
FOREVER = {"max_restarts": -1, "max_task_retries": -1}  # whatever machine is lost


@dataclass(frozen=True)
class Embedded:
    """What the cluster made of one image; ``reason`` says why there is nothing."""

    number: int  # of the image among those that were given
    reason: str
    unreachable: bool  # it may be readable another time
    width: int
    height: int
    mask: Floats  # (H, W)
    features: dict[str, Floats]  # by pooling


@contextmanager
def connected(cluster: str) -> Iterator[Any]:
    """Yield Ray, connected to a cluster ("ray://HOST:10001", "HOST:6379", "auto") or to one made here ("local").

    Raises FineSightError if Ray is not installed or the cluster does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise FineSightError(f"--cluster needs Ray ({error}): pip install 'finesight[ray]'.") from error
    if ray.is_initialized():
        yield ray
        return
    own: dict[str, Any] = {"include_dashboard": False} if cluster == "local" else {}
    try:
        ray.init(address=cluster, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # ConnectionError, ValueError, RuntimeError: by where it fails
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FineSightError(f"The Ray cluster {cluster} cannot be used: {reason}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def embed_on_ray(
    ray: Any,
    run: str | Path,
    files: Sequence[str],
    framing: Framing,
    poolings: Sequence[str],
    *,
    exact: bool = False,
    progress: bool = True,
) -> Iterator[Embedded]:
    """Yield what the cluster makes of each file, in any order, each exactly once."""
    import pyarrow as pa

    _quiet(ray)
    folder = encoder_folder(run)
    weights = ray.put({file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()})
    names = [os.fsencode(file) for file in files]
    shards = [
        pa.table({"number": np.arange(start, min(start + SHARD, len(names))), "file": names[start : start + SHARD]})
        for start in range(0, len(names), SHARD)
    ]
    here = ray.cluster_resources()
    gpus, cpus = int(here.get("GPU", 0)), int(here.get("CPU", 1))
    actors = gpus or max(1, cpus // 2)
    decoded = ray.data.from_arrow(shards).map_batches(_Decode(framing), batch_size=BATCH)
    results = decoded.map_batches(
        _Network,
        fn_constructor_args=(weights, tuple(poolings), exact),
        concurrency=(1, actors) if actors > 1 else 1,
        num_gpus=1 if gpus else 0,
        batch_size=BATCH,
        **FOREVER,
    )
    seen = np.zeros(len(names), bool)
    rows = _rows(results, poolings, seen)
    yield from track(rows, len(names), "embedding", show=progress)
    if not seen.all():
        raise FineSightError(f"The cluster lost {int((~seen).sum()):,} of {len(names):,} images: run it again.")


def _quiet(ray: Any) -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _rows(results: Any, poolings: Sequence[str], seen: NDArray[np.bool_]) -> Iterator[Embedded]:
    for batch in results.iter_batches(batch_size=None, batch_format="numpy"):
        for i, number in enumerate(batch["number"].tolist()):
            if seen[number]:
                continue
            seen[number] = True
            features = {name: np.asarray(batch[f"feature {name}"][i], np.float32) for name in poolings}
            mask = np.asarray(batch["mask"][i], np.float32)
            width, height = int(batch["width"][i]), int(batch["height"][i])
            reason, unreachable = str(batch["reason"][i]), bool(batch["unreachable"][i])
            yield Embedded(number, reason, unreachable, width, height, mask, features)


class _Decode:
    """A task: read files and cut out what the network sees. One that cannot be read keeps its reason."""

    def __init__(self, framing: Framing) -> None:
        self.framing = framing

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        from finesight.features.preprocess import picture_view

        side = self.framing.resolution
        pixels, sizes, reasons = np.zeros((len(batch["file"]), side, side, 3), np.uint8), [], []
        unreachable = np.zeros(len(pixels), bool)
        for i, (slot, name) in enumerate(zip(pixels, batch["file"].tolist(), strict=True)):
            try:
                view = picture_view(os.fsdecode(name), self.framing)
                slot[:] = view.pixels
                sizes.append((view.width, view.height))
                reasons.append("")
            except SkipImage as skip:
                unreachable[i] = isinstance(skip, UnreachableFile)
                sizes.append((0, 0))
                reasons.append(str(skip) or "it cannot be read")
        width, height = np.array(sizes, np.int64).T
        known = {"number": batch["number"], "width": width, "height": height, "reason": np.array(reasons, np.str_)}
        return {**known, "unreachable": unreachable, "pixels": pixels}


class _Network:
    """An actor: one encoder, loaded once from the weights that were sent."""

    def __init__(self, weights: Any, poolings: Sequence[str], exact: bool) -> None:
        import ray
        import torch

        from finesight.features.encoder import Encoder

        with tempfile.TemporaryDirectory() as folder:
            for name, content in ray.get(weights).items():
                (Path(folder) / name).write_bytes(content)
            self.encoder = Encoder.load(folder, exact=exact)
        if torch.cuda.is_available():
            self.encoder.to(torch.device("cuda"))
        self.poolings = poolings

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        output = self.encoder.encode(self.encoder.normalize(batch.pop("pixels")), self.poolings)
        features = {f"feature {name}": output.features[name].float().cpu().numpy() for name in self.poolings}
        return {**batch, "mask": output.attention.float().cpu().numpy(), **features}
