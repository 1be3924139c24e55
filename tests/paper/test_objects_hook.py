"""What a run looks at all its images for: when, what it sees, and that a run which was stopped saw the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.sources import open_source
from finesight.data.views import IMAGENET_MEAN, IMAGENET_STD
from finesight.errors import FineSightError
from finesight.nn.backbone import MapOutput
from finesight.paper.hooks.objects import ObjectsHook, choose_projections, is_due
from finesight.paper.objects.boxes import CENTER, NO_BOX
from finesight.paper.objects.saliency import SIDE, detect_objects
from finesight.training.batches import Batches
from finesight.training.callbacks import StepHooks
from finesight.training.config import build_config
from finesight.training.module import TrainingModule
from finesight.training.save_encoder import make_encoder
from ranks import in_ranks
from reference.boxes import share as share_reference
from reference.focus import box
from small import drive, small_module

pytestmark = pytest.mark.slow

RESOLUTION, BATCH, PER_EPOCH = 32, 8, 3
IMAGES = np.sort(np.random.default_rng(0).permutation(48)[: BATCH * PER_EPOCH])  # the others are held out
HIGH = {"focus.threshold": 0.6}  # on a map of 4×4 hardly a row is all below a tenth
KEEP_TWO: dict[str, Any] = {"rationale.keep": "top", "rationale.keep_count": 2, "rationale.keep_from": 1}
ENERGY: dict[str, Any] = {"focus.source": "energy", "focus.every_n_epochs": 1, **HIGH}


@pytest.fixture(scope="module")
def places(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return birds, tmp_path_factory.mktemp("cache")


def opened(root: Path, folder: Path) -> DecodedCache:
    source = open_source(root).split("train")
    return open_cache(source, cache_side(RESOLUTION), cache_dir=folder, workers=1, progress=False)


@pytest.fixture(scope="module")
def cache(places: tuple[Path, Path]) -> DecodedCache:
    return opened(*places)


def module_of(method: str = "lcr", **settings: Any) -> TrainingModule:
    """Its scales are of no special value: timm begins residual branches at zero."""
    module = small_module(method, steps_per_epoch=PER_EPOCH, **{"rationale.projections": 6}, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return module


def started(module: TrainingModule, cache: DecodedCache, images: np.ndarray = IMAGES, **options: Any) -> ObjectsHook:
    assert isinstance(module.hook, ObjectsHook)
    module.hook.on_fit_start(cache, images, **options)
    return module.hook


def after_an_epoch(module: TrainingModule, cache: DecodedCache, images: np.ndarray = IMAGES) -> ObjectsHook:
    hook = started(module, cache, images)
    hook.on_epoch_start(module, 1)
    return hook


# --- when ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "epochs", "expected"),
    [
        (None, 100, [20, 40, 60, 80]),
        (None, 12, [2, 4, 6, 8, 10]),
        (None, 3, [1, 2]),
        (None, 1, []),
        (1, 4, [1, 2, 3]),
        (3, 10, [3, 6, 9]),
        (20, 20, []),
        (50, 20, []),
    ],
)
def test_due_after_every_so_many_epochs_and_never_before_the_first(
    every: int | None, epochs: int, expected: list[int]
) -> None:
    assert [epoch for epoch in range(epochs) if is_due(every, epoch, epochs)] == expected


def seen_in_a_run(module: TrainingModule, cache: DecodedCache) -> list[tuple[Tensor, ...]]:
    """What was known at the beginning of every step."""
    hook, callback, known = started(module, cache), StepHooks(), []
    steps = Batches(cache, IMAGES, batch_size=BATCH, epochs=module.config.epochs, seed=0, hook=hook)
    for number, batch in enumerate(steps):
        callback.on_train_batch_start(None, module, batch, number)  # type: ignore[arg-type]
        assert module.rationale is not None
        kept = module.rationale.branch.kept
        known.append(tuple(b.clone() if isinstance(b, Tensor) else None for b in (hook.boxes, hook.maps, kept)))
        drive(module, batch)
    return known


def changes(known: list[Tensor]) -> list[int]:
    """Steps at whose beginning it was not what it was before."""
    return [n for n, (a, b) in enumerate(pairwise(known), 1) if not torch.equal(a, b)]


def test_boxes_come_after_the_first_epochs_and_again_with_every_look(cache: DecodedCache) -> None:
    known = seen_in_a_run(module_of(epochs=5, **{**ENERGY, "focus.every_n_epochs": 2}), cache)
    boxes = [row[0] for row in known]
    assert (boxes[0] == NO_BOX).all()
    assert changes(boxes) == [2 * PER_EPOCH, 4 * PER_EPOCH]
    assert ((boxes[-1] >= 0) & (boxes[-1] <= 1)).all()


def test_saliency_of_the_rationale_and_the_boxes_of_it_come_together(cache: DecodedCache) -> None:
    settings = {
        "saliency.source": "rationale",
        "focus.source": "saliency",
        "saliency.every_n_epochs": 1,
        "views.paste": 0.5,
    }
    module = module_of(epochs=3, **settings, **HIGH)
    module.hook.maps.zero_()
    known = seen_in_a_run(module, cache)
    for part in (0, 1):
        assert changes([row[part] for row in known]) == [PER_EPOCH, 2 * PER_EPOCH]
    maps = known[-1][1]
    assert (maps.flatten(1).amax(1) > 230).all()
    assert (maps.flatten(1).amin(1) < 25).all()
    expected = [box(one.double().numpy(), 0.6, RESOLUTION) for one in maps]
    np.testing.assert_allclose(known[-1][0], expected, atol=1e-6)


@pytest.mark.parametrize("start", [0, 2])
def test_projections_are_chosen_once(cache: DecodedCache, start: int) -> None:
    settings = {"rationale.keep": "top", "rationale.keep_count": 2, "rationale.keep_from": start}
    kept = [row[2] for row in seen_in_a_run(module_of(epochs=4, **settings), cache)]
    assert changes(kept) == ([start * PER_EPOCH] if start else [])
    assert kept[-1].sum() == 2
    assert kept[0].all() == (start > 0)


# --- what ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def phi_of(module: TrainingModule, cache: DecodedCache, image: int) -> Tensor:
    """The encoder's map of one image, squeezed to a square without a cache batch, a crop or a canvas."""
    pixels = torch.from_numpy(cache.image(image).copy()).permute(2, 0, 1)[None] / 255
    square = F.interpolate(pixels, size=(RESOLUTION, RESOLUTION), mode="bilinear", align_corners=False)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    backbone = module.objective.backbone.eval()
    phi = backbone((square - mean) / std)
    backbone.train()
    return phi


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> DecodedCache:
    """As many pictures as there are birds, of all shapes."""
    root, chance = tmp_path_factory.mktemp("ragged"), np.random.default_rng(3)
    for number in range(48):
        coarse = Image.fromarray(chance.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        size = tuple(chance.integers(40, 120, 2).tolist())
        coarse.resize(size, Image.Resampling.BICUBIC).save(root / f"{number:02d}.png")
    return opened(root, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("source", ["birds", "ragged"])
def test_boxes_are_those_of_each_images_channel_energy_in_the_datasets_order(
    source: str, request: pytest.FixtureRequest
) -> None:
    cache = request.getfixturevalue("cache" if source == "birds" else "ragged")
    assert (len({tuple(cache.sizes[i]) for i in IMAGES}) > 10) == (source == "ragged")
    module = module_of(**ENERGY)
    expected = []
    for image in IMAGES:
        energy = phi_of(module, cache, int(image))[0].sum(0).double().numpy()
        expected.append(box(energy, 0.6, RESOLUTION))
    found = after_an_epoch(module, cache).boxes
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert len({tuple(row) for row in found.tolist()}) > len(IMAGES) / 2, "images differ"


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_boxes_of_the_rationale_are_those_of_its_mask(cache: DecodedCache, power: float) -> None:
    module = module_of(**{**ENERGY, "focus.source": "rationale", "rationale.mask_power": power})
    encoder, expected = make_encoder(module.config, module), []
    for image in IMAGES:
        mask = encoder.masks(MapOutput(phi_of(module, cache, int(image))))["rationale"][0].detach().double().numpy()
        expected.append(box(mask, 0.6, RESOLUTION))
    module.train()
    np.testing.assert_allclose(after_an_epoch(module, cache).boxes.numpy(), expected, atol=1e-6)
    assert len(set(expected)) > len(IMAGES) / 2


def test_masks_of_the_rationale_become_maps_of_the_images(cache: DecodedCache) -> None:
    module = module_of(**{"saliency.source": "rationale", "saliency.every_n_epochs": 1, "views.paste": 0.5})
    encoder = make_encoder(module.config, module)
    masks = torch.cat(
        [encoder.masks(MapOutput(phi_of(module, cache, int(image))))["rationale"] for image in IMAGES]
    ).detach()
    masks = masks / masks.amax((1, 2), keepdim=True)
    fine = F.interpolate(masks[:, None], size=(SIDE, SIDE), mode="bilinear", align_corners=False)[:, 0]
    module.train()
    maps = after_an_epoch(module, cache).maps
    assert maps.dtype == torch.uint8
    assert (maps.float() - 255 * fine).abs().max() < 1


def test_variances_of_the_projections_are_those_over_each_image(cache: DecodedCache) -> None:
    module = module_of(**KEEP_TWO)
    assert module.rationale is not None
    expected = np.zeros(6)
    for image in IMAGES:
        answers = module.rationale.branch.responses(phi_of(module, cache, int(image)))[0].detach().double().numpy()
        for k, one in enumerate(answers):
            mean = sum(one.flat) / one.size
            expected[k] += sum((v - mean) ** 2 for v in one.flat) / one.size / len(IMAGES)
    found = started(module, cache).variances(module)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
    assert np.ptp(expected) > 0.1 * expected.max()


def test_many_images_are_ranked_by_some_of_them(cache: DecodedCache) -> None:
    module = module_of(**KEEP_TWO)
    few = started(module, cache).variances(module, most=4)
    spread = IMAGES[[0, 8, 15, 23]]  # 23 / 3 = 7.67 apart
    torch.testing.assert_close(few, started(module, cache, spread).variances(module))


def test_where_the_branch_pools_its_twin_keeps_the_same_projections(cache: DecodedCache) -> None:
    module = module_of("lcr-dual-pooling", **KEEP_TWO)
    after_an_epoch(module, cache)
    assert module.rationale is not None
    kept = module.rationale.branch.kept
    assert kept.sum() == 2
    assert torch.equal(module.objective.key_pool.branch.kept, kept)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("method", ["lcr", "sam-ssl-bilinear", "byol-lcr"])
def test_a_look_leaves_everything_else_as_it_was(cache: DecodedCache, method: str, frozen: bool) -> None:
    """Statistics of norms, modes, gradients and whatever is drawn next."""
    settings = {"focus.source": "rationale", "focus.every_n_epochs": 1, "backbone.frozen_norm": frozen}
    module = module_of(method, **settings, **KEEP_TWO)
    module.train()
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms
    state = {name: value.clone() for name, value in module.state_dict().items()}
    modes = {name: child.training for name, child in module.named_modules()}
    torch.manual_seed(5)
    after_an_epoch(module, cache)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)
    assert {name: child.training for name, child in module.named_modules()} == modes
    changed = {name for name, value in module.state_dict().items() if not torch.equal(value, state[name])}
    assert {name.rpartition(".")[2] for name in changed} == {"kept"}
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(parameter.requires_grad for parameter in module.rationale.parameters())


def test_the_hook_applies_where_it_is_needed() -> None:
    def needed(**settings: Any) -> bool:
        return ObjectsHook.applies(build_config({"data": "x", **settings}))

    assert not needed()
    assert needed(**{"focus.source": "center"})
    assert needed(**ENERGY)
    assert needed(**{"saliency.source": "files"})
    assert needed(**{"rationale.keep": "rest"})
    assert needed(method="dilo")
    assert not needed(method="moco-v2")


# --- projections --------------------------------------------------------------------------------------------------


def chosen(variances: Tensor, keep: str, count: int = 3, seed: int = 0) -> list[int]:
    settings = {"rationale.projections": len(variances), "rationale.keep": keep, "rationale.keep_count": count}
    config = build_config({"data": "x", "seed": seed, "epochs": 80, **settings, "rationale.keep_from": 1})
    return choose_projections(variances, config)


def test_the_most_varied_are_kept_or_as_many_of_the_others() -> None:
    variances = torch.rand(12, generator=torch.Generator().manual_seed(0))
    top = chosen(variances, "top")
    assert top == sorted(set(top))
    assert len(top) == 3
    assert min(variances[top]) > max(variances[k] for k in range(12) if k not in top)
    draws = [chosen(variances, "rest", seed=seed) for seed in range(20)]
    for rest in draws:
        assert rest == sorted(set(rest))
        assert len(rest) == 3
        assert not set(rest) & set(top)
    assert len({tuple(rest) for rest in draws}) > 5, "another seed, others"
    assert {k for rest in draws for k in rest} == set(range(12)) - set(top)
    assert chosen(variances, "rest", seed=7) == chosen(variances, "rest", seed=7)
    assert chosen(variances, "top", seed=7) == top


def test_of_equals_the_first_are_kept_and_all_that_is_left_if_just_enough() -> None:
    variances = torch.tensor([1.0, 5.0, 5.0, 5.0, 0.0, 5.0])
    assert chosen(variances, "top") == [1, 2, 3]
    assert chosen(variances, "rest") == [0, 4, 5]
    assert chosen(variances, "top", count=6) == list(range(6))


# --- what needs no encoder ----------------------------------------------------------------------------------------


def test_the_center_is_known_from_the_start_and_stays(cache: DecodedCache) -> None:
    module = module_of(epochs=3, **{"focus.source": "center"})
    for boxes, _, _ in seen_in_a_run(module, cache):
        assert torch.equal(boxes, torch.tensor(CENTER).repeat(len(IMAGES), 1))


def drawn_mask(birds: Path, cache: DecodedCache, image: int) -> np.ndarray:
    """The bird's own picture of where it is, as large as a map."""
    path = cache.source.paths[image]
    mask = Image.open(birds / "masks" / path).convert("L").point(lambda v: 255 * (v > 0))
    return np.asarray(mask.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float64) / 255


@pytest.mark.parametrize("given", [False, True], ids=["of the data", "a folder"])
def test_saliency_from_files_is_the_drawn_birds(birds: Path, cache: DecodedCache, given: bool) -> None:
    settings = {"saliency.source": "files", "focus.source": "saliency", "views.paste": 0.5}
    if given:
        settings["saliency.folder"] = str(birds / "masks")
    module = module_of(**settings)
    hook = started(module, cache)
    for place, image in enumerate(IMAGES):
        expected = drawn_mask(birds, cache, int(image))
        found = hook.maps[place].double().numpy() / 255
        assert np.abs(found - expected).mean() < 0.02
        assert 0.02 < expected.mean() < 0.9
        top, left, bottom, right = (hook.boxes[place] * SIDE).tolist()
        inside = np.argwhere(expected > 0.5)
        assert ((top, left) <= inside.min(0) + 1).all()
        assert ((bottom, right) >= inside.max(0)).all()
        assert (bottom - top) * (right - left) < 3 * (np.ptp(inside, axis=0) + 1).prod()
    assert len({one.numpy().tobytes() for one in hook.maps}) == len(IMAGES)


def test_saliency_from_boxes_is_what_they_cover(cache: DecodedCache) -> None:
    """Of images of different shapes, with boxes that reach past their edges."""
    generator = np.random.default_rng(0)
    corners, lengths = generator.uniform(-5, 30, (len(cache), 2)), generator.uniform(3, 60, (len(cache), 2))
    boxed = replace(cache, source=replace(cache.source, boxes=np.hstack([corners, lengths]).astype(np.float32)))
    hook = started(module_of(**{"saliency.source": "boxes", "views.paste": 0.5}), boxed)
    for place, image in enumerate(IMAGES):
        height, width = cache.sizes[image]
        x, y, across, down = boxed.box(int(image))
        square = (x * SIDE / width, y * SIDE / height, across * SIDE / width, down * SIDE / height)
        expected = 255 * share_reference(square, SIDE, SIDE, SIDE)
        np.testing.assert_allclose(hook.maps[place].numpy(), expected, atol=0.51)
    with pytest.raises(FineSightError, match="has no boxes; let the objects be detected"):
        started(module_of(**{"saliency.source": "boxes", "views.paste": 0.5}), cache)


def test_maps_of_the_detector_are_those_of_the_trained_images(cache: DecodedCache, tmp_path: Path) -> None:
    module = module_of(**{"saliency.source": "detector", "views.paste": 0.5})
    hook = started(module, cache, cache_dir=tmp_path)
    expected = detect_objects(cache, cache_dir=tmp_path, progress=False)[IMAGES]
    assert np.array_equal(hook.maps.numpy(), expected)
    assert len({one.tobytes() for one in expected}) == len(IMAGES)


def test_maps_that_can_be_had_again_are_not_part_of_a_checkpoint() -> None:
    def saved(source: str) -> set[str]:
        module = module_of(**{"saliency.source": source, "focus.source": "saliency"})
        assert not any("hook" in name for name in (*module.state_dict(), *dict(module.named_buffers())))
        return set(module.hook.rows())

    assert saved("detector") == saved("files") == set()
    assert saved("rationale") == {"maps", "boxes"}


def test_before_its_first_look_the_rationale_pastes_nothing(cache: DecodedCache) -> None:
    """Its maps are empty, and an object that is nowhere is not pasted."""
    pasted = module_of(**{"saliency.source": "rationale", "views.paste": 1.0, "saliency.every_n_epochs": 1})
    hook = started(pasted, cache)
    hook.maps.zero_()
    batch = next(iter(Batches(cache, IMAGES, batch_size=BATCH, epochs=1, seed=0, hook=hook)))
    kind, generator = pasted.kinds[0], torch.Generator()
    scene = hook.scene(batch)
    plain = scene.view(kind.model_copy(update={"paste": 0.0}), generator.manual_seed(0))
    assert torch.equal(scene.view(kind, generator.manual_seed(0)), plain)
    hook.on_epoch_start(pasted, 1)
    assert not torch.equal(hook.scene(batch).view(kind, generator.manual_seed(0)), plain)


# --- several processes --------------------------------------------------------------------------------------------


def looked(places: tuple[Path, Path], rank: int) -> dict[str, Tensor]:
    """What a rank knows after a look for everything there is to look for; 23 images cannot be shared evenly."""
    torch.set_num_threads(1)
    cache = opened(*places)
    found = {}
    for source in ("energy", "rationale"):
        module = module_of(**{**ENERGY, "focus.source": source, "saliency.source": "rationale"})
        hook = after_an_epoch(module, cache)
        found |= {f"{source} boxes": hook.boxes, f"{source} maps": hook.maps}
    odd = module_of(**ENERGY, **KEEP_TWO)
    odd.hook.boxes = odd.hook.boxes[:-1]
    hook = after_an_epoch(odd, cache, IMAGES[:-1])
    assert odd.rationale is not None
    return found | {"odd boxes": hook.boxes, "kept": odd.rationale.branch.kept, "variances": hook.variances(odd)}


def test_two_processes_see_what_one_sees(places: tuple[Path, Path], tmp_path: Path, cache: DecodedCache) -> None:
    alone = looked(places, 0)
    for rank in in_ranks(partial(looked, places), tmp_path):
        assert rank.keys() == alone.keys()
        for name in ("energy boxes", "rationale boxes", "odd boxes", "kept"):
            assert torch.equal(rank[name], alone[name]), name
        for name in ("energy maps", "rationale maps"):
            assert (rank[name].int() - alone[name].int()).abs().max() <= 1, name
        torch.testing.assert_close(rank["variances"], alone["variances"], rtol=1e-5, atol=0)


# --- settings that cannot be met ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"views.paste": 0.5}, ["views.paste", "where objects are", "saliency.source"]),
        ({"views.second_paste": 0.5}, ["views.paste", "saliency.source"]),
        ({"method": "cvsa", "saliency.source": "none"}, ["method 'cvsa'", "saliency.source"]),
        ({"method": "dilo", "saliency.source": "none"}, ["views.paste", "saliency.source"]),
        ({"focus.source": "saliency"}, ["focus.source 'saliency'", "set saliency.source"]),
        ({"method": "moco-v2", "focus.source": "rationale"}, ["focus.source 'rationale'", "rationale"]),
        ({"method": "moco-v2", "saliency.source": "rationale"}, ["saliency.source 'rationale'", "rationale"]),
        ({"rationale": False, "focus.source": "rationale"}, ["focus.source 'rationale'"]),
        ({"method": "moco-v2", "train_pooling": "rationale"}, ["train_pooling 'rationale'", "rationale"]),
        ({"method": "moco-v2", "train_pooling": "bilinear"}, ["train_pooling 'bilinear'", "rationale"]),
        ({"rationale.keep": "top", "epochs": 60}, ["epoch 60 of 60", "never"]),
        ({"rationale.keep": "rest", "rationale.keep_from": 7, "epochs": 5}, ["epoch 7 of 5", "never"]),
        ({"rationale.keep": "top", "rationale.projections": 4}, ["keep 'top' 8 needs 8 projections, not 4"]),
        ({"rationale.keep": "rest", "rationale.projections": 15}, ["keep 'rest' 8 needs 16 projections, not 15"]),
        ({"rationale.keep": "top", "rationale.form": "mlp"}, ["mlp", "no projections to keep"]),
        ({"views.backdrops": (0, 0, 0)}, ["backdrops"]),
    ],
)
def test_what_cannot_be_met_is_refused_in_words(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FineSightError) as error:
        build_config({"data": "x", **settings})
    for word in words:
        assert word in str(error.value)
    assert len(str(error.value)) < 250, "what is wrong, not the whole configuration"


def test_what_can_be_met_is_taken() -> None:
    for settings in (
        {"rationale.keep": "top", "epochs": 61},
        {"rationale.keep": "rest", "rationale.projections": 16},
        {"method": "moco-v2", "rationale.variant": "finesight", "focus.source": "rationale"},
        {"method": "cvsa", "saliency.source": "files"},
        {"views.paste": 0.5, "saliency.source": "rationale"},
    ):
        build_config({"data": "x", **settings})


# --- earlier versions ---------------------------------------------------------------------------------------------


def test_a_state_of_an_earlier_version_is_loaded(cache: DecodedCache) -> None:
    """It has boxes and maps beside the objective, and other names in the optimizer's groups."""
    settings = {**ENERGY, "focus.source": "saliency", "saliency.source": "rationale", "saliency.every_n_epochs": 1}
    module = module_of(**settings)
    hook = after_an_epoch(module, cache)
    assert hook.maps.any()
    for prefix in ("", "hook."):  # of two earlier versions
        fresh = module_of(**settings)
        assert not torch.equal(fresh.hook.boxes, hook.boxes)
        fresh.load_state_dict({**module.state_dict(), f"{prefix}boxes": hook.boxes, f"{prefix}maps": hook.maps})
        assert torch.equal(fresh.hook.boxes, hook.boxes)
        assert torch.equal(fresh.hook.maps, hook.maps)
    names = {"optimizer": "rule", "freeze_epochs": "hold_epochs", "bias_lr_ratio": "bias_share"}
    names |= {"clip_grad_norm_per_tensor": "clip_each"}
    state = module.optimizer.state_dict()
    state["param_groups"] = [{names.get(k, k): v for k, v in group.items()} for group in state["param_groups"]]
    fresh.optimizer.load_state_dict(state)
    assert fresh.optimizer.state_dict() == module.optimizer.state_dict()
