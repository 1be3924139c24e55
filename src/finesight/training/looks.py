"""What a run must look at all its images for: where objects are, where crops should go, which projections vary.

It happens before an epoch begins, with the encoder as it is then, and what was seen is part of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from finesight.data.cache import DecodedCache
from finesight.data.color import normalize
from finesight.data.focus import boxes_of
from finesight.data.saliency import SIDE, detected, masks_from
from finesight.data.views import crop_resize_flip
from finesight.io.console import console
from finesight.nn.distributed import world
from finesight.nn.pooling import attention_mask, energy_map
from finesight.rationale.branch import FittingBranch, branch_mask
from finesight.training.batches import Batch
from finesight.training.config import TrainConfig
from finesight.training.module import TrainingModule

PIECE = 64
ENOUGH = 2048  # images to rank the projections by


def due(every: int | None, epoch: int, epochs: int) -> bool:
    """After each ``every`` epochs, or fifths of the run, but never before the first."""
    return epoch > 0 and epoch % (every or max(1, epochs // 5)) == 0


class Looks(L.Callback):
    """On every rank; each looks at its share of the images, and all hear of what the others saw."""

    def __init__(self, cache: DecodedCache, images: NDArray[np.int64]) -> None:
        self.cache, self.images = cache, images

    def begin(self, module: TrainingModule, cache_dir: Path | None, progress: bool) -> None:
        """What needs no encoder: done at every start, and not part of a checkpoint."""
        config = module.config
        if config.saliency.source in ("detector", "files"):
            if config.saliency.source == "detector":
                maps = detected(self.cache, cache_dir=cache_dir, progress=progress)
            else:
                folder = config.saliency.folder
                maps = masks_from(self.cache, None if folder is None else Path(folder))
            module.maps.copy_(torch.from_numpy(maps[self.images]))
        if config.focus.source == "saliency" and config.saliency.source != "rationale":
            module.boxes.copy_(self._saliency_boxes(module))

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        epoch, rest = divmod(batch.step, pl_module.steps_per_epoch)
        if rest == 0:
            self.look(pl_module, epoch)

    def look(self, module: TrainingModule, epoch: int) -> None:
        """Whatever this epoch is to begin with."""
        config = module.config
        rationale = config.rationale
        if config.saliency.source == "rationale" and due(config.saliency.every_n_epochs, epoch, config.epochs):
            console.print("Looking for the objects in all images.")
            masks = self._seen(module, _rationale_masks(module), (SIDE, SIDE))
            module.maps.copy_((255 * masks).round())
            if config.focus.source == "saliency":
                module.boxes.copy_(self._saliency_boxes(module))
        if config.focus.source in ("energy", "rationale") and due(config.focus.every_n_epochs, epoch, config.epochs):
            console.print("Looking where the crops of all images should be.")
            maps = energy_map if config.focus.source == "energy" else _rationale_masks(module)
            side, threshold = config.views.resolution, config.focus.threshold
            module.boxes.copy_(self._seen(module, lambda phi: boxes_of(maps(phi), threshold, side), (4,)))
        if rationale is not None and rationale.keep != "all" and epoch == rationale.keep_from:
            assert module.rationale is not None
            kept = choose_projections(self.variances(module), config)
            for branch in module.modules():  # that of the rationale, and its twin where it pools
                if isinstance(branch, FittingBranch):
                    branch.keep(kept)
            console.print(f"From epoch {epoch} on, the rationale keeps projections {', '.join(map(str, kept))}.")

    def variances(self, module: TrainingModule) -> Tensor:
        """How much each projection's response varies over an image, on average over images. (K,)"""
        assert module.rationale is not None
        branch = module.rationale.branch
        few = self.images[np.linspace(0, len(self.images) - 1, min(ENOUGH, len(self.images))).round().astype(np.int64)]
        return self._seen(
            module, lambda phi: branch.responses(phi).var((2, 3), correction=0), (branch.projections,), few
        ).mean(0)

    def _saliency_boxes(self, module: TrainingModule) -> Tensor:
        config = module.config
        pieces = torch.split(module.maps, PIECE)
        return torch.cat([boxes_of(piece.float(), config.focus.threshold, config.views.resolution) for piece in pieces])

    @torch.no_grad()
    def _seen(
        self,
        module: TrainingModule,
        what: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        images: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """``what`` the encoder's maps of the whole images say, in their order, on every rank."""
        images = self.images if images is None else images
        rank, processes = world()
        module.eval()
        seen = torch.zeros(len(images), *shape, device=module.device)
        for places in _pieces(np.arange(rank, len(images), processes)):
            answer = what(module.objective.backbone(self._whole(module, images[places])).float())
            if answer.shape[1:] != shape:
                answer = F.interpolate(answer[:, None], size=shape, mode="bilinear", align_corners=False)[:, 0]
            seen[torch.from_numpy(places).to(seen.device)] = answer
        if processes > 1:
            dist.all_reduce(seen)
        module.train()
        return seen

    def _whole(self, module: TrainingModule, images: NDArray[np.int64]) -> Tensor:
        """Each image from edge to edge, squeezed to a square: a box found here is one of the image."""
        canvas, sizes = self.cache.batch(images)
        views = module.config.views
        crop = torch.cat([torch.zeros_like(sizes), sizes], dim=1).to(module.device)
        flip = torch.zeros(len(images), dtype=torch.bool, device=module.device)
        squeezed = crop_resize_flip(canvas.to(module.device), crop, flip, views.resolution)
        return normalize(squeezed, views.mean, views.std)


def choose_projections(variances: Tensor, config: TrainConfig) -> list[int]:
    """Those of highest variance, or as many of the others at random; ascending."""
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


def _pieces(places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(places), PIECE):
        yield places[start : start + PIECE]


def looks_of(config: TrainConfig, cache: DecodedCache, images: NDArray[np.int64]) -> Looks | None:
    """None where a run needs none."""
    keeps = config.rationale is not None and config.rationale.keep != "all"
    needed = config.focus.source not in ("none", "center") or config.saliency.source != "none" or keeps
    return Looks(cache, images) if needed else None
