"""Poolings as objects: how a feature map φ becomes one feature, what that needs, and what it is called.

A pooling of another distribution is a subclass of ``Pooling`` under ``@register_pooling``, in a module that an entry
point of the group ``finesight.poolings`` names. This module loads no torch: the command line lists poolings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from finesight.errors import unknown
from finesight.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

RATIONALE = "rationale"  # the mask of the encoder's own branch
ATTENTION = "attention"  # what the network's class token attends to in its last block
EARLIER_WEIGHT = 0.7  # of the earlier map beside φ; of 0.5, 0.7 and 1 none is best on birds and cars (results/two-maps)


class Pooling:
    """Pool by the mean over cells, each weighed by a mask, or by the generalized mean (GeM). Subclasses say which."""

    name: str
    words: str  # for people
    mask: str | None = None  # that weighs the cells: "energy", "attention", "rationale", "box"; None: all count alike
    gem = False
    total = False  # the weighted sum instead of the mean
    needs_branch = False  # a rationale that was trained
    needs_class_token = False  # of a vision transformer
    needs_earlier = False  # the map of the stage before the last one
    needs_objects = False  # annotations of where objects are: an oracle, as a control
    per_projection = False  # each projection of the branch pools on its own; ``mask`` only shows where it looks
    trainable = False  # may also be what the head sees while training
    offered = True  # to users

    def __call__(
        self,
        phi: Tensor,
        masks: Mapping[str, Tensor],
        responses: Tensor | None = None,
        region: Tensor | None = None,
        *,
        signed: bool = False,
    ) -> Tensor:
        """Pool φ (N, C, H, W) to (N, width).

        Parameters
        ----------
        masks
            (N, H, W) each, among them the one named ``mask``.
        responses
            (N, K, H, W) of the branch's projections; only poolings that are ``per_projection`` need them.
        region
            (N, H, W): the share of each cell in the part of the picture that alone is pooled.
        signed
            Whether negative values of φ count; only poolings in ``gem`` are told.
        """
        from finesight.nn.pooling import narrow_mask, pool

        mask = None if self.mask is None else masks[self.mask]
        mask = mask if region is None else narrow_mask(mask, region)
        return pool(phi, mask, gem=self.gem, total=self.total, signed=signed)

    def width(self, channels: int, projections: int = 0, earlier: int = 0) -> int:
        """Return how many numbers a feature has, given the channels of φ, the projections, and the earlier channels."""
        return channels

    @property
    def can_narrow(self) -> bool:
        """Whether a region can be pooled alone: a class token is of the whole picture."""
        return not self.needs_class_token or self.mask is not None

    @property
    def is_sum_over_cells(self) -> bool:
        """Whether a score can be taken apart into cells: not if a subclass pools in a way of its own."""
        return self.per_projection or type(self).__call__ is Pooling.__call__

    @property
    def shown_mask(self) -> str:
        """The mask that stands for this pooling in pictures: channel energy for one that weighs nothing."""
        return self.mask or "energy"

    @property
    def indexed(self) -> str:
        """The pooling that an index keeps of every image: this one, unless it is too wide."""
        return self.name

    @property
    def spaces(self) -> tuple[str, ...]:
        """The poolings of an index: the one kept for this, and the plain average to compare with."""
        return tuple(dict.fromkeys((self.indexed, AveragePooling.name)))


P = TypeVar("P", bound=type[Pooling])
POOLINGS: Registry[Pooling] = Registry("pooling", group="finesight.poolings")


def register_pooling(cls: P) -> P:
    """Register one pooling of this class under its name."""
    POOLINGS.register(cls.name, cls())
    return cls


@register_pooling
class AveragePooling(Pooling):
    name = "average"
    words = "the mean of all cells"
    trainable = True


@register_pooling
class GemPooling(Pooling):
    name = "gem"
    words = "their generalized mean"
    gem = True


@register_pooling
class EnergyPooling(Pooling):
    name = "energy"
    words = "weighed by channel energy"
    mask = "energy"


@register_pooling
class EnergyGemPooling(EnergyPooling):
    name = "energy-gem"
    words = "the same in GeM"
    gem = True


@register_pooling
class AttentionPooling(Pooling):
    name = "attention"
    words = "weighed by what a ViT's class token attends to"
    mask = ATTENTION
    needs_class_token = True


@register_pooling
class AttentionGemPooling(AttentionPooling):
    name = "attention-gem"
    words = "the same in GeM"
    gem = True


@register_pooling
class ClassTokenPooling(Pooling):
    """The feature is no mean over cells: the network made it in its own way."""

    name = "class-token"
    words = "a ViT's class token"
    needs_class_token = True

    def __call__(self, phi: Tensor, masks: Mapping[str, Tensor], *_: Tensor | None, class_token: Tensor) -> Tensor:  # type: ignore[override]
        """Return the class token (N, C), whatever φ is."""
        return class_token


@register_pooling
class ClassTokenAndAveragePooling(ClassTokenPooling):
    name = "class-token-and-average"
    words = "both side by side, each of length 1"

    def __call__(self, phi: Tensor, masks: Mapping[str, Tensor], *_: Tensor | None, class_token: Tensor) -> Tensor:  # type: ignore[override]
        """Return the class token beside the mean of φ, (N, 2 C)."""
        from torch import cat
        from torch.nn.functional import normalize

        from finesight.nn.pooling import average

        return cat([normalize(part, dim=1) for part in (class_token, average(phi))], 1)

    def width(self, channels: int, projections: int = 0, earlier: int = 0) -> int:
        return 2 * channels


@register_pooling
class RationalePooling(Pooling):
    """Eq. 9 of the paper, divided by the sum of the mask."""

    name = RATIONALE
    words = "weighed by the rationale's mask"
    mask: str | None = RATIONALE
    needs_branch = True
    trainable = True


@register_pooling
class RationaleGemPooling(RationalePooling):
    name = "rationale-gem"
    words = "the same in GeM"
    gem = True
    trainable = False


@register_pooling
class RationaleSumPooling(RationalePooling):
    """Eq. 9 as printed. Its features have the direction of ``rationale``'s: searching by either is the same."""

    name = "rationale-sum"
    words = "by that mask, summed as Eq. 9 of the paper is printed"
    total = True
    trainable = False  # ``rationale`` with ``rationale.mask_total`` is, in training


class TwoMapsPooling(Pooling):
    """Pool φ and the map of the stage before it in GeM under one mask: fine detail where the mask looks.

    Each half has length 1, the earlier one is then weighed, and the whole has length 1. A region narrows the mask
    before it is enlarged to the earlier map.
    """

    gem = True
    needs_earlier = True
    trainable = False

    def __call__(  # type: ignore[override]
        self,
        phi: Tensor,
        masks: Mapping[str, Tensor],
        responses: Tensor | None = None,
        region: Tensor | None = None,
        *,
        earlier: Tensor,
        signed: bool = False,
        earlier_signed: bool = False,
        earlier_weight: float = EARLIER_WEIGHT,
    ) -> Tensor:
        """Pool φ (N, C, H, W) and ``earlier`` (N, D, H', W') to (N, C + D); see ``Pooling`` for the rest."""
        from finesight.nn.pooling import narrow_mask, pool_two_maps

        mask = None if self.mask is None else masks[self.mask]
        mask = mask if region is None else narrow_mask(mask, region)
        return pool_two_maps(phi, earlier, mask, earlier_weight, signed=signed, earlier_signed=earlier_signed)

    def width(self, channels: int, projections: int = 0, earlier: int = 0) -> int:
        return channels + earlier

    @property
    def is_sum_over_cells(self) -> bool:
        return True


@register_pooling
class RationaleGemTwoMapsPooling(TwoMapsPooling, RationaleGemPooling):
    name = "rationale-gem-two-maps"
    words = "rationale-gem beside the map of the stage before, under the same mask"


@register_pooling
class EnergyGemTwoMapsPooling(TwoMapsPooling, EnergyGemPooling):
    name = "energy-gem-two-maps"
    words = "energy-gem beside the map of the stage before, under the same mask"


@register_pooling
class BilinearPooling(RationalePooling):
    """Features are K times as wide as φ, too wide for an index: there, the mask that sums them up stands in."""

    name = "bilinear"
    words = "by each projection on its own"
    per_projection = True

    def __call__(
        self,
        phi: Tensor,
        masks: Mapping[str, Tensor],
        responses: Tensor | None = None,
        region: Tensor | None = None,
        *,
        signed: bool = False,
    ) -> Tensor:
        from finesight.nn.pooling import bilinear

        assert responses is not None
        return bilinear(phi, responses if region is None else responses * region[:, None])

    def width(self, channels: int, projections: int = 0, earlier: int = 0) -> int:
        return channels * projections

    @property
    def indexed(self) -> str:
        return RationalePooling.name


@register_pooling
class BoxPooling(Pooling):
    name = "box"
    words = "the annotated object"
    mask = "box"
    needs_objects = True
    offered = False


@register_pooling
class BoxGemPooling(BoxPooling):
    name = "box-gem"
    words = "the same in GeM"
    gem = True


class BranchPooling(RationalePooling):
    """Pool by the mask of a branch beside the encoder's own, for comparison: ``rationale:NAME`` (``-gem``)."""

    words = "weighed by another branch's mask"
    trainable = False
    offered = False

    def __init__(self, branch: str, *, gem: bool = False) -> None:
        self.mask, self.gem = branch_mask_name(branch), gem
        self.name = f"{self.mask}-gem" if gem else self.mask


def whole_picture_only(pooling: Pooling) -> str:
    """Return why a region cannot be pooled alone."""
    return f"Pooling {pooling.name!r} is of the whole picture: it cannot be narrowed to a part of it."


def branch_mask_name(branch: str) -> str:
    """Return what the mask of a branch beside the encoder's own is called."""
    return f"{RATIONALE}:{branch}"


def find_pooling(name: str) -> Pooling:
    """Return the pooling that a command, a file or a result calls ``name``, or raise ``FineSightError``."""
    kind, _, branch = name.partition(":")
    if kind == RATIONALE and branch:
        return BranchPooling(branch.removesuffix("-gem"), gem=branch.endswith("-gem"))
    if name not in POOLINGS:
        raise unknown("pooling", name, offered_poolings())
    return POOLINGS[name]


def offered_poolings() -> dict[str, Pooling]:
    """Return the poolings a user may choose, by name."""
    return {name: pooling for name, pooling in POOLINGS.items() if pooling.offered}
