"""Views of images of which something is known: where to crop, where the object is, what to paste it on."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from finesight.data.cache import DecodedCache, open_cache
from finesight.data.crop import crop_resize_flip
from finesight.data.sources import open_source
from finesight.data.views import PlaceCrops, ViewConfig, apply_views, sample_params
from finesight.paper.objects.boxes import place_in_boxes
from finesight.paper.objects.compose import BACKDROP, GRAY, PasteParams, crop_maps, sample_paste, usable
from finesight.paper.objects.scene import Backdrop, Scene
from finesight.training.batches import Batches
from finesight.training.hooks import TrainingHook
from small import seeded, small_module

SIDE = 24  # of the maps
PLAIN: dict[str, Any] = {"jitter": 0.0, "gray": 0.0, "blur": 0.0, "mean": (0, 0, 0), "std": (1, 1, 1)}


def focus(boxes: Tensor | None, beta: float) -> PlaceCrops | None:
    return None if boxes is None else partial(place_in_boxes, boxes=boxes, beta=beta)


def noise(count: int, seed: int = 0, side: int = 40) -> tuple[Tensor, Tensor]:
    """Images of different sizes, each in the corner of a canvas that is as large as the largest."""
    sizes = torch.randint(side, side + 30, (count, 2), generator=seeded(seed))
    height, width = sizes.amax(0).tolist()
    canvas = torch.zeros(count, 3, height, width, dtype=torch.uint8)
    for image, (h, w) in zip(canvas, sizes.tolist(), strict=True):
        image[:, :h, :w] = torch.randint(0, 256, (3, h, w), generator=seeded(seed + 1), dtype=torch.uint8)
    return canvas, sizes


def random_maps(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, SIDE, SIDE), generator=seeded(seed), dtype=torch.uint8)


def random_boxes(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 2, 2, generator=seeded(seed)).sort(1).values.flatten(1)


def part(canvas: Tensor, sizes: Tensor, rows: slice) -> Tensor:
    """These images on a canvas no larger than they need, as a rank decodes them."""
    height, width = sizes[rows].amax(0).tolist()
    return canvas[rows, :, :height, :width]


def full_scene(count: int, **known: Any) -> Scene:
    """All that can be known of ``count`` images of noise."""
    canvas, sizes = noise(count)
    behind, behind_sizes = noise(count, seed=7)
    backdrop = Backdrop(behind, behind_sizes, torch.arange(count).roll(1))
    scene = Scene(
        canvas,
        sizes,
        slice(None),
        boxes=random_boxes(count),
        beta=0.6,
        maps=random_maps(count),
        backdrop=backdrop,
        backdrop_maps=random_maps(count, seed=3),
    )
    return replace(scene, **known)


def of_rank(scene: Scene, rows: slice) -> Scene:
    """What the process of these rows holds of a scene that is wholly known: pixels and maps of its own images only."""
    assert scene.maps is not None
    assert scene.backdrop_maps is not None
    assert scene.backdrop is not None
    backdrop = replace(scene.backdrop, canvas=part(scene.backdrop.canvas, scene.backdrop.all_sizes, rows))
    return replace(
        scene,
        canvas=part(scene.canvas, scene.all_sizes, rows),
        share=rows,
        maps=scene.maps[rows],
        backdrop=backdrop,
        backdrop_maps=scene.backdrop_maps[rows],
    )


# --- plain views --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("focused", [False, True])
def test_without_maps_a_view_is_what_sample_and_apply_make(focused: bool) -> None:
    canvas, sizes = noise(9)
    boxes = random_boxes(9) if focused else None
    kind = ViewConfig(resolution=16, solarize=0.3)
    scene = Scene(canvas, sizes, slice(None), boxes=boxes, beta=0.6)
    generator, other = seeded(1), seeded(1)
    for _ in range(2):  # and the generator is left where it would have been
        expected = apply_views(kind, canvas, sample_params(kind, sizes, other, focus(boxes, 0.6)))
        assert torch.equal(scene.view(kind, generator), expected)


# --- masks --------------------------------------------------------------------------------------------------------


def bright_squares(count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Black images with a white square, each elsewhere; and maps that say where, of the whole image."""
    canvas = torch.zeros(count, 3, height, width, dtype=torch.uint8)
    maps = torch.zeros(count, SIDE, SIDE, dtype=torch.uint8)
    corners = torch.randint(0, SIDE - 8, (count, 2), generator=seeded(2)).tolist()
    for image, one, (top, left) in zip(canvas, maps, corners, strict=True):
        one[top : top + 8, left : left + 8] = 255
        rows = slice(round(top * height / SIDE), round((top + 8) * height / SIDE))
        columns = slice(round(left * width / SIDE), round((left + 8) * width / SIDE))
        image[:, rows, columns] = 255
    return canvas, maps


@pytest.mark.parametrize(("height", "width"), [(48, 48), (48, 72), (96, 24)])
def test_the_fourth_channel_follows_crop_and_flip(height: int, width: int) -> None:
    count = 64
    canvas, maps = bright_squares(count, height, width)
    sizes = torch.tensor([[height, width]]).repeat(count, 1)
    kind = ViewConfig(resolution=32, **PLAIN)
    views = Scene(canvas, sizes, slice(None), maps=maps).view(kind, seeded(), masked=True)
    assert views.shape == (count, 4, 32, 32)
    bright, alpha = views[:, 0], views[:, 3]
    assert ((alpha >= 0) & (alpha <= 1)).all()
    assert (alpha[bright > 0.99] > 0.5).double().mean() > 0.97
    assert (alpha[bright < 0.01] < 0.5).double().mean() > 0.97
    assert (bright - alpha).abs().mean() < 0.05, "they differ at the edges of the square alone"
    flips = sample_params(kind, sizes, seeded()).flip
    assert 0.2 < flips.double().mean() < 0.8
    wrong = torch.where(flips[:, None, None], alpha.flip(2), alpha)
    assert (bright - wrong).abs().mean() > 2 * (bright - alpha).abs().mean(), "had it not followed"


def test_the_fourth_channel_is_the_cropped_map_in_every_bit_and_colors_leave_it_alone() -> None:
    scene, kind = full_scene(9), ViewConfig(resolution=16, jitter=1.0, gray=0.5, blur=1.0, solarize=0.5)
    params = sample_params(kind, scene.all_sizes, seeded(), focus(scene.boxes, scene.beta))
    expected = crop_maps(scene.maps, scene.all_sizes, params.crop, params.flip, 16)
    assert torch.equal(scene.view(kind, seeded(), masked=True)[:, 3], expected)


# --- pasting ------------------------------------------------------------------------------------------------------


def drawn(scene: Scene, kind: ViewConfig, generator: torch.Generator) -> PasteParams:
    """What a view is expected to draw, in this order: the view, the backdrop's view, what is pasted."""
    assert scene.backdrop is not None
    sample_params(kind, scene.all_sizes, generator, focus(scene.boxes, scene.beta))
    other = sample_params(kind, scene.backdrop.all_sizes, generator)
    return sample_paste(kind.paste, kind.backdrops, other.crop, other.flip, generator)


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_only_the_rows_drawn_for_it_are_pasted(probability: float) -> None:
    count = 40
    scene = full_scene(count)
    maps = scene.maps.clone()
    maps[::5] = 0  # no object: nothing to paste
    maps[1::5] = 255  # nothing else
    scene = replace(scene, maps=maps)
    kind = ViewConfig(resolution=16, paste=probability, backdrops=(1, 1, 1))
    plain = scene.view(kind.model_copy(update={"paste": 0.0}), seeded(4), masked=True)
    views = scene.view(kind, seeded(4), masked=True)
    assert torch.equal(views[:, 3], plain[:, 3])
    changed = (views != plain).flatten(1).any(1)
    chosen = drawn(scene, kind, seeded(4)).paste
    assert torch.equal(changed, chosen & usable(plain[:, 3]))
    assert 0.2 < usable(plain[:, 3]).double().mean() < 0.9
    assert changed.any() == (probability > 0)


def test_an_object_is_pasted_on_its_own_backdrop() -> None:
    """Backdrops of one color each: what is not the object has that color, the object keeps its own."""
    count = 16
    canvas, maps = bright_squares(count, 48, 48)
    sizes = torch.full((count, 2), 48)
    colors = torch.randint(40, 200, (count, 3), generator=seeded(6), dtype=torch.uint8)
    backdrop = Backdrop(colors[:, :, None, None].repeat(1, 1, 48, 48), sizes, torch.arange(count).roll(1))
    known = {"backdrop": backdrop, "backdrop_maps": random_maps(count)}
    scene = Scene(canvas, sizes, slice(None), maps=maps, **known)
    kind = ViewConfig(resolution=32, scale=(0.9, 1.0), paste=1.0, **PLAIN)
    views = scene.view(kind, seeded(), masked=True)
    images, alpha = views[:, :3], views[:, 3:]
    params = sample_params(kind, sizes, seeded())
    cut = crop_resize_flip(canvas, params.crop, params.flip, 32)
    expected = alpha * cut + (1 - alpha) * colors[:, :, None, None] / 255
    assert (drawn(scene, kind, seeded()).kind == BACKDROP).all()
    torch.testing.assert_close(images, expected, rtol=0, atol=1e-5)


def test_the_backdrop_of_a_row_is_shown_by_a_view_of_its_own() -> None:
    """Were it the object's crop, an object could be told by what stayed around it."""
    scene, kind = full_scene(30), ViewConfig(resolution=16, paste=1.0)
    mine = sample_params(kind, scene.all_sizes, seeded(), focus(scene.boxes, scene.beta))
    theirs = drawn(scene, kind, seeded())
    assert (mine.crop != theirs.crop).any(1).all()
    assert (mine.flip != theirs.flip).any()
    inside = theirs.crop[:, :2] + theirs.crop[:, 2:] <= scene.backdrop.all_sizes
    assert inside.all()


@pytest.mark.parametrize(
    ("paste", "second", "expected"),
    [(0.0, 1.0, [0, 1, 0]), (1.0, 0.0, [1, 0, 1]), (1.0, None, [1, 1, 1]), (0.0, None, [0, 0, 0])],
)
def test_second_paste_is_that_of_the_second_view_alone(paste: float, second: float | None, expected: list[int]) -> None:
    config = ViewConfig(resolution=16, paste=paste, second_paste=second, local_crops=1, backdrops=(0, 1, 0))
    assert config.pastes == any(expected)
    kinds = config.kinds()
    assert [kind.paste for kind in kinds] == expected
    scene = full_scene(12)
    for kind, pasted in zip(kinds, expected, strict=True):
        plain = scene.view(kind.model_copy(update={"paste": 0.0}), seeded(), masked=True)
        changed = (scene.view(kind, seeded(), masked=True) != plain).flatten(1).any(1)
        assert changed.any() == bool(pasted)
        if pasted:
            assert (drawn(scene, kind, seeded()).kind == GRAY).all()
            assert torch.equal(changed, usable(plain[:, 3]))


# --- ranks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("paste", [0.0, 0.7])
@pytest.mark.parametrize("masked", [False, True])
def test_what_the_ranks_make_of_their_shares_joins_to_what_one_process_makes(
    ranks: int, paste: float, masked: bool
) -> None:
    """Bit for bit, with pixels, maps and backdrops of its own images alone in each, for one view after the other."""
    scene = full_scene(12)
    config = ViewConfig(resolution=16, solarize=0.2, paste=paste, backdrops=(2, 1, 1), local_crops=1)
    generator = seeded(3)
    whole = [scene.view(kind, generator, masked=masked) for kind in config.kinds()]
    each = 12 // ranks
    shares = [of_rank(scene, slice(rank * each, (rank + 1) * each)) for rank in range(ranks)]
    assert any(a.canvas.shape != b.canvas.shape for a, b in pairwise(shares)), "the canvases differ in size"
    parts = []
    for share in shares:
        generator = seeded(3)
        parts.append([share.view(kind, generator, masked=masked) for kind in config.kinds()])
    for view, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(torch.cat(pieces), view)
    if paste:
        chosen = drawn(scene, config.kinds()[0], seeded(3))
        assert set(chosen.kind[chosen.paste].tolist()) == {0, 1, 2}


# --- batches ------------------------------------------------------------------------------------------------------

IMAGES = 19


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> DecodedCache:
    """Pictures of different shapes, each of one color that says which it is."""
    root = tmp_path_factory.mktemp("pictures")
    for i in range(IMAGES):
        Image.new("RGB", (10 + i % 5, 10 + i % 3), (10 * i, 255 - 10 * i, i)).save(root / f"{i:02d}.png")
    return open_cache(open_source(root), 8, cache_dir=tmp_path_factory.mktemp("cache"), workers=1, progress=False)


def who(canvas: Tensor) -> list[int]:
    """Which pictures these are, by their pixels."""
    return canvas[:, 2, 0, 0].tolist()


HELD_OUT = np.array([0, 3, 4, 11, 18])
KEPT = np.setdiff1d(np.arange(IMAGES), HELD_OUT)


def pasting() -> TrainingHook:
    return small_module("dilo").hook


@pytest.mark.parametrize("images", [np.arange(IMAGES), KEPT, np.array([2, 9])], ids=["all", "some held out", "two"])
def test_backdrops_index_the_trained_images(cache: DecodedCache, images: np.ndarray) -> None:
    batch_size = min(6, len(images))
    batches = Batches(cache, images, batch_size=batch_size, epochs=8, seed=5, hook=pasting())
    pairs = set()
    for batch in batches:
        data, backdrop = batch.extra, batch.extra.backdrop
        assert images[data.images].tolist() == batches.indices(batch.step).tolist() == who(batch.canvas)
        chosen = images[backdrop.images]
        assert chosen.tolist() == who(backdrop.canvas)
        assert backdrop.all_sizes.tolist() == cache.sizes[chosen].tolist()
        assert (backdrop.images != data.images).all(), "never itself"
        pairs |= set(zip(data.images.tolist(), backdrop.images.tolist(), strict=True))
    possible = len(images) * (len(images) - 1)
    assert len(pairs) == possible if len(images) == 2 else len(pairs) > min(possible, len(batches) * batch_size) / 2


def test_backdrops_change_nothing_else_and_only_come_where_they_are_asked_for(cache: DecodedCache) -> None:
    settings: dict[str, Any] = {"batch_size": 6, "epochs": 2, "seed": 1}
    for plain, behind in zip(
        Batches(cache, KEPT, **settings), Batches(cache, KEPT, hook=pasting(), **settings), strict=True
    ):
        assert plain.extra is None
        assert behind.extra.backdrop is not None
        assert torch.equal(plain.canvas, behind.canvas)
        assert torch.equal(plain.all_sizes, behind.all_sizes)


def test_backdrops_depend_on_seed_and_step_alone_and_join_over_ranks(cache: DecodedCache) -> None:
    settings: dict[str, Any] = {"batch_size": 6, "epochs": 3, "hook": pasting()}
    whole = list(Batches(cache, KEPT, seed=1, **settings))
    later = list(Batches(cache, KEPT, seed=1, start=3, **settings))
    ranks = [list(Batches(cache, KEPT, seed=1, rank=rank, processes=2, **settings)) for rank in range(2)]
    chosen = [batch.extra.backdrop.images.tolist() for batch in whole]
    assert [batch.extra.backdrop.images.tolist() for batch in later] == chosen[3:]
    assert chosen != [batch.extra.backdrop.images.tolist() for batch in Batches(cache, KEPT, seed=2, **settings)]
    for step, batch in enumerate(whole):
        parts, joined = [rank[step].extra for rank in ranks], batch.extra
        assert [name for part in parts for name in who(part.backdrop.canvas)] == who(joined.backdrop.canvas)
        for part in parts:
            assert torch.equal(part.images, joined.images)
            assert torch.equal(part.backdrop.images, joined.backdrop.images)
            assert torch.equal(part.backdrop.all_sizes, joined.backdrop.all_sizes)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_takes_boxes_of_the_joined_batch_and_maps_of_its_own_images(cache: DecodedCache, rank: int) -> None:
    settings = {"saliency.source": "detector", "focus.source": "saliency", "views.second_paste": 1.0, "batch_size": 6}
    module = small_module("moco-v2", steps_per_epoch=3, **settings)
    hook = module.hook
    hook.boxes.copy_(random_boxes(len(hook.boxes)))
    hook.maps.copy_(torch.arange(len(hook.maps))[:, None, None])
    for batch in Batches(cache, KEPT, batch_size=6, epochs=1, seed=0, rank=rank, processes=2, hook=hook):
        scene = hook.scene(batch)
        assert torch.equal(scene.boxes, hook.boxes[batch.extra.images])
        assert scene.beta == module.config.focus.beta
        assert KEPT[scene.maps[:, 0, 0].tolist()].tolist() == who(batch.canvas)
        assert KEPT[scene.backdrop_maps[:, 0, 0].tolist()].tolist() == who(batch.extra.backdrop.canvas)
        assert len(scene.maps) == 3
