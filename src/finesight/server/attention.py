"""Why: attention over a picture, and what made two of them alike. The maps come from ``finesight.explain``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
from fastapi import HTTPException

from finesight.features.types import Floats, View
from finesight.server import schemas
from finesight.server.images import overlay
from finesight.server.parameters import ExplainOptions, box_of
from finesight.server.queries_and_items import box_model, rows
from finesight.server.safe_files import Vanished
from finesight.server.service import Service, projections_of

if TYPE_CHECKING:
    from finesight.explain.contributions import ProjectionShare
    from finesight.features.encoder import Encoder

SHOWN = 8  # projections


def attention(service: Service, name: str) -> schemas.Attention:
    """The mask is known already; for the projections the picture is read again, if it is still there."""
    subject = service.subjects.find(name)
    projections: list[schemas.Projection] = []
    if projections_of(service.embedder):
        with contextlib.suppress(Vanished):
            projections = _projections(_encoder(service), service.subjects.look_at(subject))
    return schemas.Attention(view=box_model(subject.view), mask=rows(subject.mask), projections=projections)


def attention_picture(service: Service, name: str) -> bytes:
    """A PNG."""
    subject = service.subjects.find(name)
    stream, _ = service.subjects.open(subject)
    with stream:
        return overlay(stream, subject.mask, subject.view, service.limits.pixels)


def explain(service: Service, options: ExplainOptions) -> schemas.Explanation:
    """Cells of each picture and projections, exactly as they add up to the score."""
    from finesight.explain.contributions import similarity

    space, box = service.space(options.by), box_of(options.box)
    query, hit = service.subjects.find(options.query), service.subjects.find(options.hit)
    encoder = _encoder(service)
    seen, other = service.subjects.look_at(query, box), service.subjects.look_at(hit)
    found = similarity(encoder, seen, other, space, box)
    return schemas.Explanation(
        score=found.score,
        query=schemas.Side(view=box_model(seen.box), map=exact(found.query_map)),
        hit=schemas.Side(view=box_model(other.box), map=exact(found.hit_map)),
        projections=[_share(share) for share in found.projections[:SHOWN]],
    )


def _encoder(service: Service) -> Encoder:
    encoder: Encoder | None = getattr(service.embedder, "encoder", None)
    if encoder is None:
        raise HTTPException(422, "Only the torch engine can take a score apart: start the server with --engine torch.")
    return encoder


def _projections(encoder: Encoder, view: View) -> list[schemas.Projection]:
    """Those whose answer varies most over the picture, as ``finesight explain`` picks them."""
    from finesight.explain.contributions import feature_parts
    from finesight.nn.poolings import find_pooling

    responses = feature_parts(encoder, view, find_pooling(encoder.config.pooling)).responses  # (K, H, W)
    if responses is None:
        return []
    strengths = responses.var(axis=(1, 2))
    return [
        schemas.Projection(k=k, strength=float(strengths[k]), map=rows(unit_range(responses[k])))
        for k in np.argsort(-strengths, kind="stable")[:SHOWN].tolist()
    ]


def _share(share: ProjectionShare) -> schemas.ProjectionShare:
    return schemas.ProjectionShare(k=share.k, share=share.share, query=exact(share.query_map), hit=exact(share.hit_map))


def unit_range(cells: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Floats:
    """From its own lowest value, 0, to its highest, 1; a map that is the same everywhere is 0."""
    low, high = float(cells.min()), float(cells.max())
    scaled: Floats = ((cells - low) / max(high - low, 1e-12)).astype(np.float32)
    return scaled


def exact(cells: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[list[float]]:
    """With as many digits as there are: they are to sum to the score."""
    return [[float(value) for value in row] for row in cells]
