"""Explain answers: where the network looks, and what made two images similar. The maps are of ``finesight.explain``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from fastapi import HTTPException

from finesight.features.types import View
from finesight.server import schemas
from finesight.server.feature_sets import FeatureSet
from finesight.server.images import draw_overlay
from finesight.server.parameters import ExplainOptions, request_box
from finesight.server.safe_files import ImageMissing
from finesight.server.service import SearchService, count_projections, find_space, mask_rows

if TYPE_CHECKING:
    from finesight.features.encoder import Encoder

PROJECTIONS = 8  # that are returned


def attention(service: SearchService, name: str, features: str | None = None) -> schemas.Attention:
    """Return the mask, and the projections if the file is still there: they need the image once more."""
    used = service.features.get(features)
    image = service.image(name, used)
    projections: list[schemas.Projection] = []
    if count_projections(used.embedder):
        with contextlib.suppress(ImageMissing):
            view = service.images.read_view(image, used.embedder.framing)
            projections = _projections(_encoder(used), view, service.collection.part_names(used))
    return schemas.Attention(view=schemas.ViewBox.of(image.view), mask=mask_rows(image.mask), projections=projections)


def attention_png(service: SearchService, name: str, features: str | None = None) -> bytes:
    """Return the image with its mask laid over it."""
    image = service.image(name, service.features.get(features))
    stream, _ = service.images.open(image)
    with stream:
        return draw_overlay(stream, image.mask, image.view, service.config)


def explain(service: SearchService, options: ExplainOptions) -> schemas.ExplanationResponse:
    """Return what each cell and each projection adds to the score, exactly."""
    used, box = service.features.get(options.features), request_box(options.box)
    space = find_space(used, options.by)
    query, hit = (service.images.find(name, used.index) for name in (options.query, options.hit))
    encoder, framing = _encoder(used), used.embedder.framing
    from finesight.explain.contributions import similarity  # torch, which the encoder has loaded

    query_view, hit_view = service.images.read_view(query, framing, box), service.images.read_view(hit, framing)
    found = similarity(encoder, query_view, hit_view, space, box)
    names = service.collection.part_names(used)
    return schemas.ExplanationResponse(
        score=found.score,
        query=schemas.Side(view=schemas.ViewBox.of(query_view.box), map=found.query_map.tolist()),
        hit=schemas.Side(view=schemas.ViewBox.of(hit_view.box), map=found.hit_map.tolist()),
        projections=[
            schemas.ProjectionShareResponse(
                k=one.k,
                name=names.get(str(one.k), ""),
                share=one.share,
                query=one.query_map.tolist(),
                hit=one.hit_map.tolist(),
            )
            for one in found.projections[:PROJECTIONS]
        ],
    )


def _encoder(features: FeatureSet) -> Encoder:
    encoder: Encoder | None = getattr(features.embedder, "encoder", None)
    if encoder is None:
        raise HTTPException(422, "Only the torch engine can take a score apart: start the server with --engine torch.")
    return encoder


def _projections(encoder: Encoder, view: View, names: Mapping[str, str]) -> list[schemas.Projection]:
    """Return the projections whose response varies most over the image, as ``finesight explain`` chooses them."""
    from finesight.explain.contributions import feature_parts
    from finesight.nn.poolings import find_pooling

    responses = feature_parts(encoder, view, find_pooling(encoder.config.pooling)).responses  # (K, H, W)
    if responses is None:
        return []
    strengths = responses.var(axis=(1, 2))
    lowest = responses.min((1, 2), keepdims=True)
    scaled = (responses - lowest) / np.maximum(np.ptp(responses, (1, 2), keepdims=True), 1e-12)  # a constant map is 0
    return [
        schemas.Projection(
            k=k, name=names.get(str(k), ""), strength=float(strengths[k]), map=mask_rows(scaled[k].astype(np.float32))
        )
        for k in np.argsort(-strengths, kind="stable")[:PROJECTIONS].tolist()
    ]
