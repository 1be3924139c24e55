"""What a run leaves behind: images in, features and attention out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from finesight.data.color import normalize
from finesight.data.views import IMAGENET_MEAN, IMAGENET_STD
from finesight.errors import FineSightError, unknown
from finesight.features.encoder_folder import CONFIG, WEIGHTS, encoder_folder
from finesight.features.preprocess import cached_pixels, require_view
from finesight.io.atomic import atomic_path
from finesight.nn.backbone import Backbone
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.pooling import attention_mask, energy_map, object_share
from finesight.nn.pooling_config import PoolingName
from finesight.nn.poolings import RATIONALE, Pooling, branch_mask_name, find_pooling, offered_poolings
from finesight.rationale.branch import FittingBranch, branch_mask
from finesight.rationale.config import RationaleConfig

if TYPE_CHECKING:
    from finesight.data.cache import DecodedCache

ImageLike = str | Path | Image.Image
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
class EncoderOutput:
    """Features of N images by pooling, and every mask there is to pool with."""

    features: dict[str, Tensor]  # (N, D) each
    masks: dict[str, Tensor]  # (N, H, W) each, in [0, 1]; "energy" always

    @property
    def attention(self) -> Tensor:
        """The rationale's mask where there is one, else channel energy."""
        return self.masks.get(RATIONALE, self.masks["energy"])


class Encoder(nn.Module):
    """Backbone, branch and pooling. ``embed`` and ``attend`` take paths, PIL images or a normalized tensor."""

    def __init__(self, config: EncoderConfig, backbone: Backbone, branch: FittingBranch | None = None) -> None:
        super().__init__()
        self.config, self.backbone, self.branch = config, backbone, branch
        self.extra_branches: Mapping[str, FittingBranch] = {}  # to pool with for comparison; never saved
        self.require_branch(find_pooling(config.pooling))
        self.eval()

    @property
    def channels(self) -> int:
        return self.backbone.channels

    @property
    def device(self) -> torch.device:
        return next(self.backbone.parameters()).device

    # --- use ------------------------------------------------------------------------------------------------------

    def embed(self, images: ImageLike | Tensor | Sequence[ImageLike], pooling: str | None = None) -> Tensor:
        """Return features (N, D), float32 on the CPU, not normalized. A feature does not depend on the other images."""
        name = pooling or self.config.pooling
        return self.encode(self.prepare(images), (name,)).features[name]

    def attend(self, images: ImageLike | Tensor | Sequence[ImageLike]) -> Tensor:
        """Return attention masks (N, H, W) in [0, 1]: the rationale's where there is one, else channel energy."""
        return self.encode(self.prepare(images), ()).attention

    def with_pooling(self, pooling: str) -> Encoder:
        """Return the same network with another pooling; ``attend`` then shows what that pooling looks at."""
        keep = find_pooling(pooling).needs_branch
        changes = {"pooling": pooling, "rationale": self.config.rationale if keep else None}
        return Encoder(self.config.model_copy(update=changes), self.backbone, self.branch if keep else None)

    def prepare(self, images: ImageLike | Tensor | Sequence[ImageLike]) -> Tensor:
        """Return normalized views (N, 3, R, R): short side 8/7 R, center crop. A tensor is taken as it is.

        No images, one that cannot be read, or a tensor of another shape raise ``FineSightError``.
        """
        if isinstance(images, Tensor):
            if images.ndim != 4 or images.shape[1] != 3:
                raise FineSightError(f"A tensor of images must be (N, 3, height, width), got {tuple(images.shape)}.")
            return images
        if isinstance(images, (str, Path, Image.Image)):
            images = [images]
        if not images:
            raise FineSightError("There are no images to embed.")
        return self.normalize(np.stack([require_view(image, self.config.resolution).pixels for image in images]))

    def cached_views(self, cache: DecodedCache, indices: Iterable[int]) -> Tensor:
        """Return the normalized views (N, 3, R, R) of images in the decoded cache."""
        return self.normalize(cached_pixels(cache, indices, self.config.resolution))

    def normalize(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return views as the network takes them. (N, R, R, 3) -> (N, 3, R, R)"""
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float().div_(255)
        return normalize(images, self.config.mean, self.config.std)

    @torch.no_grad()
    def encode(
        self, views: Tensor, poolings: Sequence[str], objects: Tensor | None = None, regions: Tensor | None = None
    ) -> EncoderOutput:
        """Return features under each of ``poolings``, and the masks.

        One image at a time on the CPU: kernels chosen by batch size would otherwise change a feature's last bits with
        its batch-mates. On a GPU the batch goes through as it is, and so it does for the variant ``released``, whose
        masks are meant to depend on the batch.

        Parameters
        ----------
        objects
            (N, R, R): where the object is in each view, for oracle poolings. An image whose object is nowhere is
            pooled plainly.
        regions
            (N, R, R): the share of each pixel in the part of the view that alone is pooled. The masks stay whole.
        """
        self._check(poolings, views, objects, regions)
        rationale = self.config.rationale
        is_batched = self.device.type != "cpu" or (rationale is not None and rationale.mask_range == "batch")
        size = len(views) if is_batched else 1
        pieces = (repeat(None) if x is None else torch.split(x, size) for x in (views, objects, regions))
        outputs = [self._encode(poolings, *piece) for piece in zip(*pieces, strict=False)]
        return EncoderOutput(
            {name: torch.cat([output.features[name] for output in outputs]).cpu() for name in poolings},
            {name: torch.cat([output.masks[name] for output in outputs]).cpu() for name in outputs[0].masks},
        )

    def _encode(
        self, poolings: Sequence[str], views: Tensor, objects: Tensor | None, regions: Tensor | None
    ) -> EncoderOutput:
        phi = self.backbone(views.to(self.device)).float()
        shares = (None if x is None else object_share(x.to(self.device), *phi.shape[2:]) for x in (objects, regions))
        return self.pool(phi, poolings, *shares)

    def pool(
        self, phi: Tensor, poolings: Sequence[str], objects: Tensor | None = None, regions: Tensor | None = None
    ) -> EncoderOutput:
        """Pool φ (N, C, H, W) as ``encode`` does; objects and regions are shares of the cells, (N, H, W)."""
        masks = self.masks(phi) | ({} if objects is None else {"box": objects})
        chosen = {name: find_pooling(name) for name in poolings}
        responses = None
        if self.branch is not None and any(pooling.per_projection for pooling in chosen.values()):
            responses = self.branch.responses(phi)
        return EncoderOutput({name: pooling(phi, masks, responses, regions) for name, pooling in chosen.items()}, masks)

    def masks(self, phi: Tensor) -> dict[str, Tensor]:
        """Return channel energy and, of every branch, A' of Eq. 8. (N, C, H, W) -> (N, H, W) each"""
        masks = {"energy": attention_mask(energy_map(phi))}
        if self.branch is not None and (rationale := self.config.rationale) is not None:
            extra = {branch_mask_name(name): branch for name, branch in self.extra_branches.items()}
            branches = {RATIONALE: self.branch, **extra}
            masks |= {name: branch_mask(branch, phi, rationale) for name, branch in branches.items()}
        return masks

    def require_branch(self, pooling: Pooling) -> None:
        """Raise ``FineSightError`` if the pooling needs a branch and this encoder has none."""
        if pooling.needs_branch and self.branch is None:
            raise FineSightError(f"Pooling {pooling.name!r} needs a trained rationale; this encoder has none.")

    def _check(self, poolings: Sequence[str], views: Tensor, objects: Tensor | None, regions: Tensor | None) -> None:
        known = {"energy", RATIONALE, "box", *map(branch_mask_name, self.extra_branches)}
        for pooling in map(find_pooling, poolings):
            self.require_branch(pooling)
            if pooling.shown_mask not in known:
                raise unknown("pooling", pooling.name, offered_poolings())
            if pooling.needs_objects and objects is None:
                raise FineSightError(f"Pooling {pooling.name!r} is a control: it must be told where the objects are.")
        for what, given in (("objects", objects), ("regions", regions)):
            if given is not None and given.shape != (len(views), *views.shape[2:]):
                raise ValueError(f"views {tuple(views.shape)} but {what} {tuple(given.shape)}")

    def with_branches(self, branches: Mapping[str, FittingBranch]) -> Encoder:
        """Return the same network with more branches to pool by (``rationale:NAME``), all in one pass."""
        encoder = Encoder(self.config, self.backbone, self.branch)
        encoder.extra_branches = branches
        return encoder

    def fresh_branch(self, seed: int) -> FittingBranch:
        """Return an untrained branch: what it pools is the control for having learned."""
        assert self.config.rationale is not None
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return FittingBranch(self.channels, self.config.rationale).to(self.device).eval()

    # --- on disk --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write a folder with JSON and safetensors; it replaces an older one when it is complete."""
        folder = Path(folder)
        with atomic_path(folder) as scratch:
            scratch.mkdir()
            (scratch / CONFIG).write_text(json.dumps(self.config.model_dump(mode="json"), indent=2) + "\n")
            save_file({k: v.contiguous().cpu() for k, v in self.state_dict().items()}, scratch / WEIGHTS)
            if folder.exists():
                shutil.rmtree(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load from an encoder folder, or from the run folder that holds one. Nothing is unpickled.

        A missing or damaged encoder is a ``FineSightError``.
        """
        folder = encoder_folder(folder)
        if not (folder / CONFIG).exists():
            raise FineSightError(
                f"The run in {folder} has not finished: it has no encoder yet. Run its `finesight train` command again."
                if (folder / "config.yaml").exists()
                else f"{folder} holds no encoder: give the folder of a finished run."
            )
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
        """Return the backbone with its own weights, and a fresh branch where the configuration has a rationale."""
        backbone = Backbone(config.backbone, load=load)
        branch = FittingBranch(backbone.channels, config.rationale) if config.rationale else None
        return cls(config, backbone, branch)


@torch.no_grad()
def projection_responses(encoder: Encoder, views: Tensor) -> NDArray[np.float32]:
    """Return what each projection answers at each cell. (N, 3, R, R) -> (N, K, H, W)"""
    assert encoder.branch is not None
    answers: NDArray[np.float32] = encoder.branch.responses(encoder.backbone(views.to(encoder.device))).cpu().numpy()
    return answers


def pixels(encoder: Encoder, view: Tensor) -> NDArray[np.uint8]:
    """Turn a normalized view back into a picture. (3, R, R) -> (R, R, 3)"""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (encoder.config.mean, encoder.config.std))
    picture: NDArray[np.uint8] = ((view * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    return picture
