"""What a run leaves behind: images in, features and attention out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from finesight.data.cache import cache_side
from finesight.data.decode import to_rgb
from finesight.data.geometry import Geometry, read_resized
from finesight.data.views import IMAGENET_MEAN, IMAGENET_STD, center_view
from finesight.errors import FineSightError, SkipImage
from finesight.nn.backbone import Backbone
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.pooling import attention_mask, energy_map, mask_kind, object_share, pool_by_name, uses_rationale
from finesight.nn.pooling_config import ORACLES, POOLINGS, AnyPooling, MaskName, PoolingName
from finesight.rationale.branch import FittingBranch, branch_mask
from finesight.rationale.config import RationaleConfig

ImageLike = str | Path | Image.Image
CONFIG, WEIGHTS = "encoder.json", "encoder.safetensors"
FORMAT = 1


class EncoderConfig(BaseModel):
    """Enough to build the encoder again without the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    method: str
    resolution: int
    pooling: PoolingName
    backbone: BackboneConfig
    rationale: RationaleConfig | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD


@dataclass(frozen=True)
class Encoded:
    """Features by pooling, and every mask there is to pool with, of N images."""

    features: dict[AnyPooling, Tensor]  # (N, C) each
    masks: dict[MaskName, Tensor]  # (N, H, W) each, in [0, 1]; "energy" always

    @property
    def attention(self) -> Tensor:
        """The rationale's where there is one, else channel energy."""
        return self.masks.get("rationale", self.masks["energy"])


class Encoder(nn.Module):
    """Backbone, branch and pooling. ``embed`` and ``attend`` take paths, PIL images or a normalized tensor."""

    def __init__(self, config: EncoderConfig, backbone: Backbone, branch: FittingBranch | None = None) -> None:
        super().__init__()
        self.config, self.backbone, self.branch = config, backbone, branch
        self.others: dict[str, FittingBranch] = {}  # more branches to pool with, for comparing; never saved
        if uses_rationale(config.pooling) and branch is None:
            raise FineSightError(f"Pooling {config.pooling!r} needs a trained rationale; this encoder has none.")
        self.eval()

    @property
    def channels(self) -> int:
        return self.backbone.channels

    @property
    def device(self) -> torch.device:
        return next(self.backbone.parameters()).device

    # --- use ------------------------------------------------------------------------------------------------------

    def embed(self, images: ImageLike | Tensor | Sequence[ImageLike], pooling: PoolingName | None = None) -> Tensor:
        """Features (N, C), float32 on the CPU, not normalized. A feature does not depend on the other images."""
        name = pooling or self.config.pooling
        return self.encode(self.prepare(images), (name,)).features[name]

    def attend(self, images: ImageLike | Tensor | Sequence[ImageLike]) -> Tensor:
        """Attention masks (N, H, W) in [0, 1]: the rationale's where there is one, else channel energy."""
        return self.encode(self.prepare(images), ()).attention

    def pooled(self, pooling: PoolingName) -> Encoder:
        """The same network with another pooling; ``attend`` then shows what that pooling looks at."""
        keep = uses_rationale(pooling)
        changes = {"pooling": pooling, "rationale": self.config.rationale if keep else None}
        return Encoder(self.config.model_copy(update=changes), self.backbone, self.branch if keep else None)

    def prepare(self, images: ImageLike | Tensor | Sequence[ImageLike]) -> Tensor:
        """To a normalized (N, 3, R, R): short side 8/7 R, center crop, as in training's evaluation."""
        if isinstance(images, Tensor):
            if images.ndim != 4 or images.shape[1] != 3:
                raise FineSightError(f"A tensor of images must be (N, 3, height, width), got {tuple(images.shape)}.")
            return images
        if isinstance(images, (str, Path, Image.Image)):
            images = [images]
        if not images:
            raise FineSightError("There are no images to embed.")
        return torch.cat([self._view(image) for image in images])

    def _view(self, image: ImageLike) -> Tensor:
        side = cache_side(self.config.resolution)
        try:
            if isinstance(image, Image.Image):
                upright = to_rgb(image)
                pixels = np.asarray(Geometry.fit(upright.width, upright.height, side).resize(upright))
            else:
                pixels, _ = read_resized(image, side)
        except SkipImage as skip:
            raise FineSightError(f"{image} cannot be used: {skip}") from None
        canvas = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]  # (h, w, 3) -> (1, 3, h, w)
        return self.view(canvas, torch.tensor([pixels.shape[:2]]))

    def view(self, canvas: Tensor, sizes: Tensor) -> Tensor:
        """Decoded pixels (a cache batch) to the normalized view the encoder expects."""
        return center_view(canvas, sizes, self.config.resolution, self.config.mean, self.config.std)

    @torch.no_grad()
    def encode(
        self,
        views: Tensor,
        poolings: Sequence[AnyPooling],
        objects: Tensor | None = None,
        regions: Tensor | None = None,
    ) -> Encoded:
        """Features under each of ``poolings``, and the masks. An oracle pooling needs ``objects`` (N, R, R): where the
        object is in each view; an image whose object is nowhere is pooled plainly. ``regions`` (N, R, R) narrow every
        pooling to a part of each view, a pixel counting by its share in it; the masks stay whole.

        One image at a time on the CPU: kernels chosen by batch size would otherwise change a feature's last bits with
        its batch-mates. On a GPU the batch goes through as it is, and so it does for the reading ``released``, whose
        masks are meant to depend on the batch.
        """
        self._check(poolings, views, objects, regions)
        together = self.device.type != "cpu" or self._mask_range == "batch"
        size = len(views) if together else 1
        pieces = torch.split(views, size)
        shapes, parts = (
            torch.split(given, size) if given is not None else [None] * len(pieces) for given in (objects, regions)
        )
        encoded = [self._encode(piece, poolings, *more) for piece, *more in zip(pieces, shapes, parts, strict=True)]
        return Encoded(
            {name: torch.cat([e.features[name] for e in encoded]).cpu() for name in poolings},
            {kind: torch.cat([e.masks[kind] for e in encoded]).cpu() for kind in encoded[0].masks},
        )

    def _check(
        self, poolings: Sequence[AnyPooling], views: Tensor, objects: Tensor | None, regions: Tensor | None
    ) -> None:
        for name in poolings:
            if uses_rationale(name) and self.branch is None:
                raise FineSightError(f"Pooling {name!r} needs a trained rationale; this encoder has none.")
            kind = mask_kind(name)
            if kind is not None and kind not in ("energy", "rationale", "box", *map(other_mask, self.others)):
                raise FineSightError(f"There is no pooling {name!r}. There are: {', '.join(POOLINGS)}.")
            if name in ORACLES and objects is None:
                raise FineSightError(f"Pooling {name!r} is a control: it needs to be told where the objects are.")
        for what, given in (("objects", objects), ("regions", regions)):
            if given is not None and given.shape != (len(views), *views.shape[2:]):
                raise ValueError(f"views {tuple(views.shape)} but {what} {tuple(given.shape)}")

    def _encode(
        self, views: Tensor, poolings: Sequence[AnyPooling], objects: Tensor | None, regions: Tensor | None
    ) -> Encoded:
        phi = self.backbone(views.to(self.device)).float()
        masks: dict[MaskName, Tensor] = {"energy": attention_mask(energy_map(phi))}
        if self.branch is not None:
            masks["rationale"] = self.mask(phi)
            masks |= {other_mask(name): self.mask(phi, branch) for name, branch in self.others.items()}
        if objects is not None:
            masks["box"] = object_share(objects.to(self.device), *phi.shape[2:])
        responses = self.branch.responses(phi) if self.branch is not None and "bilinear" in poolings else None
        cover = None if regions is None else object_share(regions.to(self.device), *phi.shape[2:])
        return Encoded({name: pool_by_name(name, phi, masks, responses, cover) for name in poolings}, masks)

    def mask(self, phi: Tensor, branch: FittingBranch | None = None) -> Tensor:
        """A' of Eq. 8, by the encoder's branch or another. (N, C, H, W) -> (N, H, W)"""
        branch = branch or self.branch
        if branch is None or self.config.rationale is None:
            return attention_mask(energy_map(phi))
        return branch_mask(branch, phi, self.config.rationale)

    @property
    def _mask_range(self) -> Literal["image", "batch"]:
        return self.config.rationale.mask_range if self.config.rationale is not None else "image"

    def beside(self, others: dict[str, FittingBranch]) -> Encoder:
        """The same network with more branches to pool by (``rationale:NAME``), each in the same pass."""
        encoder = Encoder(self.config, self.backbone, self.branch)
        encoder.others = others
        return encoder

    def fresh_branch(self, seed: int) -> FittingBranch:
        """A branch as training finds it: what it pools is the control for having learned."""
        assert self.config.rationale is not None
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return FittingBranch(self.channels, self.config.rationale).to(self.device).eval()

    # --- on disk --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """A folder with JSON and safetensors, put into place in one move."""
        folder = Path(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
        scratch.mkdir()
        try:
            (scratch / CONFIG).write_text(json.dumps(self.config.model_dump(mode="json"), indent=2) + "\n")
            save_file({k: v.contiguous().cpu() for k, v in self.state_dict().items()}, scratch / WEIGHTS)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(scratch, folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """From an encoder folder or from the run folder that holds one. Nothing is unpickled."""
        folder = Path(folder)
        if not (folder / CONFIG).exists() and (folder / "encoder" / CONFIG).exists():
            folder = folder / "encoder"
        if not (folder / CONFIG).exists():
            raise FineSightError(_nothing_to_load(folder))
        try:
            config = EncoderConfig.model_validate_json((folder / CONFIG).read_text())
            state = load_file(folder / WEIGHTS)
        except (OSError, ValueError, ValidationError, SafetensorError) as error:
            raise FineSightError(f"The encoder in {folder} is damaged or of another version: {error}") from error
        encoder = cls.untrained(config, load=False)
        try:
            encoder.load_state_dict(state)
        except RuntimeError as error:
            raise FineSightError(f"The weights in {folder} do not fit its {CONFIG}: {error}") from error
        return encoder

    @classmethod
    def untrained(cls, config: EncoderConfig, *, load: bool = True) -> Self:
        """The backbone as its weights are, with a fresh branch where the rationale asks for one."""
        backbone = Backbone(config.backbone, load=load)
        branch = FittingBranch(backbone.channels, config.rationale) if config.rationale else None
        return cls(config, backbone, branch)


def other_mask(name: str) -> MaskName:
    """What the mask of one of ``Encoder.others`` is called; a pooling by it is this, or this with ``-gem``."""
    return f"rationale:{name}"


def _nothing_to_load(folder: Path) -> str:
    if (folder / "config.yaml").exists():
        return f"The run in {folder} has not finished: it has no encoder yet. Run its `finesight train` command again."
    return f"{folder} holds no encoder: give the folder of a finished run."


@torch.no_grad()
def projection_responses(encoder: Encoder, views: Tensor) -> NDArray[np.float32]:
    """(M, 3, R, R) -> (M, K, H, W)"""
    assert encoder.branch is not None
    answers: NDArray[np.float32] = encoder.branch.responses(encoder.backbone(views.to(encoder.device))).cpu().numpy()
    return answers


def pixels(encoder: Encoder, view: Tensor) -> NDArray[np.uint8]:
    """A normalized view back to a picture. (3, R, R) -> (R, R, 3)"""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (encoder.config.mean, encoder.config.std))
    picture: NDArray[np.uint8] = ((view * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    return picture
