"""A score taken apart: against loops, and against the scores that a search gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from finesight.api import frozen
from finesight.errors import FineSightError
from finesight.explain.contributions import EarlierParts, FeatureParts, Similarity, decompose, similarity
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder import Encoder
from finesight.features.preprocess import picture_view
from finesight.features.types import Box
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.poolings import find_pooling, offered_poolings
from reference import contributions as loops

pytestmark = pytest.mark.slow

K = 5
SUMS = [name for name, pooling in offered_poolings().items() if pooling.is_sum_over_cells]
POOLINGS = [name for name in SUMS if not find_pooling(name).needs_class_token]  # of the encoder below
MASKED = [name for name in SUMS if name != "bilinear"]
ONE_MAP = [name for name in MASKED if not find_pooling(name).needs_earlier]
TWO_MAPS = [name for name in MASKED if name not in ONE_MAP]


def seen(
    seed: int,
    *,
    negative: bool = False,
    signed: bool = False,
    shape: tuple[int, int, int] = (6, 3, 4),
    by: str = "rationale",
) -> FeatureParts:
    random = np.random.default_rng(seed)

    def drawn(*sizes: int) -> np.ndarray:
        return random.normal(size=sizes) if negative else random.random(sizes) + 0.01

    phi, (rows, columns) = drawn(*shape), shape[1:]
    responses = random.normal(size=(K, *shape[1:]))
    parts = FeatureParts(phi, random.random(shape[1:]), responses, responses.argmax(0), signed)
    if not find_pooling(by).needs_earlier:
        return parts
    larger = 2 * rows - 1, 2 * columns  # one side is no multiple
    return replace(parts, earlier=EarlierParts(drawn(5, *larger), random.random(larger), 0.6, signed))


@pytest.fixture
def two(birds: Path) -> tuple[Path, Path]:
    first, second = sorted(birds.glob("test/*/*.png"))[:2]
    return first, second


@pytest.mark.parametrize("by", ONE_MAP)
def test_every_cell_and_projection_as_loops_have_them(by: str) -> None:
    query, hit = seen(0), seen(1, shape=(6, 2, 5))
    power = 3.0 if by.endswith("gem") else 1.0
    found = decompose(query, hit, find_pooling(by))
    own, other = (loops.feature(one.phi, one.weights, power) for one in (query, hit))
    assert found.score == pytest.approx(loops.cosine(own, other), rel=1e-10)
    np.testing.assert_allclose(found.query_map, loops.cell_map(query.phi, query.weights, power, other), rtol=1e-10)
    np.testing.assert_allclose(found.hit_map, loops.cell_map(hit.phi, hit.weights, power, own), rtol=1e-10)
    assert query.winners is not None
    assert hit.winners is not None
    for part in found.projections:
        mine, theirs = query.winners == part.k, hit.winners == part.k
        np.testing.assert_array_equal(part.query_map, np.where(mine, found.query_map, 0))
        np.testing.assert_array_equal(part.hit_map, np.where(theirs, found.hit_map, 0))
        wanted = np.dot(
            loops.part(query.phi, query.weights, power, mine), loops.part(hit.phi, hit.weights, power, theirs)
        )
        assert part.matched == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("by", TWO_MAPS)
def test_cells_of_two_maps_as_loops_have_them(by: str) -> None:
    """What each map's cells add to its own cosine, the larger map's given to the cells of φ by their areas."""
    query, hit = seen(0, by=by), seen(1, shape=(6, 2, 5), by=by)
    assert query.earlier is not None
    assert hit.earlier is not None
    found, share = decompose(query, hit, find_pooling(by)), 0.6**2
    last = loops.cell_map(query.phi, query.weights, 3.0, loops.feature(hit.phi, hit.weights, 3.0))
    other = loops.feature(hit.earlier.map, hit.earlier.weights, 3.0)
    fine = loops.cell_map(query.earlier.map, query.earlier.weights, 3.0, other)
    wanted = (last + share * loops.coarse(fine, *last.shape)) / (1 + share)
    np.testing.assert_allclose(found.query_map, wanted, rtol=1e-10)
    assert found.score == pytest.approx(wanted.sum(), rel=1e-10)
    alone = (replace(one, earlier=replace(one.earlier, weight=0.0)) for one in (query, hit))  # type: ignore[type-var]
    np.testing.assert_allclose(decompose(*alone, find_pooling(by)).query_map, last, rtol=1e-10)


def test_bilinear_blocks_as_loops_have_them() -> None:
    query, hit = (FeatureParts(one.phi, np.ones((3, 4)), one.responses, one.winners) for one in (seen(0), seen(1)))
    found = decompose(query, hit, find_pooling("bilinear"))
    assert len(found.projections) == K
    for part in found.projections:
        wanted = loops.bilinear_share(part.k, query.phi, query.responses, hit.phi, hit.responses)
        assert part.share == pytest.approx(wanted, rel=1e-10)
        assert part.query_share == pytest.approx(part.hit_share, rel=1e-10)
        assert part.matched == pytest.approx(part.share, rel=1e-10)


def sums_to_its_score(found: Similarity) -> bool:
    sums = [found.query_map.sum(), found.hit_map.sum()]
    if found.projections:
        sums += [
            sum(getattr(part, name) for part in found.projections) for name in ("share", "query_share", "hit_share")
        ]
    return sums == pytest.approx([found.score] * len(sums), abs=1e-10)


@pytest.mark.parametrize("by", SUMS)
@pytest.mark.parametrize(("negative", "signed"), [(False, False), (True, False), (True, True)])
def test_cells_and_projections_sum_to_the_score(by: str, negative: bool, signed: bool) -> None:
    two = (seen(seed, negative=negative, signed=signed, by=by) for seed in (2, 3))
    found = decompose(*two, find_pooling(by))
    assert sums_to_its_score(found)
    shares = [part.share for part in found.projections]
    assert shares == sorted(shares, reverse=True)
    if not negative and by != "bilinear":
        assert found.query_map.min() >= 0
        assert found.hit_map.min() >= 0


@pytest.mark.parametrize("by", MASKED)
def test_the_two_sides_can_be_swapped(by: str) -> None:
    one, other = seen(4, by=by), seen(5, by=by)
    there, back = (decompose(*two, find_pooling(by)) for two in ((one, other), (other, one)))
    assert there.score == pytest.approx(back.score, rel=1e-12)
    np.testing.assert_allclose(there.query_map, back.hit_map, rtol=1e-12)
    assert {part.k: part.share for part in there.projections} == pytest.approx(
        {part.k: part.share for part in back.projections}
    )


def test_an_image_is_like_itself() -> None:
    found = decompose(seen(6), seen(6), find_pooling("rationale-gem"))
    assert found.score == pytest.approx(1)
    np.testing.assert_allclose(found.query_map, found.hit_map)


def test_an_empty_mask_and_an_image_without_activation() -> None:
    one, mask = seen(7), find_pooling("rationale")
    empty = FeatureParts(one.phi, np.zeros((3, 4)), one.responses, one.winners)
    plain = FeatureParts(one.phi, np.ones((3, 4)), one.responses, one.winners)
    assert decompose(empty, seen(8), mask).score == decompose(plain, seen(8), mask).score
    nothing = FeatureParts(np.zeros((6, 3, 4)), np.ones((3, 4)))
    found = decompose(nothing, seen(8), find_pooling("average"))
    assert found.score == 0
    assert not found.query_map.any()
    assert found.projections == []


@pytest.mark.parametrize("by", POOLINGS)
def test_the_score_is_the_cosine_of_the_encoders_features(encoder: Encoder, two: tuple[Path, Path], by: str) -> None:
    found = similarity(encoder, *two, by)
    a, b = encoder.embed(list(two), by)  # type: ignore[arg-type]
    assert found.score == pytest.approx(float(torch.cosine_similarity(a, b, dim=0)), abs=1e-5)
    assert sums_to_its_score(found)
    assert len(found.projections) > 1


@pytest.mark.parametrize("space", ["rationale-gem", "average", "rationale-gem-two-maps"])
@pytest.mark.parametrize("region", [None, (0.1, 0.2, 0.5, 0.4), (0.0, 0.0, 0.2, 1.0)])
def test_it_is_the_score_of_a_search_also_by_a_box(
    encoder: Encoder, two: tuple[Path, Path], space: str, region: Box | None
) -> None:
    engine = TorchEmbedder(encoder if space == "average" else encoder.with_pooling(space), "-")
    views = [picture_view(two[0], engine.framing, region), picture_view(two[1], engine.framing)]
    query, hit = engine.encode(views, [region, None])
    for images in (views, two):
        found = similarity(encoder, *images, space, region)
        assert found.score == pytest.approx(float(query.features[space] @ hit.features[space]), abs=1e-5)
        assert sums_to_its_score(found)
    if region == (0.0, 0.0, 0.2, 1.0):
        assert not found.query_map[:, 2:].any(), "cells right of the box add nothing"
        assert found.hit_map[:, 2:].any()


def test_projections_that_are_not_kept_win_nothing(encoder: Encoder, two: tuple[Path, Path]) -> None:
    assert encoder.branch is not None
    everything = {part.k for part in similarity(encoder, *two).projections}
    encoder.branch.kept = torch.tensor([k != min(everything) for k in range(encoder.branch.projections)])
    kept = similarity(encoder, *two)
    assert min(everything) not in {part.k for part in kept.projections}
    assert sums_to_its_score(kept)


def test_an_encoder_without_a_rationale_has_cells_but_no_projections(encoder: Encoder, two: tuple[Path, Path]) -> None:
    found = similarity(encoder.with_pooling("energy"), *two)
    assert found.by == "energy"
    assert found.projections == []
    assert sums_to_its_score(found)
    with pytest.raises(FineSightError, match="needs a trained rationale"):
        similarity(encoder.with_pooling("energy"), *two, "rationale")


@pytest.mark.parametrize("by", ["attention", "attention-gem", "energy-gem", "average"])
def test_the_score_of_a_transformer(two: tuple[Path, Path], by: str) -> None:
    torch.manual_seed(0)
    encoder = frozen(BackboneConfig(name="test_vit", weights="random"), 64)
    found = similarity(encoder, *two, by)
    a, b = encoder.embed(list(two), by)  # type: ignore[arg-type]
    assert found.score == pytest.approx(float(torch.cosine_similarity(a, b, dim=0)), abs=1e-5)
    assert sums_to_its_score(found)
    with pytest.raises(FineSightError, match="'class-token' cannot be taken apart"):
        similarity(encoder, *two, "class-token")


def test_wrong_input_is_said(encoder: Encoder, two: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match="no pooling 'avrage'"):
        similarity(encoder, *two, "avrage")
    (tmp_path / "none.png").write_bytes(b"nothing")
    with pytest.raises(FineSightError, match="cannot be used"):
        similarity(encoder, tmp_path / "none.png", two[1])
