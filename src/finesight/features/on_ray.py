"""Embed images on a Ray cluster: shards of the listing → decode → network → features, which come here or are written.

Without GPUs, each processor has an actor that decodes and has an encoder. With GPUs, decoding runs as tasks, and each
GPU has an actor with an encoder. Ray runs again what a lost machine had not
delivered. ``embed_on_ray`` gets every feature and drops what it has already. ``parts_on_ray`` lets the machines write
Parquet parts to a folder that all of them see, and gets their names only. Machines need the images under the same
paths (a shared folder, or an address as s3://); weights are sent to them.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.decode import UnreachableFile
from finesight.data.geometry import Framing
from finesight.errors import FineSightError, SkipImage, last_line
from finesight.features.encoder_folder import encoder_folder
from finesight.features.part_files import part_name, write_part
from finesight.features.ray_cluster import require_able
from finesight.features.types import Floats
from finesight.io.progress import track

SHARD = 256  # images that are handed out together
BATCH = 32  # images that are decoded, and go through the network, together
AHEAD = 3  # batches that a process outside of the cluster asks for before they are needed
WRITER_CPUS = 0.1  # of a task that writes, which actors leave free: above 0, as a head of 0 may not see the folder
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
    seen = np.zeros(len(files), bool)
    with _explained(ray):
        require_able(ray, files)
        work = _work(ray, run, files, framing, poolings, exact)
        yield from track(_rows(_batches(ray, work, seen), poolings, seen), len(files), "embedding", show=progress)
    _require_all(seen)


def all_see(ray: Any, files: Sequence[str], folder: Path) -> bool:
    """Return whether all machines see a folder, and may write there. Raises FineSightError as ``embed_on_ray`` does."""
    with _explained(ray):
        return require_able(ray, files, folder)


@dataclass(frozen=True)
class PartsPlan:
    """Where the machines write the features of which images. A part has a name only once it is taken from there."""

    folder: Path  # it must be there on every machine
    images: int  # of a part
    keys: Sequence[bytes]
    paths: Sequence[str]  # as they are written


def parts_on_ray(
    ray: Any,
    run: str | Path,
    files: Sequence[str],
    framing: Framing,
    pooling: str,
    plan: PartsPlan,
    take: Callable[[str], bool],
    *,
    exact: bool = False,
    progress: bool = True,
) -> Iterator[tuple[int, str]]:
    """Let the machines write parts; yield each image with the reason if it has no feature, each exactly once.

    ``take(name)`` takes a part from the folder of the plan, or says that it is not there. A part with an image that
    was delivered before is left there. Raises FineSightError as ``embed_on_ray`` does.
    """
    seen = np.zeros(len(files), bool)
    with _explained(ray):
        work = _work(ray, run, files, framing, (pooling,), exact, plan)
        yield from track(_taken(_batches(ray, work, seen), take, seen), len(files), "embedding", show=progress)
    _require_all(seen)


@contextmanager
def _explained(ray: Any) -> Iterator[None]:
    """Raise FineSightError if the cluster is lost."""
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise FineSightError(
            f"The cluster stopped: {last_line(error)[:300].rstrip('.')}. The same command continues."
        ) from None


def _require_all(seen: NDArray[np.bool_]) -> None:
    if not seen.all():
        raise FineSightError(f"The cluster lost {int((~seen).sum()):,} of {len(seen):,} images: run it again.")


def _work(
    ray: Any,
    run: str | Path,
    files: Sequence[str],
    framing: Framing,
    poolings: Sequence[str],
    exact: bool,
    plan: PartsPlan | None = None,
) -> _Work:
    folder = encoder_folder(run)
    weights = ray.put({file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()})
    return _Work([os.fsencode(file) for file in files], weights, framing, tuple(poolings), exact, plan)


def _batches(ray: Any, work: _Work, seen: NDArray[np.bool_]) -> Iterator[dict[str, NDArray[Any]]]:
    far = ray.util.client.ray.is_connected()
    return _far_batches(ray, work, seen) if far else work.batches(range(len(work.names)))


@dataclass(frozen=True)
class _Work:
    """What is to be done, without saying where."""

    names: list[bytes]
    weights: Any  # of the encoder, in the cluster
    framing: Framing
    poolings: tuple[str, ...]
    exact: bool
    plan: PartsPlan | None

    def batches(self, numbers: Sequence[int]) -> Iterator[dict[str, NDArray[Any]]]:
        """Run the pipeline for these of the images, and yield what comes out of it. This needs a machine of Ray's."""
        import pyarrow as pa
        import ray

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        shares = [list(numbers[start : start + SHARD]) for start in range(0, len(numbers), SHARD)]
        shards = [pa.table(self._shard(share)) for share in shares]
        here: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus, cpus = int(here.get("GPU", 0)), int(here.get("CPU", 1))
        data: ray.data.Dataset = ray.data.from_arrow(shards)
        work: type[_Network | _DecodeAndNetwork] = _DecodeAndNetwork
        arguments: tuple[Any, ...] = (self.weights, self.poolings, self.exact)
        if gpus:
            data, work = data.map_batches(_Decode(self.framing), batch_size=BATCH), _Network
        else:
            arguments = (self.framing, *arguments)
        actors = gpus or max(1, cpus)
        results = data.map_batches(
            work,
            fn_constructor_args=arguments,
            concurrency=(1, actors) if actors > 1 else 1,
            batch_size=BATCH,
            **({"num_gpus": 1} if gpus else {"num_cpus": 1 - WRITER_CPUS}),
        )  # whatever machine is lost, Ray Data begins such an actor and its tasks again, as often as needed
        if self.plan is not None:
            write = _Write(str(self.plan.folder), self.poolings[0])
            results = results.map_batches(write, batch_size=self.plan.images, num_cpus=WRITER_CPUS)
        yield from results.iter_batches(batch_size=None, batch_format="numpy")

    def _shard(self, share: list[int]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {"number": share, "file": [self.names[i] for i in share]}
        if self.plan is not None:
            columns |= {"key": [self.plan.keys[i] for i in share], "path": [self.plan.paths[i] for i in share]}
        return columns


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


def _taken(
    batches: Iterator[dict[str, NDArray[Any]]], take: Callable[[str], bool], seen: NDArray[np.bool_]
) -> Iterator[tuple[int, str]]:
    """Take parts, and yield the images in them. One that is not taken counts as not delivered."""
    for batch in batches:
        for report in map(json.loads, batch["report"].tolist()):
            numbers = [number for number, _ in report["images"]]
            if seen[numbers].any() or (report["part"] and not take(report["part"])):
                continue
            seen[numbers] = True
            yield from ((number, reason) for number, reason in report["images"])


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
        known = {name: column for name, column in batch.items() if name != "file"}
        known |= {"width": width, "height": height, "reason": np.array(reasons, np.str_)}
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


class _DecodeAndNetwork:
    """An actor for one processor: Ray gives it one thread, so that each processor of a machine has one of its own."""

    def __init__(self, framing: Framing, *encoder: Any) -> None:
        self.decode, self.network = _Decode(framing), _Network(*encoder)

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return self.network(self.decode(batch))


class _Write:
    """A task: write a part. Its report, one row, goes on in place of the features: it comes as a whole or not at all.

    The name of a part is a hash of the keys in it, so that one that is written again takes the place of the first.
    """

    def __init__(self, folder: str, pooling: str) -> None:
        self.folder, self.pooling = folder, pooling

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        folder, there, name = Path(self.folder), batch["reason"] == "", ""
        if not folder.is_dir():
            raise FineSightError(f"The machine {platform.node()} of the cluster does not see {folder.parent}.")
        if there.any():
            keys = batch["key"][there].tolist()
            name = part_name(keys)
            write_part(folder / name, keys, batch["path"][there].tolist(), batch[f"feature {self.pooling}"][there])
        images = list(zip(batch["number"].tolist(), map(str, batch["reason"].tolist()), strict=True))
        return {"report": np.array([json.dumps({"part": name, "images": images})])}
