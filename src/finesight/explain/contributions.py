"""Why two images are alike: their cosine score taken apart, exactly, into cells and projections.

Every pooling here makes its feature f as a sum over cells, f = Σ_p u_p. The score f_q·f_h / (|f_q||f_h|) is then the
sum over the query's cells of u_p·f_h / (|f_q||f_h|), and likewise over the hit's: nothing is estimated, nothing is left
over. With a mask m, u_p is m_p φ_p / Σm; in GeM, f_c = (Σ m φ_c³ / Σm)^⅓, it is m_p φ_cp³ / (Σm f_c²). Where GeM counts
from the lowest value l_c of a channel, the same is done with φ_c - l_c, and m_p l_c / Σm is added.

Where two maps are pooled, f is [a / |a| ; w b / |b|] with a and b such sums over cells of their own maps. What a cell
of the earlier, larger map adds is given to the cells of φ that it lies in, by its area in each: the sum stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.errors import FineSightError, unknown
from finesight.explain.notebook import similarity_html
from finesight.features.encoder import Encoder
from finesight.features.preprocess import Picture, region_share, require_view
from finesight.features.types import Box, View
from finesight.nn.pooling import GEM_POWER, LEAST, enlarge, narrow_mask, object_share
from finesight.nn.poolings import ATTENTION, Pooling, find_pooling, offered_poolings
from finesight.rationale.branch import FittingBranch

Doubles = NDArray[np.float64]
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class FeatureParts:
    """What the feature of one image is made of."""

    phi: Doubles  # (C, H, W)
    weights: Doubles  # (H, W) the mask it is pooled by, a region's share included; ones where all cells count alike
    responses: Doubles | None = None  # (K, H, W) of the projections
    winners: NDArray[np.int64] | None = None  # (H, W) which of them is the maximum; none for branches without one
    signed: bool = False  # negative values of φ count in GeM too
    earlier: EarlierParts | None = None  # where two maps are pooled


@dataclass(frozen=True)
class EarlierParts:
    """What the second half of a feature of two maps is made of."""

    map: Doubles  # (D, H', W')
    weights: Doubles  # (H', W')
    weight: float  # of this half beside the other
    signed: bool = False


@dataclass(frozen=True)
class ProjectionShare:
    """What one projection's cells add to a score. A cell is the projection's that wins the maximum there (Eq. 4)."""

    k: int
    share: float  # the mean of the next two; over all projections the shares sum to the score
    query_share: float  # by its cells in the query, with whatever they meet in the hit
    hit_share: float
    matched: float  # by its cells in the query with its cells in the hit alone
    query_map: Doubles  # (H, W) sums to query_share
    hit_map: Doubles  # (H, W) sums to hit_share


@dataclass(frozen=True)
class Similarity:
    """A cosine score, and the cells and projections that made it. In a notebook it shows itself."""

    score: float
    by: str
    query_map: Doubles  # (H, W) sums to the score, as does the hit's
    hit_map: Doubles  # (H, W)
    projections: list[ProjectionShare]  # largest share first; those without a cell in either image are left out
    views: tuple[View, View] | None = None  # of the query and of the hit, where they are known
    names: tuple[str, str] = ("", "")  # of their files

    def _repr_html_(self) -> str:
        return similarity_html(self)


def similarity(
    encoder: Encoder, query: View | Picture, hit: View | Picture, by: str | None = None, region: Box | None = None
) -> Similarity:
    """Take the score of two images apart, under the encoder's own pooling or another (``by``).

    Images are views as a search makes them, or pictures of which the same views are made. ``region`` narrows the query
    as searching by a box does; it is in shares of the picture.
    """
    pooling = find_pooling(by or encoder.config.pooling)
    if not pooling.offered:
        raise unknown("pooling", pooling.name, offered_poolings())
    if not pooling.is_sum_over_cells:
        raise FineSightError(f"A score by pooling {pooling.name!r} cannot be taken apart: it is no sum over cells.")
    encoder.pooler.require(pooling)
    views = open_view(encoder, query, region), open_view(encoder, hit)
    parts = feature_parts(encoder, views[0], pooling, region), feature_parts(encoder, views[1], pooling)
    return replace(decompose(*parts, pooling), views=views, names=(_name(query), _name(hit)))


def _name(image: View | Picture) -> str:
    return Path(image).name if isinstance(image, (str, Path)) else ""


def open_view(encoder: Encoder, image: View | Picture, region: Box | None = None) -> View:
    """Return what the network sees of a picture; a file that cannot be used is a ``FineSightError``."""
    return image if isinstance(image, View) else require_view(image, encoder.config.framing, region)


@torch.no_grad()
def feature_parts(encoder: Encoder, view: View, pooling: Pooling, region: Box | None = None) -> FeatureParts:
    """Return what the encoder makes of one view, for ``decompose``."""
    views = encoder.normalize(view.pixels[None])
    attention, earlier = pooling.mask == ATTENTION, pooling.needs_earlier
    output = encoder.pooler.limited(encoder.runner.outputs(views, attention=attention, earlier=earlier))
    phi, masked = output.phi, pooling.mask is not None and not pooling.per_projection
    mask = encoder.masks(output)[str(pooling.mask)] if masked else None
    if region is not None:
        share = torch.from_numpy(region_share(view, region))[None].to(phi.device)
        mask = narrow_mask(mask, object_share(share, *phi.shape[2:]))
    weights = torch.ones_like(phi[:, 0]) if mask is None else mask
    responses = None if encoder.branch is None else encoder.branch.responses(phi)
    winning = None if encoder.branch is None or responses is None else winners(encoder.branch, responses)
    return FeatureParts(
        phi[0].double().cpu().numpy(),
        weights[0].double().cpu().numpy(),
        None if responses is None else responses[0].double().cpu().numpy(),
        None if winning is None else winning[0].cpu().numpy(),
        encoder.backbone.signed,
        None if output.earlier is None else _earlier_parts(encoder, output.earlier, weights),
    )


def _earlier_parts(encoder: Encoder, earlier: Tensor, weights: Tensor) -> EarlierParts:
    larger = enlarge(weights, *earlier.shape[2:])
    return EarlierParts(
        earlier[0].double().cpu().numpy(),
        larger[0].double().cpu().numpy(),
        encoder.config.earlier_weight,
        encoder.backbone.earlier.signed,
    )


def winners(branch: FittingBranch, responses: Tensor) -> Tensor | None:
    """Return which kept projection is the maximum in each cell, or None if the branch takes no maximum. -> (N, H, W)"""
    if branch.mix is not None:
        return None
    if isinstance(branch.kept, Tensor):
        responses = responses.masked_fill(~branch.kept[:, None, None], -torch.inf)
    return responses.argmax(1)


def decompose(query: FeatureParts, hit: FeatureParts, pooling: Pooling) -> Similarity:
    """Take the score under a pooling apart."""
    if pooling.per_projection:
        return _decompose_projections(query, hit, pooling)
    parts, others = (_all_parts(image, gem=pooling.gem) for image in (query, hit))
    feature, other = parts.sum(1), others.sum(1)  # (C,)
    length = _length(feature, other)
    query_map = (other @ parts / length).reshape(query.weights.shape)
    hit_map = (feature @ others / length).reshape(hit.weights.shape)
    shares: list[ProjectionShare] = []
    if query.winners is not None and hit.winners is not None:
        for k in np.union1d(query.winners, hit.winners).tolist():
            mine, theirs = query.winners == k, hit.winners == k
            matched = parts[:, mine.ravel()].sum(1) @ others[:, theirs.ravel()].sum(1) / length
            shares.append(_share(k, query_map * mine, hit_map * theirs, float(matched)))
    return Similarity(float(feature @ other / length), pooling.name, query_map, hit_map, _sorted(shares))


def _all_parts(image: FeatureParts, *, gem: bool) -> Doubles:
    """Return what each cell of φ adds to each number of the feature, that of an earlier map too. -> (C, H*W)"""
    parts = cell_parts(image.phi, image.weights, gem=gem, signed=image.signed)
    if (earlier := image.earlier) is None:
        return parts
    before = cell_parts(earlier.map, earlier.weights, gem=gem, signed=earlier.signed) @ cell_shares(
        earlier.weights.shape, image.weights.shape
    )
    last, before = (half / max(float(np.linalg.norm(half.sum(1))), _TINY) for half in (parts, before))
    return np.concatenate([last, earlier.weight * before])


def cell_shares(many: tuple[int, ...], few: tuple[int, ...]) -> Doubles:
    """Return the share of each cell of a fine grid that lies in each cell of a coarse one; rows sum to 1.

    (H', W'), (H, W) -> (H'*W', H*W)
    """
    rows, columns = (_overlaps(fine, coarse) for fine, coarse in zip(many, few, strict=True))
    return np.asarray(np.kron(rows, columns), np.float64)


def _overlaps(fine: int, coarse: int) -> Doubles:
    """Return the same along one side. -> (fine, coarse)"""
    edges, bounds = np.arange(fine + 1) / fine, np.arange(coarse + 1) / coarse
    ends = np.minimum(edges[1:, None], bounds[1:]) - np.maximum(edges[:-1, None], bounds[:-1])
    lengths = np.maximum(ends, 0)
    return np.asarray(lengths / lengths.sum(1, keepdims=True))


def cell_parts(phi: Doubles, weights: Doubles, *, gem: bool, signed: bool = False) -> Doubles:
    """Return what each cell adds to each number of the feature f. (C, H, W), (H, W) -> (C, H*W)"""
    flat, weight = phi.reshape(len(phi), -1), weights.ravel()
    weight = weight if weight.sum() > 0 else np.ones_like(weight)  # as ``nn.pooling.pool``: an empty mask says nothing
    share = weight / weight.sum()
    if not gem:
        return np.asarray(flat * share)
    lowest = flat.min(1, keepdims=True) if signed else 0.0
    cubes = np.maximum(flat - lowest, LEAST) ** GEM_POWER * share
    feature = cubes.sum(1, keepdims=True) ** (1 / GEM_POWER)
    return np.asarray(cubes / feature ** (GEM_POWER - 1) + lowest * share)


def _decompose_projections(query: FeatureParts, hit: FeatureParts, pooling: Pooling) -> Similarity:
    """Take a score apart where each projection makes its own block of the feature: the block's product is its share."""
    blocks, others = _blocks(query), _blocks(hit)  # (K, C)
    length = _length(blocks, others)
    query_maps, hit_maps = _block_maps(query, others) / length, _block_maps(hit, blocks) / length  # (K, H, W)
    shares = [
        _share(k, mine, theirs, float(blocks[k] @ others[k] / length))
        for k, (mine, theirs) in enumerate(zip(query_maps, hit_maps, strict=True))
    ]
    score = float((blocks * others).sum() / length)
    return Similarity(score, pooling.name, query_maps.sum(0), hit_maps.sum(0), _sorted(shares))


def _weighed_responses(image: FeatureParts) -> Doubles:
    """Return a_k,p m_p / HW. -> (K, H, W)"""
    assert image.responses is not None
    return np.asarray(image.responses * image.weights / image.weights.size)


def _blocks(image: FeatureParts) -> Doubles:
    return np.asarray(np.einsum("khw,chw->kc", _weighed_responses(image), image.phi))


def _block_maps(image: FeatureParts, others: Doubles) -> Doubles:
    return np.asarray(_weighed_responses(image) * np.einsum("kc,chw->khw", others, image.phi))


def _length(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return |a||b|, but never zero: the score of an image without any activation is 0."""
    return max(float(np.linalg.norm(a) * np.linalg.norm(b)), _TINY)


def _share(k: int, query_map: Doubles, hit_map: Doubles, matched: float) -> ProjectionShare:
    query, hit = float(query_map.sum()), float(hit_map.sum())
    return ProjectionShare(k, (query + hit) / 2, query, hit, matched, query_map, hit_map)


def _sorted(shares: list[ProjectionShare]) -> list[ProjectionShare]:
    return sorted(shares, key=lambda share: (-share.share, share.k))
