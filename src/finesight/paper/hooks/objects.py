"""Training that knows where objects are: ContrastiveCrop, DiLo, CVSA and a rationale that keeps some projections.

Maps of objects and boxes for crops are computed from all images, before the first step or before an epoch with the
encoder as it is then. What needs the encoder is kept with the checkpoint, in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from finesight.data.cache import DecodedCache
from finesight.data.color import normalize
from finesight.data.crop import crop_resize_flip
from finesight.data.views import ViewConfig
from finesight.io.console import console
from finesight.io.disk_tensor import disk_tensor
from finesight.methods.base import find_method
from finesight.nn.distributed import world
from finesight.nn.pooling import attention_mask, energy_map
from finesight.paper.objects.boxes import CENTER, NO_BOX, boxes_of
from finesight.paper.objects.saliency import SIDE, detect_objects, fill_boxes, read_masks, saliency_maps
from finesight.paper.objects.scene import Backdrop, Scene
from finesight.rationale.branch import FittingBranch, branch_mask
from finesight.training.batches import Batch, Batches
from finesight.training.config import TrainConfig
from finesight.training.hooks import HOOKS, TrainingHook
from finesight.training.module import TrainingModule

CHUNK = 64  # images that go through the encoder at once
RANKING_IMAGES = 2048  # at most, to rank the projections by


def is_due(every: int | None, epoch: int, epochs: int) -> bool:
    """Return whether something is computed before this epoch: each ``every`` epochs or fifths of the run, not at 0."""
    return epoch > 0 and epoch % (every or max(1, epochs // 5)) == 0


def needs_masks(objective: object) -> bool:
    """Return whether the objective (or its class) wants the mask of the object as a fourth channel of its views."""
    return bool(getattr(objective, "needs_masks", False))


@dataclass(frozen=True)
class ObjectData:
    """What a batch needs beside its pixels."""

    images: Tensor  # (N,) positions of the joined batch's images among all that are trained on
    backdrop: Backdrop | None = None


@HOOKS.decorator("objects")
class ObjectsHook(TrainingHook):
    """``boxes`` (images, 4), where crops are drawn, and ``maps`` (images, S, S) uint8, where objects are.

    Neither is a buffer: the maps of a million images take 4 GB, which the disk has (``disk_tensor``).
    """

    per_image: ClassVar = ("boxes", "maps")

    boxes: Tensor
    maps: Tensor
    cache: DecodedCache
    images: NDArray[np.int64]

    def __init__(self, config: TrainConfig, images: int) -> None:
        super().__init__(config, images)
        focus, saliency = config.focus.source, config.saliency.source
        box = torch.tensor(CENTER) if focus == "center" else torch.full((4,), NO_BOX)
        self.boxes = box.repeat(images if focus != "none" else 0, 1)
        self.maps = disk_tensor((images if saliency != "none" else 0, SIDE, SIDE), torch.uint8)

    @classmethod
    def applies(cls, config: TrainConfig) -> bool:
        keeps = config.rationale is not None and config.rationale.keep != "all"
        return keeps or config.focus.source != "none" or config.saliency.source != "none"

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        by_branch = {
            "focus.source 'rationale'": config.focus.source == "rationale",
            "saliency.source 'rationale'": config.saliency.source == "rationale",
        }
        if config.rationale is None and (missing := [words for words, needed in by_branch.items() if needed]):
            raise ValueError(f"{' and '.join(missing)} cannot do without a rationale")
        objective = find_method(config.method).find_objective()
        by_map = {
            f"method '{config.method}'": needs_masks(objective),
            "views.paste": config.views.pastes,
            "focus.source 'saliency'": config.focus.source == "saliency",
        }
        if config.saliency.source == "none" and (missing := [words for words, needed in by_map.items() if needed]):
            raise ValueError(f"{' and '.join(missing)} must know where objects are: set saliency.source")

    def rows(self) -> dict[str, Tensor]:
        """Return what came from the encoder; the rest can be had again."""
        focus, by_rationale = self.config.focus.source, self.config.saliency.source == "rationale"
        boxed = focus in ("energy", "rationale") or (focus == "saliency" and by_rationale)
        return ({"boxes": self.boxes} if boxed else {}) | ({"maps": self.maps} if by_rationale else {})

    # --- batches and views --------------------------------------------------------------------------------

    def extra(self, batches: Batches, step: int, joined: NDArray[np.int64]) -> ObjectData:
        """Return the positions of the images and, where objects are pasted, another image for each, never itself."""
        images, count = np.searchsorted(batches.images, joined), len(batches.images)
        if not self.config.views.pastes:
            return ObjectData(torch.from_numpy(images))
        others = (images + np.random.default_rng([batches.seed, step, 3]).integers(1, count, len(images))) % count
        chosen = batches.images[others]
        canvas, _ = batches.cache.batch(chosen[batches.share])
        backdrop = Backdrop(canvas, torch.from_numpy(batches.sizes[chosen]), torch.from_numpy(others))
        return ObjectData(torch.from_numpy(images), backdrop)

    def to_device(self, extra: ObjectData, device: torch.device) -> ObjectData:
        if extra.backdrop is None:
            return extra
        canvas = extra.backdrop.canvas.to(device, non_blocking=True)
        return replace(extra, backdrop=replace(extra.backdrop, canvas=canvas))

    def views(
        self, batch: Batch, kinds: Sequence[ViewConfig], generator: torch.Generator, objective: nn.Module
    ) -> list[Tensor]:
        scene, masked = self.scene(batch), needs_masks(objective)
        return [scene.view(kind, generator, masked=masked) for kind in kinds]

    def scene(self, batch: Batch) -> Scene:
        """Return the batch with what is known of its images."""
        data: ObjectData = batch.extra
        share, backdrop, device = batch.share, data.backdrop, batch.canvas.device
        focused, mapped = self.config.focus.source != "none", self.config.saliency.source != "none"
        return Scene(
            batch.canvas,
            batch.all_sizes,
            share,
            boxes=self.boxes[data.images] if focused else None,
            beta=self.config.focus.beta,
            maps=self.maps[data.images[share]].to(device) if mapped else None,
            backdrop=backdrop,
            backdrop_maps=self.maps[backdrop.images[share]].to(device) if mapped and backdrop is not None else None,
        )

    def complete_views(self, views: Tensor, objective: nn.Module) -> Tensor:
        """Add the mask of the object as the classical detector finds it in the view, if the objective wants it."""
        if not needs_masks(objective):
            return views
        config = self.config.views
        mean, std = (torch.tensor(values, device=views.device).view(3, 1, 1) for values in (config.mean, config.std))
        small = F.interpolate(views * std + mean, size=(SIDE, SIDE), mode="bilinear", antialias=True)
        maps = saliency_maps(small.clamp(0, 1))[:, None]
        return torch.cat([views, F.interpolate(maps, size=views.shape[2:], mode="bilinear")], 1)

    # --- what is computed from all images -----------------------------------------------------------------

    def on_fit_start(
        self, cache: DecodedCache, images: NDArray[np.int64], cache_dir: Path | None = None, progress: bool = False
    ) -> None:
        self.cache, self.images = cache, images
        focus, saliency = self.config.focus, self.config.saliency
        if saliency.source in ("detector", "files", "boxes"):
            if saliency.source == "detector":
                maps = detect_objects(cache, cache_dir=cache_dir, progress=progress)
            elif saliency.source == "boxes":
                maps = fill_boxes(cache)
            else:
                maps = read_masks(cache, None if saliency.folder is None else Path(saliency.folder))
            for start in range(0, len(images), CHUNK):
                self.maps[start : start + CHUNK] = torch.from_numpy(maps[images[start : start + CHUNK]])
        if focus.source == "saliency" and saliency.source != "rationale":
            self._boxes_of_maps()

    def on_epoch_start(self, module: TrainingModule, epoch: int) -> None:
        config, focus = self.config, self.config.focus
        if config.saliency.source == "rationale" and is_due(config.saliency.every_n_epochs, epoch, module.epochs):
            console.print("Looking for the objects in all images.")
            for part, masks in self._encode(module, _rationale_masks(module), (SIDE, SIDE)):
                self.maps[part].copy_((255 * masks).round())
            self.looks += 1
            if focus.source == "saliency":
                self._boxes_of_maps()
        if focus.source in ("energy", "rationale") and is_due(focus.every_n_epochs, epoch, module.epochs):
            console.print("Looking where the crops of all images should be.")
            energy = partial(energy_map, signed=module.objective.backbone.signed)
            maps = energy if focus.source == "energy" else _rationale_masks(module)
            side = config.views.resolution
            for part, found in self._encode(module, lambda phi: boxes_of(maps(phi), focus.threshold, side), (4,)):
                self.boxes[part].copy_(found)
            self.looks += 1
        rationale = config.rationale
        if rationale is not None and rationale.keep != "all" and epoch == rationale.keep_from:
            kept = choose_projections(self.variances(module), config)
            for branch in module.modules():  # that of the rationale, and its twin where it pools
                if isinstance(branch, FittingBranch):
                    branch.keep(kept)
            console.print(f"From epoch {epoch} on, the rationale keeps projections {', '.join(map(str, kept))}.")

    def variances(self, module: TrainingModule, most: int = RANKING_IMAGES) -> Tensor:
        """Return how much each projection's response varies over an image, on average over images. (K,)"""
        assert module.rationale is not None
        branch = module.rationale.branch
        few = np.linspace(0, len(self.images) - 1, min(most, len(self.images))).round().astype(np.int64)
        responses = self._encode(
            module,
            lambda phi: branch.responses(phi).var((2, 3), correction=0),
            (branch.projections,),
            self.images[few],
        )
        return torch.cat([values for _, values in responses]).mean(0)

    def _boxes_of_maps(self) -> None:
        threshold, side = self.config.focus.threshold, self.config.views.resolution
        for boxes, maps in zip(torch.split(self.boxes, CHUNK), torch.split(self.maps, CHUNK), strict=True):
            boxes.copy_(boxes_of(maps.float(), threshold, side))

    @torch.no_grad()
    def _encode(
        self,
        module: TrainingModule,
        function: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        images: NDArray[np.int64] | None = None,
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``function`` of the encoder's maps of whole images, some at a time in their order, on every rank.

        Each rank encodes its share of them.
        """
        images = self.images if images is None else images
        rank, processes = world()
        module.eval()
        for start in range(0, len(images), CHUNK * processes):
            part = images[start : start + CHUNK * processes]
            result = torch.zeros(len(part), *shape, device=module.device)
            if len(own := part[rank::processes]):
                values = function(module.objective.backbone(self._whole(module, own)).float())
                if values.shape[1:] != shape:
                    values = F.interpolate(values[:, None], size=shape, mode="bilinear", align_corners=False)[:, 0]
                result[rank::processes] = values
            if processes > 1:
                dist.all_reduce(result)
            yield slice(start, start + len(part)), result
        module.train()

    def _whole(self, module: TrainingModule, images: NDArray[np.int64]) -> Tensor:
        """Return each image from edge to edge, squeezed to a square, so that boxes are shares of the image."""
        canvas, sizes = self.cache.batch(images)
        views = self.config.views
        crop = torch.cat([torch.zeros_like(sizes), sizes], dim=1).to(module.device)
        flip = torch.zeros(len(images), dtype=torch.bool, device=module.device)
        squeezed = crop_resize_flip(canvas.to(module.device), crop, flip, views.resolution)
        return normalize(squeezed, views.mean, views.std)


def choose_projections(variances: Tensor, config: TrainConfig) -> list[int]:
    """Return the projections of highest variance, or as many of the others at random; ascending."""
    rationale = config.rationale
    assert rationale is not None
    order = variances.argsort(descending=True, stable=True).tolist()
    if rationale.keep == "top":
        return sorted(order[: rationale.keep_count])
    others = np.random.default_rng([config.seed, 4]).permutation(order[rationale.keep_count :])
    return sorted(others[: rationale.keep_count].tolist())


def _rationale_masks(module: TrainingModule) -> Callable[[Tensor], Tensor]:
    assert module.rationale is not None
    branch, config = module.rationale.branch, module.rationale.config.model_copy(update={"mask_range": "image"})
    return lambda phi: attention_mask(branch_mask(branch, phi, config))
