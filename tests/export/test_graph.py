"""The graph that is exported gives what the encoder gives, before any ONNX."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from finesight.export.graph import Graph, cell_share
from finesight.export.verify import reference, trials
from finesight.nn.pooling import object_share
from finesight.nn.poolings import find_pooling
from finesight.rationale.config import VariantName
from networks import KINDS, small_encoder
from reference.boxes import share


@pytest.mark.parametrize(("pooling", "variant"), KINDS)
@torch.no_grad()
def test_every_output_is_the_encoders(pooling: str, variant: VariantName | None) -> None:
    encoder = small_encoder(pooling, variant)
    graph = Graph(encoder, responses=variant is not None)
    narrow = find_pooling(pooling).can_narrow
    for images, drawn in trials(32, encoder.backbone.stride, 3, encoder.backbone.map.sides):
        region = drawn if narrow else None
        whole = torch.ones(images.shape[:3]) if region is None else region
        *outputs, _ = graph(images, whole)
        wanted = reference(encoder, images, region, graph.names)
        assert set(graph.names) == set(wanted)
        for name, output in zip(graph.names, outputs, strict=True):
            # The mask of tokens that are nearly alike is stretched from 0 to 1, and so is its rounding.
            stretched = encoder.backbone.signed and name == "attention"
            pooled_by_it = encoder.backbone.signed and find_pooling(pooling).mask == "attention"
            atol = 1e-3 if stretched else 1e-4 if pooled_by_it else 1e-5
            assert_close(output, torch.from_numpy(wanted[name]), rtol=1e-4, atol=atol)


@torch.no_grad()
def test_a_region_changes_the_feature_and_not_the_mask() -> None:
    graph = Graph(small_encoder("rationale-gem", "finesight"))
    images = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    part = torch.zeros(1, 32, 32)
    part[:, :16, :16] = 1
    whole, narrow = graph(images, torch.ones(1, 32, 32)), graph(images, part)
    assert not torch.allclose(whole[0], narrow[0])
    assert not torch.allclose(whole[1], narrow[1])
    assert torch.equal(whole[2], narrow[2])


@pytest.mark.parametrize(
    ("size", "grid"), [((32, 32), (4, 4)), ((35, 52), (5, 7)), ((31, 30), (4, 4)), ((8, 8), (1, 8))]
)
def test_the_share_of_a_cell_is_adaptive_pooling(size: tuple[int, int], grid: tuple[int, int]) -> None:
    region = torch.rand(3, *size, generator=torch.Generator().manual_seed(1))
    assert_close(cell_share(region, *grid), object_share(region, *grid))


def test_the_share_of_a_cell_is_what_a_box_covers() -> None:
    region = torch.zeros(1, 32, 32)
    region[:, 5:22, 3:17] = 1
    np.testing.assert_allclose(cell_share(region, 4, 4)[0], share((3, 5, 14, 17), 32, 4, 4), atol=1e-6)
