"""Cut-out, fill and paste against loops over pixels, and every parameter's distribution."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from finesight.data.crop import crop_resize_flip
from finesight.paper.objects.compose import (
    BACKDROP,
    GRAY,
    TEXTURE,
    PasteParams,
    background_of,
    crop_maps,
    paste,
    sample_paste,
    usable,
)
from reference import compose as reference
from small import seeded

SIDE = 24


def close(found: Tensor, expected: Tensor | np.ndarray, atol: float = 2e-6) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float32), rtol=0, atol=atol)


def drawn(count: int, probability: float = 1.0, kinds: tuple[float, ...] = (1, 1, 1), seed: int = 0) -> PasteParams:
    crop = torch.arange(4 * count).view(count, 4)
    return sample_paste(probability, kinds, crop, torch.arange(count) % 2 == 0, seeded(seed))


def of_kinds(*kinds: int) -> PasteParams:
    return replace(drawn(len(kinds)), kind=torch.tensor(kinds))


def scene(count: int, side: int = SIDE, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noise images with soft masks, half of all 0 and 1; backdrops with theirs, of which one is all object."""
    images, backdrops = torch.rand(2, count, 3, side, side, generator=seeded(seed))
    alpha, backdrop_alpha = (2 * torch.rand(2, count, side, side, generator=seeded(seed + 1)) - 0.5).clamp(0, 1)
    backdrop_alpha[-1:] = 1
    return images, alpha, backdrops, backdrop_alpha


# --- maps -------------------------------------------------------------------------------------------------

CROPS = [  # (height, width) of the image, (top, left, height, width) of the crop
    ((40, 40), (0, 0, 40, 40)),
    ((40, 61), (3, 5, 16, 16)),
    ((57, 40), (0, 0, 7, 9)),
    ((57, 40), (50, 31, 7, 9)),
    ((40, 120), (39, 0, 1, 120)),
    ((40, 120), (0, 119, 40, 1)),
    ((1, 90), (0, 17, 1, 73)),
    ((3000, 4001), (1234, 2345, 700, 1500)),
    ((5, 4), (4, 3, 1, 1)),
]


def crops() -> tuple[Tensor, Tensor]:
    return torch.tensor([size for size, _ in CROPS]), torch.tensor([box for _, box in CROPS])


def random_maps(count: int, side: int) -> Tensor:
    return torch.randint(0, 256, (count, side, side), generator=seeded(), dtype=torch.uint8)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(("side", "resolution"), [(1, 5), (2, 8), (9, 16), (12, 7), (9, 1)])
def test_crop_maps_equals_the_loop(side: int, resolution: int, flipped: bool) -> None:
    maps, (sizes, crop) = random_maps(len(CROPS), side), crops()
    found = crop_maps(maps, sizes, crop, torch.full((len(CROPS),), flipped), resolution)
    assert found.dtype == torch.float32
    for result, full, (size, box) in zip(found, maps, CROPS, strict=True):
        close(result, reference.cropped_map(full.numpy(), size, box, flipped, resolution))


def test_crop_maps_show_what_the_view_shows() -> None:
    """A map as large as its image is a channel of it; only near the crop's border do the two clamp differently."""
    side, resolution, boxes = 48, 32, [(0, 0, 48, 48), (5, 9, 20, 31), (20, 1, 28, 47), (7, 13, 40, 9), (0, 30, 48, 18)]
    maps, crop = random_maps(len(boxes), side), torch.tensor(boxes)
    flip = torch.arange(len(boxes)) % 2 == 1
    view = crop_resize_flip(maps[:, None].expand(-1, 3, -1, -1), crop, flip, resolution)[:, 0]
    alpha = crop_maps(maps, torch.full((len(boxes), 2), side), crop, flip, resolution)
    for i, (_, _, height, width) in enumerate(boxes):
        rows, columns = (inside(length, resolution) for length in (height, width))
        columns = columns.flip(0) if flip[i] else columns
        both = rows[:, None] & columns
        assert both.float().mean() > 0.5
        close(alpha[i][both], view[i][both], atol=1e-5)
    close(alpha[0], view[0], atol=1e-5)  # a crop of the whole image clamps at the same border


def inside(length: int, resolution: int) -> Tensor:
    """Output pixels between the centers of the crop's first and last pixel."""
    position = (torch.arange(resolution) + 0.5) * length / resolution - 0.5
    return (position >= 0) & (position <= length - 1)


# --- draws ------------------------------------------------------------------------------------------------

DRAWS = 4000


@pytest.mark.parametrize(("probability", "kinds"), [(0.5, (1, 1, 1)), (0.3, (0.2, 0.5, 0.3)), (0.9, (6, 0, 2))])
def test_chances_and_kinds(probability: float, kinds: tuple[float, float, float]) -> None:
    params = drawn(DRAWS, probability, kinds)
    assert stats.binomtest(int(params.paste.sum()), DRAWS, probability).pvalue > 1e-3
    for kind, weight in enumerate(kinds):
        for rows in (params.kind, params.kind[params.paste]):
            assert stats.binomtest(int((rows == kind).sum()), len(rows), weight / sum(kinds)).pvalue > 1e-3
    assert stats.kstest(params.level.numpy(), stats.uniform.cdf).pvalue > 1e-3
    assert stats.kstest(params.noise[:100].flatten().numpy(), stats.uniform.cdf).pvalue > 1e-3


def test_what_is_drawn_next_does_not_depend_on_the_settings() -> None:
    after = []
    for probability, kinds in [(0.0, (1, 1, 1)), (0.5, (0, 1, 0)), (1.0, (3, 0, 1))]:
        generator = seeded()
        sample_paste(probability, kinds, torch.zeros(7, 4, dtype=torch.int64), torch.zeros(7).bool(), generator)
        after.append(torch.rand(3, generator=generator).tolist())
    assert after[0] == after[1] == after[2]


@pytest.mark.parametrize("kinds", [(1, 1), (1, 1, 1, 1), (0, 0, 0), (1, -1, 1), (1, float("nan"), 1)], ids=str)
def test_wrong_weights_are_named(kinds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="three weights"):
        drawn(3, kinds=kinds)


# --- masks that can be used -------------------------------------------------------------------------------


def test_extreme_masks_are_not_usable() -> None:
    shares = torch.tensor([0.0, 0.019, 0.021, 0.5, 0.89, 0.91, 1.0])
    alpha = shares.view(-1, 1, 1).expand(-1, 8, 8)
    assert usable(alpha).tolist() == [False, False, True, True, True, False, False]
    assert usable(alpha, least=0.3, most=0.6).tolist() == [False, False, False, True, False, False, False]
    assert usable(alpha, least=0.0, most=1.0).all()


# --- fill -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [2, 16, 24, 37])
def test_background_equals_the_loop(side: int) -> None:
    images, alpha, *_ = scene(4, side)
    alpha[0, side // 4 : side - side // 4, side // 4 :] = 1  # a hole
    alpha[1] = (alpha[1] > 0.5).float()
    alpha[2] = 0.999
    found = background_of(images, alpha)
    for result, image, mask in zip(found, images.double().numpy(), alpha.double().numpy(), strict=True):
        close(result, reference.background(image, mask), atol=1e-5)


def test_the_fill_follows_what_is_beside_it() -> None:
    """Left dark, right bright: the hole between is dark at its left and bright at its right."""
    images = torch.linspace(0, 1, 64).expand(1, 3, 64, 64).clone()
    alpha = torch.zeros(1, 64, 64)
    alpha[:, :, 16:48] = 1
    images[:, :, :, 16:48] = 0.5
    row = background_of(images, alpha)[0, 0, 32]
    assert row[18] < 0.35
    assert row[45] > 0.65
    assert (row[16:48].diff() > -1e-3).all()


def test_background_of_an_image_that_is_all_object_is_its_mean() -> None:
    images, *_ = scene(3, 32)
    found = background_of(images, torch.ones(3, 32, 32))
    close(found, images.mean(dim=(2, 3), keepdim=True).expand_as(images))


# --- paste ------------------------------------------------------------------------------------------------


def behind(params: PasteParams, i: int, backdrops: Tensor, backdrop_alpha: Tensor) -> np.ndarray:
    side = backdrops.shape[-1]
    if params.kind[i] == BACKDROP:
        return reference.background(backdrops[i].double().numpy(), backdrop_alpha[i].double().numpy())
    if params.kind[i] == GRAY:
        return np.full((3, side, side), params.level[i].item())
    return reference.texture(params.noise[i].double().numpy(), side)


def test_paste_equals_the_loop() -> None:
    images, alpha, backdrops, backdrop_alpha = scene(9, 18)
    alpha[3], alpha[4] = 0.0, 1.0
    params = replace(of_kinds(0, 1, 2, 0, 1, 2, 2, 1, 0), paste=torch.tensor([True] * 6 + [False, True, True]))
    found = paste(images, alpha, backdrops, backdrop_alpha, params)
    assert found.dtype == torch.float32
    for i, result in enumerate(found):
        if i in (3, 4, 6):  # two extreme masks, and one not drawn
            assert torch.equal(result, images[i])
            continue
        background = behind(params, i, backdrops, backdrop_alpha)
        close(result, reference.pasted(images[i].double().numpy(), alpha[i].double().numpy(), background), atol=1e-5)
        assert not torch.equal(result, images[i])


@pytest.mark.parametrize("kind", [BACKDROP, GRAY, TEXTURE])
def test_a_hard_mask_keeps_the_object_exactly(kind: int) -> None:
    images, alpha, backdrops, backdrop_alpha = scene(4)
    hard = (alpha > 0.5).float()
    found = paste(images, hard, backdrops, backdrop_alpha, of_kinds(*[kind] * 4))
    inside_object = (hard == 1)[:, None].expand_as(images)
    assert torch.equal(found[inside_object], images[inside_object])
    other = paste(1 - images, hard, backdrops, backdrop_alpha, of_kinds(*[kind] * 4))
    assert torch.equal(found[~inside_object], other[~inside_object])  # nothing of the old background is left


def test_textures_differ_and_have_structure() -> None:
    nothing = torch.zeros(8, 3, 32, 32)
    alpha = torch.zeros(8, 32, 32)
    alpha[:, :4] = 1
    found = paste(nothing, alpha, None, None, of_kinds(*[TEXTURE] * 8))[:, :, 8:]
    assert (found.std(dim=(2, 3)).amax(1) > 0.02).all()
    assert all((found[i] - found[j]).abs().mean() > 0.02 for i in range(8) for j in range(i))


def test_backdrops_are_asked_for_only_where_needed() -> None:
    images, alpha, backdrops, backdrop_alpha = scene(4)
    for missing in ((None, None), (backdrops, None), (None, backdrop_alpha)):
        with pytest.raises(ValueError, match="no backdrops"):
            paste(images, alpha, *missing, of_kinds(1, 2, 0, 1))
    params = replace(of_kinds(1, 2, 0, 1), paste=torch.tensor([True, True, False, True]))
    found = paste(images, alpha, None, None, params)
    assert torch.equal(found[2], images[2])
    broken = torch.where(torch.arange(4).view(4, 1, 1, 1) == 2, backdrops, torch.nan)
    found = paste(images, alpha, broken, backdrop_alpha, of_kinds(1, 2, 0, 1))
    assert found.isfinite().all()


# --- one row at a time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [24, 56])
def test_a_row_does_not_depend_on_the_others(side: int) -> None:
    scenery, params = scene(12, side), drawn(12, 0.8)
    joined = paste(*scenery, params)
    for rows in (slice(0, 4), slice(4, 12), slice(11, 12), torch.randperm(12, generator=seeded())):
        assert torch.equal(paste(*(part[rows] for part in scenery), params[rows]), joined[rows])
    filled = background_of(*scenery[:2])
    for i in range(12):
        assert torch.equal(background_of(*(part[i : i + 1] for part in scenery[:2]))[0], filled[i])
    maps, (sizes, crop), flip = random_maps(len(CROPS), 9), crops(), torch.arange(len(CROPS)) % 2 == 0
    shown = crop_maps(maps, sizes, crop, flip, side)
    for i in range(len(CROPS)):
        one = slice(i, i + 1)
        assert torch.equal(crop_maps(maps[one], sizes[one], crop[one], flip[one], side)[0], shown[i])


def test_autocast_does_not_change_a_paste() -> None:
    scenery, params = scene(9), drawn(9)
    expected = paste(*scenery, params)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = paste(*scenery, params)
    assert torch.equal(found, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_equals_cpu() -> None:
    scenery, params = scene(12, 56), drawn(12)
    close(paste(*(part.cuda() for part in scenery), params).cpu(), paste(*scenery, params), atol=2e-5)
    maps, (sizes, crop), flip = random_maps(len(CROPS), 9), crops(), torch.arange(len(CROPS)) % 2 == 0
    close(crop_maps(maps.cuda(), sizes, crop, flip, 32).cpu(), crop_maps(maps, sizes, crop, flip, 32))
