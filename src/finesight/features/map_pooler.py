"""Pool the feature maps of an encoder into features, and compute the masks that they are pooled by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from finesight.errors import FineSightError, unknown
from finesight.features.encoder_config import EncoderConfig
from finesight.nn.backbone import Backbone, MapOutput
from finesight.nn.pooling import attention_mask, energy_map, limit_lengths, limit_outliers
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


class MapPooler:
    """Pools what a backbone gives, by the masks of channel energy, of the class token and of the rationale's branch.

    ``extra_branches`` are more branches to pool by, for comparison; an encoder never saves them. ``extra_powers`` has
    the power of their masks where it is not the rationale's ``mask_power``. Raises ``FineSightError`` if the encoder's
    own pooling needs what is not there.
    """

    def __init__(self, config: EncoderConfig, backbone: Backbone, branch: FittingBranch | None) -> None:
        self.config, self.backbone, self.branch = config, backbone, branch
        self.extra_branches: Mapping[str, FittingBranch] = {}
        self.extra_powers: Mapping[str, float] = {}
        self.require(find_pooling(config.pooling))

    @property
    def shown_mask(self) -> str:
        """The mask that is shown as where the encoder looks."""
        return RATIONALE if self.branch is not None else find_pooling(self.config.pooling).shown_mask

    @property
    def joint_masks(self) -> bool:
        """Whether masks are meant to depend on the batch, as in the variant ``released``."""
        return self.config.rationale is not None and self.config.rationale.mask_range == "batch"

    def pool(
        self,
        output: MapOutput,
        poolings: Sequence[str],
        objects: Tensor | None = None,
        regions: Tensor | None = None,
    ) -> EncoderOutput:
        """Return features under each of ``poolings``, and the masks; see ``Encoder.pool``."""
        output = self.limited(output)
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
            masks[RATIONALE] = branch_mask(self.branch, phi, rationale)
            for name, branch in self.extra_branches.items():
                power = self.extra_powers.get(name, rationale.mask_power)
                config = rationale.model_copy(update={"mask_power": power})
                masks[branch_mask_name(name)] = branch_mask(branch, phi, config)
        return masks

    def require(self, pooling: Pooling) -> None:
        """Raise ``FineSightError`` if the pooling needs something that this encoder does not have.

        That is a branch, a class token, or the map of an earlier stage.
        """
        if pooling.needs_branch and self.branch is None:
            raise FineSightError(f"Pooling {pooling.name!r} needs a trained rationale; this encoder has none.")
        self.backbone.require_pooling(pooling)

    def check(self, poolings: Sequence[str], views: Tensor, objects: Tensor | None, regions: Tensor | None) -> None:
        """Raise ``FineSightError`` if a pooling cannot be used on this, ``ValueError`` if shapes do not fit."""
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
