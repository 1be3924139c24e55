"""What a run leaves behind: images in, features and attention out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from finesight.data.color import normalize
from finesight.errors import FineSightError, unknown
from finesight.features.encoder_config import EncoderConfig, read_config
from finesight.features.encoder_folder import CHECKSUM, CONFIG, WEIGHTS, encoder_folder, weights_checksum
from finesight.features.forward import module_features
from finesight.features.gpu import GpuCopy
from finesight.features.hub import pretrained_folder, push_to_hub, save_pretrained
from finesight.features.onnx_maps import OnnxMaps, find_faster
from finesight.features.preprocess import cached_pixels, require_view
from finesight.features.timm_model import timm_model
from finesight.io.atomic import atomic_path
from finesight.io.console import console
from finesight.io.tensors import save_tensors
from finesight.nn.backbone import Backbone, MapOutput
from finesight.nn.pooling import attention_mask, energy_map, limit_lengths, limit_outliers, object_share
from finesight.nn.poolings import (
    ATTENTION,
    RATIONALE,
    Pooling,
    branch_mask_name,
    find_pooling,
    offered_poolings,
    whole_picture_only,
)
from finesight.rationale.branch import FittingBranch, branch_mask

if TYPE_CHECKING:
    from finesight.data.cache import DecodedCache

ImageLike = str | Path | Image.Image
MANY = 500  # images that are worth a trial of onnxruntime
SOME = 100  # images that are worth a copy of the network on a GPU
BATCH, BATCH_PIXELS = 32, 16 * 224 * 224  # images and pixels that go through the network at once on the CPU


@dataclass(frozen=True)
class EncoderOutput:
    """Features of N images by pooling, and every mask there is to pool with."""

    features: dict[str, Tensor]  # (N, D) each
    masks: dict[str, Tensor]  # (N, H, W) each, in [0, 1]; "energy" always
    shown: str = "energy"  # which of them is the encoder's attention

    @property
    def attention(self) -> Tensor:
        """The rationale's mask where there is one, else that of the encoder's pooling, else channel energy."""
        return self.masks[self.shown]


class Encoder(nn.Module):
    """Turn images into features and masks, by a backbone, the rationale's branch and a pooling.

    ``embed`` and ``attend`` take paths, PIL images or a normalized tensor.

    A feature depends on the images that are embedded with it only by rounding: 1e-5 of its length at most. With
    ``exact`` it does not depend on them in any bit: on the CPU one image at a time then goes through the network,
    which takes two to three times as long.
    """

    def __init__(
        self, config: EncoderConfig, backbone: Backbone, branch: FittingBranch | None = None, *, exact: bool = False
    ) -> None:
        super().__init__()
        self.config, self.backbone, self.branch, self.exact = config, backbone, branch, exact
        self.half_type: torch.dtype | None = None  # the type of half precision that maps are computed in
        self._onnx: OnnxMaps | None = None
        self._gpu: GpuCopy | None = None
        self.extra_branches: Mapping[str, FittingBranch] = {}  # to pool with for comparison; never saved
        self.require(find_pooling(config.pooling))
        backbone.require_sides(config.resolution)
        self.eval()

    @property
    def channels(self) -> int:
        return self.backbone.channels

    def feature_width(self, pooling: str) -> int:
        """Return how many numbers a feature has under a pooling."""
        chosen = find_pooling(pooling)
        projections = 0 if self.branch is None else self.branch.projections
        earlier = self.backbone.earlier.channels if chosen.needs_earlier else 0
        return chosen.width(self.channels, projections, earlier)

    @property
    def device(self) -> torch.device:
        return next(self.backbone.parameters()).device

    # --- use ------------------------------------------------------------------------------------------------------

    def forward(self, images: Tensor) -> Tensor:
        """Return features (N, D) of normalized images (N, 3, H, W), with gradients, on the device of the encoder.

        As other modules it is called: ``encoder(images)``, also under torch.compile. ``embed`` takes files and pictures
        and is faster, without gradients. The features differ by rounding only: 1e-5 of their length.
        """
        return module_features(self, images)

    def to_timm(self) -> nn.Module:
        """Return the tuned backbone as a timm model without a classifier: a copy, in eval mode."""
        return timm_model(self)

    def embed(self, images: ImageLike | Tensor | Sequence[ImageLike], pooling: str | None = None) -> Tensor:
        """Return features (N, D), float32 on the CPU, not normalized."""
        name = pooling or self.config.pooling
        return self.encode(self.prepare(images), (name,)).features[name]

    def attend(self, images: ImageLike | Tensor | Sequence[ImageLike]) -> Tensor:
        """Return attention masks (N, H, W) in [0, 1]: ``EncoderOutput.attention``."""
        return self.encode(self.prepare(images), ()).attention

    def with_pooling(self, pooling: str) -> Encoder:
        """Return the same network with another pooling; ``attend`` then shows what that pooling looks at."""
        keep = find_pooling(pooling).needs_branch
        changes = {"pooling": pooling, "rationale": self.config.rationale if keep else None}
        config = self.config.model_copy(update=changes)
        return Encoder(config, self.backbone, self.branch if keep else None, exact=self.exact)

    def prepare(self, images: ImageLike | Tensor | Sequence[ImageLike]) -> Tensor:
        """Return normalized views (N, 3, R, R), resized and cropped by the framing. A tensor is taken as it is.

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
        return self.normalize(np.stack([require_view(image, self.config.framing).pixels for image in images]))

    def cached_views(self, cache: DecodedCache, indices: Iterable[int]) -> Tensor:
        """Return the normalized views (N, 3, R, R) of images in the decoded cache, which must have their scale."""
        if cache.scale != self.config.framing.scale:
            raise ValueError(f"the encoder sees pictures at scale {self.config.framing.scale}, not {cache.scale}")
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

        On the CPU at most ``batch_size`` images at a time, one if ``exact``: kernels chosen by batch size change a
        feature's last bits with its batch-mates. On a GPU the batch goes through as it is, and so it does for the
        variant ``released``, whose masks are meant to depend on the batch.

        Parameters
        ----------
        objects
            (N, R, R): where the object is in each view, for oracle poolings. An image whose object is nowhere is
            pooled plainly.
        regions
            (N, R, R): the share of each pixel in the part of the view that alone is pooled. The masks stay whole.
        """
        self._check(poolings, views, objects, regions)
        if self._gpu is not None and self._gpu.fits():
            return self._gpu.encode(views, poolings, objects, regions)
        whole = self.device.type != "cpu" or self.joint_masks
        size = max(1, len(views)) if whole else self.batch_size(views.shape[2] * views.shape[3])
        pieces = (repeat(None) if x is None else torch.split(x, size) for x in (views, objects, regions))
        onnx = self._fitting_onnx(views)
        outputs = [self._encode(poolings, onnx, *piece) for piece in zip(*pieces, strict=False)]
        return EncoderOutput(
            {name: torch.cat([output.features[name] for output in outputs]).cpu() for name in poolings},
            {name: torch.cat([output.masks[name] for output in outputs]).cpu() for name in outputs[0].masks},
            self.shown_mask,
        )

    def _encode(
        self,
        poolings: Sequence[str],
        onnx: OnnxMaps | None,
        views: Tensor,
        objects: Tensor | None,
        regions: Tensor | None,
    ) -> EncoderOutput:
        chosen = [find_pooling(name) for name in poolings]
        attention = self.shown_mask == ATTENTION or any(one.shown_mask == ATTENTION for one in chosen)
        tokens = attention or any(one.needs_class_token for one in chosen)
        earlier = any(one.needs_earlier for one in chosen)
        if tokens or earlier:
            output = self.outputs(views, attention=attention, earlier=earlier, tokens=tokens)
        else:
            output = MapOutput(self._maps(views, onnx))
        grid = output.phi.shape[2:]
        shares = (None if x is None else object_share(x.to(self.device), *grid) for x in (objects, regions))
        return self.pool(output, poolings, *shares)

    @property
    def shown_mask(self) -> str:
        """The mask that is shown as where the encoder looks."""
        return RATIONALE if self.branch is not None else find_pooling(self.config.pooling).shown_mask

    @property
    def joint_masks(self) -> bool:
        """Whether masks are meant to depend on the batch, as in the variant ``released``."""
        return self.config.rationale is not None and self.config.rationale.mask_range == "batch"

    def batch_size(self, pixels: int) -> int:
        """Return how many images of so many pixels go through the network at once on the CPU."""
        return 1 if self.exact else max(1, min(BATCH, BATCH_PIXELS // pixels))

    def maps(self, views: Tensor) -> Tensor:
        """Return φ of normalized views, which go through the network together. (N, 3, R, R) -> (N, C, H, W)"""
        return self._maps(views, self._fitting_onnx(views))

    def _fitting_onnx(self, views: Tensor, *, earlier: bool = False) -> OnnxMaps | None:
        """Return the session of onnxruntime if it may be used; looking through all weights takes a while."""
        rounds = self._may_round and not torch.is_grad_enabled()
        return self._onnx if rounds and self._onnx is not None and self._onnx.fits(views, earlier=earlier) else None

    def _maps(self, views: Tensor, onnx: OnnxMaps | None) -> Tensor:
        if onnx is not None:
            return onnx(views).phi
        folded = self._may_round and not torch.is_grad_enabled()
        with self._autocast():
            phi: Tensor = self.backbone(views.to(self.device), folded=folded)
        return phi.float()

    def outputs(
        self, views: Tensor, *, attention: bool = False, earlier: bool = False, tokens: bool = True
    ) -> MapOutput:
        """Return φ, the class token of networks that have one, and what it attends to and the earlier map if asked for.

        Without ``tokens`` the maps alone, which onnxruntime gives too.
        """
        folded = self._may_round and not torch.is_grad_enabled()
        onnx = None if tokens else self._fitting_onnx(views, earlier=earlier)
        if onnx is not None:
            return onnx(views)
        with self._autocast():
            output = self.backbone.outputs(views.to(self.device), folded=folded, attention=attention, earlier=earlier)
        beside = (None if x is None else x.float() for x in (output.class_token, output.attention, output.earlier))
        return MapOutput(output.phi.float(), *beside)

    def _autocast(self) -> AbstractContextManager[object]:
        return nullcontext() if self.half_type is None else torch.autocast(self.device.type, self.half_type)

    @property
    def _may_round(self) -> bool:
        return self.device.type == "cpu" and not (self.exact or self.joint_masks)

    def prepare_for(self, images: int, poolings: Sequence[str] = (), *, progress: bool = True) -> None:
        """Get ready to embed so many images: on a GPU, or by onnxruntime where it is there and faster.

        ``poolings`` are those that will be asked for, by default the encoder's own.
        """
        if not self._may_round or self._onnx is not None or self._gpu is not None:
            return
        if torch.cuda.is_available() and images >= SOME:
            self._gpu = GpuCopy(self)
            if progress:
                console.print("Embedding on the GPU.")
            return
        if images < MANY:
            return
        side = self.config.resolution
        earlier = any(find_pooling(name).needs_earlier for name in poolings or (self.config.pooling,))
        self._onnx, ratio = find_faster(self.backbone, side, self.batch_size(side * side), earlier=earlier)
        if progress:
            engine = "torch" if self._onnx is None else "onnxruntime"
            beside = (
                f"onnxruntime is {ratio:.2f} times as fast as torch here" if ratio else "onnxruntime cannot be used"
            )
            console.print(f"Embedding by {engine}: {beside}.")

    def pool(
        self,
        output: MapOutput | Tensor,
        poolings: Sequence[str],
        objects: Tensor | None = None,
        regions: Tensor | None = None,
    ) -> EncoderOutput:
        """Pool φ (N, C, H, W) as ``encode`` does; objects and regions are shares of the cells, (N, H, W)."""
        output = self.limited(output if isinstance(output, MapOutput) else MapOutput(output))
        phi, masks = output.phi, self.masks(output) | ({} if objects is None else {"box": objects})
        chosen = {name: find_pooling(name) for name in poolings}
        responses = None
        if self.branch is not None and any(pooling.per_projection for pooling in chosen.values()):
            responses = self.branch.responses(phi)
        features = {}
        for name, pooling in chosen.items():
            more: dict[str, Any] = {"signed": True} if pooling.gem and self.backbone.signed else {}
            if pooling.needs_earlier:
                more |= {
                    "earlier": output.earlier,
                    "earlier_signed": self.backbone.earlier.signed,
                    "earlier_weight": self.config.earlier_weight,
                }
            if pooling.needs_class_token and pooling.mask is None:
                more = {"class_token": output.class_token}
            features[name] = pooling(phi, masks, responses, regions, **more)
        return EncoderOutput(features, masks, self.shown_mask)

    def limited(self, output: MapOutput) -> MapOutput:
        """Return what is pooled: the tokens of signed maps, those that are far too long shortened."""
        if self.backbone.signed:
            output = replace(output, phi=limit_lengths(output.phi))
        if output.earlier is not None and self.backbone.earlier.signed:
            output = replace(output, earlier=limit_lengths(output.earlier))
        return output

    def masks(self, output: MapOutput) -> dict[str, Tensor]:
        """Return channel energy, the class token's attention if it is there, and A' of Eq. 8 of every branch.

        (N, C, H, W) -> (N, H, W) each
        """
        phi = output.phi
        masks = {"energy": attention_mask(energy_map(phi, signed=self.backbone.signed))}
        if output.attention is not None:
            masks[ATTENTION] = attention_mask(limit_outliers(output.attention))
        if self.branch is not None and (rationale := self.config.rationale) is not None:
            extra = {branch_mask_name(name): branch for name, branch in self.extra_branches.items()}
            branches = {RATIONALE: self.branch, **extra}
            masks |= {name: branch_mask(branch, phi, rationale) for name, branch in branches.items()}
        return masks

    def require(self, pooling: Pooling) -> None:
        """Raise ``FineSightError`` if the pooling needs something that this encoder does not have.

        That is a branch, a class token, or the map of an earlier stage.
        """
        if pooling.needs_branch and self.branch is None:
            raise FineSightError(f"Pooling {pooling.name!r} needs a trained rationale; this encoder has none.")
        self.backbone.require_pooling(pooling)

    def _check(self, poolings: Sequence[str], views: Tensor, objects: Tensor | None, regions: Tensor | None) -> None:
        known = {"energy", ATTENTION, RATIONALE, "box", *map(branch_mask_name, self.extra_branches)}
        for pooling in map(find_pooling, poolings):
            self.require(pooling)
            if regions is not None and not pooling.can_narrow:
                raise FineSightError(whole_picture_only(pooling))
            if pooling.shown_mask not in known:
                raise unknown("pooling", pooling.name, offered_poolings())
            if pooling.needs_objects and objects is None:
                raise FineSightError(f"Pooling {pooling.name!r} is a control: it must be told where the objects are.")
        for what, given in (("objects", objects), ("regions", regions)):
            if given is not None and given.shape != (len(views), *views.shape[2:]):
                raise ValueError(f"views {tuple(views.shape)} but {what} {tuple(given.shape)}")

    def with_branches(self, branches: Mapping[str, FittingBranch]) -> Encoder:
        """Return the same network with more branches to pool by (``rationale:NAME``), all in one pass."""
        encoder = Encoder(self.config, self.backbone, self.branch, exact=self.exact)
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
        with atomic_path(folder, replace_folder=True) as scratch:
            scratch.mkdir()
            config = self.config.model_dump(mode="json")
            save_tensors(self.state_dict(), scratch / WEIGHTS)
            config[CHECKSUM] = weights_checksum(scratch)
            (scratch / CONFIG).write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path, *, exact: bool = False) -> Self:
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
            config, checksum = read_config(folder / CONFIG)
            if checksum not in (None, weights_checksum(folder)):
                raise ValueError(f"{WEIGHTS} is not what was written. Copy it anew, or train again")
            state = load_file(folder / WEIGHTS)
        except (OSError, ValueError, RecursionError, SafetensorError) as error:
            raise FineSightError(f"The encoder in {folder} is damaged or of another version: {error}") from error
        encoder = cls.untrained(config, load=False, exact=exact)
        try:
            encoder.load_state_dict(state)
        except RuntimeError as error:
            raise FineSightError(f"The weights in {folder} do not fit its {CONFIG}: {error}") from error
        return encoder

    @classmethod
    def from_pretrained(cls, name: str | Path, revision: str | None = None, *, exact: bool = False) -> Self:
        """Load from a repository OWNER/NAME of the Hugging Face hub, or from a folder. Nothing is unpickled."""
        return cls.load(pretrained_folder(name, revision), exact=exact)

    def save_pretrained(self, folder: str | Path, *, run: str | Path | None = None) -> None:
        """Write the encoder and a model card into a folder; ``run`` is the run whose scores the card tells."""
        save_pretrained(self, folder, run=run)

    def push_to_hub(self, name: str, **options: Any) -> str:
        """Send the encoder and a model card to the repository OWNER/NAME and return its address.

        ``options``: ``run`` (the folder whose settings, scores and verdict the card tells), ``private``, ``revision``
        and ``message``. Raises ``FineSightError`` if the hub refuses.
        """
        return push_to_hub(self, name, **options)

    @classmethod
    def untrained(cls, config: EncoderConfig, *, load: bool = True, exact: bool = False) -> Self:
        """Return the backbone with its own weights, and a fresh branch where the configuration has a rationale."""
        backbone = Backbone(config.backbone, load=load)
        branch = FittingBranch(backbone.channels, config.rationale) if config.rationale else None
        decided = config.model_copy(update={"backbone": backbone.config})
        return cls(decided, backbone, branch, exact=exact)


@torch.no_grad()
def projection_responses(encoder: Encoder, views: Tensor) -> NDArray[np.float32]:
    """Return what each projection answers at each cell. (N, 3, R, R) -> (N, K, H, W)"""
    assert encoder.branch is not None
    phi = encoder.limited(MapOutput(encoder.maps(views))).phi
    answers: NDArray[np.float32] = encoder.branch.responses(phi).cpu().numpy()
    return answers


def pixels(encoder: Encoder, view: Tensor) -> NDArray[np.uint8]:
    """Turn a normalized view back into a picture. (3, R, R) -> (R, R, 3)"""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (encoder.config.mean, encoder.config.std))
    picture: NDArray[np.uint8] = ((view * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    return picture
