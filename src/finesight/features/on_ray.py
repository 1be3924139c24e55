"""Embed images on a Ray cluster: shards of the listing → decode → network → back here, where results are written.

Decoding runs as tasks and the network in actors, one encoder in each. Ray runs again what a lost machine had not
delivered. Every result comes to this process, which alone writes, and drops what it has already. Machines need the
images under the same paths (a shared folder, or an address as s3://); weights are sent to them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.decode import UnreachableFile
from finesight.data.geometry import Framing
from finesight.errors import FineSightError, SkipImage, last_line
from finesight.features.encoder_folder import encoder_folder
from finesight.features.ray_cluster import require_able
from finesight.features.types import Floats
from finesight.io.progress import track

SHARD = 256  # images that are handed out together
BATCH = 32  # images that are decoded, and go through the network, together
AHEAD = 3  # batches that a process outside of the cluster asks for before they are needed
TRIES = 3  # to begin again without a single image in between


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
    """Yield what the cluster makes of each file, in any order, each exactly once.

    Raises FineSightError if a machine of the cluster cannot do the work, or the cluster is lost.
    """
    far = ray.util.client.ray.is_connected()
    seen = np.zeros(len(files), bool)
    try:
        require_able(ray, files)
        folder = encoder_folder(run)
        weights = ray.put({file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()})
        names = [os.fsencode(file) for file in files]
        work = _Work(names, weights, framing, tuple(poolings), exact)
        batches = _far_batches(ray, work, seen) if far else work.batches(range(len(names)))
        yield from track(_rows(batches, poolings, seen), len(names), "embedding", show=progress)
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise FineSightError(
            f"The cluster stopped: {last_line(error)[:300].rstrip('.')}. The same command continues."
        ) from None
    if not seen.all():
        raise FineSightError(f"The cluster lost {int((~seen).sum()):,} of {len(names):,} images: run it again.")


@dataclass(frozen=True)
class _Work:
    """What is to be done, without saying where."""

    names: list[bytes]
    weights: Any  # of the encoder, in the cluster
    framing: Framing
    poolings: tuple[str, ...]
    exact: bool

    def batches(self, numbers: Sequence[int]) -> Iterator[dict[str, NDArray[Any]]]:
        """Run the pipeline for these of the images, and yield what comes out of it. This needs a machine of Ray's."""
        import pyarrow as pa
        import ray

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        shares = [list(numbers[start : start + SHARD]) for start in range(0, len(numbers), SHARD)]
        shards = [pa.table({"number": share, "file": [self.names[i] for i in share]}) for share in shares]
        here: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus, cpus = int(here.get("GPU", 0)), int(here.get("CPU", 1))
        actors = gpus or max(1, cpus // 2)
        decoded = ray.data.from_arrow(shards).map_batches(_Decode(self.framing), batch_size=BATCH)
        results = decoded.map_batches(
            _Network,
            fn_constructor_args=(self.weights, self.poolings, self.exact),
            concurrency=(1, actors) if actors > 1 else 1,
            num_gpus=1 if gpus else 0,
            batch_size=BATCH,
        )  # whatever machine is lost, Ray Data begins such an actor and its tasks again, as often as needed
        yield from results.iter_batches(batch_size=None, batch_format="numpy")


class _Driver:
    """An actor that runs the pipeline for a process outside of the cluster: Ray Data does not run over Ray Client."""

    def __init__(self, work: _Work, numbers: list[int]) -> None:
        self.batches = work.batches(numbers)

    def take(self) -> dict[str, NDArray[Any]] | None:
        return next(self.batches, None)


def _far_batches(ray: Any, work: _Work, seen: NDArray[np.bool_]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield what an actor of the cluster runs. If its machine is lost, another one begins with what is missing."""
    tries = 0
    while not seen.all():
        before = int(seen.sum())
        driver = ray.remote(num_cpus=0)(_Driver).remote(work, np.flatnonzero(~seen).tolist())
        asked = [driver.take.remote() for _ in range(AHEAD)]
        try:
            while (batch := ray.get(asked.pop(0))) is not None:
                asked.append(driver.take.remote())
                yield batch
            return
        except ray.exceptions.RayActorError:
            tries = 0 if int(seen.sum()) > before else tries + 1
            if tries == TRIES:
                raise


def _rows(
    batches: Iterator[dict[str, NDArray[Any]]], poolings: Sequence[str], seen: NDArray[np.bool_]
) -> Iterator[Embedded]:
    for batch in batches:
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
