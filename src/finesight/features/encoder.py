"""``Encoder``: what a run leaves behind. Images in, features and masks out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from finesight.data.color import normalize
from finesight.errors import FineSightError
from finesight.features.encoder_config import EncoderConfig
from finesight.features.encoder_files import read_encoder, write_encoder
from finesight.features.encoder_folder import CONFIG, encoder_folder
from finesight.features.forward import module_features
from finesight.features.gpu import LEAST_COSINE, SOME, GpuCopy, try_half
from finesight.features.hub import pretrained_folder, push_to_hub, save_pretrained
from finesight.features.map_pooler import EncoderOutput, MapPooler
from finesight.features.map_runner import MapRunner
from finesight.features.onnx_maps import MANY
from finesight.features.preprocess import cached_pixels, require_view
from finesight.features.timm_model import timm_model
from finesight.io.console import console
from finesight.nn.backbone import Backbone, MapOutput
from finesight.nn.half_precision import require_half_precision
from finesight.nn.pooling import object_share
from finesight.nn.poolings import ATTENTION, find_pooling
from finesight.rationale.branch import FittingBranch

if TYPE_CHECKING:
    from finesight.data.cache import DecodedCache

ImageLike = str | Path | Image.Image


class Encoder(nn.Module):
    """Turn images into features and masks, by a backbone, the rationale's branch and a pooling.

    ``embed`` and ``attend`` take paths, PIL images or a normalized tensor.

    A feature depends on the images that are embedded with it only by rounding: 1e-5 of its length at most. With
    ``exact`` it does not depend on them in any bit: on the CPU one image at a time then goes through the network,
    which takes two to three times as long. ``use_half_precision`` is for processors with instructions for bfloat16.
    """

    def __init__(
        self, config: EncoderConfig, backbone: Backbone, branch: FittingBranch | None = None, *, exact: bool = False
    ) -> None:
        super().__init__()
        self.config, self.backbone, self.branch = config, backbone, branch
        self.pooler = MapPooler(config, backbone, branch)
        self.runner = MapRunner(backbone, exact=exact, joint_masks=self.pooler.joint_masks)
        self._gpu: GpuCopy | None = None
        self._tries_half = False  # at the next images
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
        return self.runner.device

    @property
    def exact(self) -> bool:
        """Whether a feature must not depend on the images beside it in any bit."""
        return self.runner.exact

    @exact.setter
    def exact(self, exact: bool) -> None:
        self.runner.exact = exact

    @property
    def uses_half_precision(self) -> bool:
        """Whether maps are computed in bfloat16 on the CPU."""
        return self._tries_half or (self.device.type == "cpu" and self.runner.half_type is not None)

    def use_half_precision(self) -> None:
        """Compute maps in bfloat16 on the CPU from now on, about twice as fast where the processor has instructions.

        Where there is a GPU, half precision is used without this. Raises ``FineSightError`` if the processor cannot, or
        together with ``exact``; embedding raises it if the features of the first images do not agree with those of
        full precision to a cosine of 0.999.
        """
        if self.exact:
            raise FineSightError("Half precision does not go with exact: it changes a feature by 0.5 % of its length.")
        if not torch.cuda.is_available():
            require_half_precision()
            self._tries_half = True

    @property
    def extra_branches(self) -> Mapping[str, FittingBranch]:
        """More branches to pool by, for comparison; they are never saved."""
        return self.pooler.extra_branches

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
        return self._like(Encoder(config, self.backbone, self.branch if keep else None, exact=self.exact))

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
        self.pooler.check(poolings, views, objects, regions)
        if self._gpu is not None and self._gpu.fits():
            return self._gpu.encode(views, poolings, objects, regions)
        if self._tries_half:
            self._tries_half = False
            if not try_half(self, views, torch.bfloat16):
                raise FineSightError(
                    "Features in half precision differ from those in full precision (a cosine below "
                    f"{LEAST_COSINE} for one of the first images). Use full precision."
                )
        chosen = [find_pooling(name) for name in poolings]
        attention = ATTENTION in {self.pooler.shown_mask, *(one.shown_mask for one in chosen)}
        tokens = attention or any(one.needs_class_token for one in chosen)
        earlier = any(one.needs_earlier for one in chosen)
        whole = self.device.type != "cpu" or self.pooler.joint_masks
        size = max(1, len(views)) if whole else self.batch_size(views.shape[2] * views.shape[3])
        maps = self.runner.run(torch.split(views, size), attention=attention, earlier=earlier, tokens=tokens)
        told = (repeat(None) if x is None else torch.split(x, size) for x in (objects, regions))
        outputs = []
        for output, *pieces in zip(maps, *told, strict=False):
            grid = output.phi.shape[2:]
            shares = (None if x is None else object_share(x.to(self.device), *grid) for x in pieces)
            outputs.append(self.pool(output, poolings, *shares))
        return EncoderOutput(
            {name: torch.cat([output.features[name] for output in outputs]).cpu() for name in poolings},
            {name: torch.cat([output.masks[name] for output in outputs]).cpu() for name in outputs[0].masks},
            self.pooler.shown_mask,
        )

    def batch_size(self, pixels: int) -> int:
        """Return how many images of so many pixels go through the network at once on the CPU."""
        return self.runner.batch_size(pixels)

    def maps(self, views: Tensor) -> Tensor:
        """Return φ of normalized views, which go through the network together. (N, 3, R, R) -> (N, C, H, W)"""
        return self.runner.outputs(views, tokens=False).phi

    def prepare_for(self, images: int, poolings: Sequence[str] = (), *, progress: bool = True) -> None:
        """Get ready to embed so many images: on a GPU, or by onnxruntime where it is there and faster.

        ``poolings`` are those that will be asked for, by default the encoder's own.
        """
        if not self.runner.may_round or self.runner.uses_onnx or self._gpu is not None:
            return
        if torch.cuda.is_available() and images >= SOME:
            self._gpu = GpuCopy(self)
            if progress:
                console.print("Embedding on the GPU.")
        elif self.uses_half_precision:
            if progress:
                console.print("Embedding by torch in half precision (bfloat16).")
        elif images >= MANY:
            earlier = any(find_pooling(name).needs_earlier for name in poolings or (self.config.pooling,))
            self.runner.try_onnx(self.config.resolution, earlier=earlier, progress=progress)

    def pool(
        self,
        output: MapOutput | Tensor,
        poolings: Sequence[str],
        objects: Tensor | None = None,
        regions: Tensor | None = None,
    ) -> EncoderOutput:
        """Pool φ (N, C, H, W) as ``encode`` does; objects and regions are shares of the cells, (N, H, W)."""
        made = output if isinstance(output, MapOutput) else MapOutput(output)
        return self.pooler.pool(made, poolings, objects, regions)

    def masks(self, output: MapOutput) -> dict[str, Tensor]:
        """Return channel energy, the class token's attention if it is there, and the mask of every branch.

        (N, C, H, W) -> (N, H, W) each
        """
        return self.pooler.masks(output)

    def with_branches(
        self, branches: Mapping[str, FittingBranch], powers: Mapping[str, float] | None = None
    ) -> Encoder:
        """Return the same network with more branches to pool by (``rationale:NAME``), all in one pass.

        ``powers`` has the power of a branch's mask where it is not the rationale's ``mask_power``.
        """
        encoder = self._like(Encoder(self.config, self.backbone, self.branch, exact=self.exact))
        encoder.pooler.extra_branches, encoder.pooler.extra_powers = branches, powers or {}
        return encoder

    def _like(self, other: Encoder) -> Encoder:
        other._tries_half, other.runner.half_type = self._tries_half, self.runner.half_type
        return other

    def fresh_branch(self, seed: int) -> FittingBranch:
        """Return an untrained branch: what it pools is the control for having learned."""
        assert self.config.rationale is not None
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return FittingBranch(self.channels, self.config.rationale).to(self.device).eval()

    # --- on disk --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write a folder with JSON and safetensors; it replaces an older one when it is complete."""
        write_encoder(Path(folder), self.config, self.state_dict())

    @classmethod
    def load(cls, folder: str | Path, *, exact: bool = False) -> Self:
        """Load from an encoder folder, or from the run folder that holds one. Nothing is unpickled.

        A missing or damaged encoder is a ``FineSightError``.
        """
        folder = encoder_folder(folder)
        config, state = read_encoder(folder)
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
    phi = encoder.pooler.limited(MapOutput(encoder.maps(views))).phi
    answers: NDArray[np.float32] = encoder.branch.responses(phi).cpu().numpy()
    return answers


def pixels(encoder: Encoder, view: Tensor) -> NDArray[np.uint8]:
    """Turn a normalized view back into a picture. (3, R, R) -> (R, R, 3)"""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (encoder.config.mean, encoder.config.std))
    picture: NDArray[np.uint8] = ((view * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    return picture
