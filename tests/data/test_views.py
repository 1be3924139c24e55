"""Every operation against torchvision's at the same parameters, and every parameter's distribution."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
import torch
import torchvision.transforms.functional as TF
from pydantic import ValidationError
from scipy import stats
from torch import Tensor
from torchvision.transforms import ColorJitter, InterpolationMode, RandomResizedCrop

from finesight.data import color
from finesight.data.crop import crop_resize_flip, crop_together
from finesight.data.views import ViewConfig, ViewParams, apply_together, apply_views, sample_params
from finesight.errors import FineSightError
from finesight.methods.base import METHODS
from finesight.training.config import build_config
from small import seeded, torch_threads

TV_JITTER = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
OUR_JITTER = (color.adjust_brightness, color.adjust_contrast, color.adjust_saturation, color.adjust_hue)


Apply = Callable[[ViewConfig, Tensor, ViewParams], Tensor]


def random_views(config: ViewConfig, canvas: Tensor, sizes: Tensor, generator: torch.Generator) -> Tensor:
    return apply_views(config, canvas, sample_params(config, sizes, generator))


def close(found: Tensor, expected: Tensor, atol: float = 2e-6) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.fixture
def images() -> Tensor:
    """Noise, and what breaks color code: gray, black, white, pure, barely tinted, two equal channels."""
    noise = torch.rand(6, 3, 24, 20, generator=seeded())
    noise[0] = noise[0, :1]
    noise[1] = (noise[1] > 0.5).float()  # all eight corners of the RGB cube
    noise[2, 1] = noise[2, 0]
    noise[3, 2] = noise[3, 1]
    noise[4] = 0.5 + (noise[4] - 0.5) * 1e-6
    black, white = torch.zeros(1, 3, 24, 20), torch.ones(1, 3, 24, 20)
    levels = torch.randint(0, 256, (4, 3, 24, 20), generator=seeded(1)) / 255
    return torch.cat([noise, black, white, levels])


def ragged_canvas(sizes: list[tuple[int, int]], padding: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    height, width = (max(side) for side in zip(*sizes, strict=True))
    canvas = torch.full((len(sizes), 3, height + 2, width + 3), padding, dtype=torch.uint8)
    noise = torch.randint(0, 256, canvas.shape, generator=seeded(seed), dtype=torch.uint8)
    for i, (h, w) in enumerate(sizes):
        canvas[i, :, :h, :w] = noise[i, :, :h, :w]
    return canvas, torch.tensor(sizes)


def torchvision_view(config: ViewConfig, image: Tensor, params: ViewParams, i: int) -> Tensor:
    """What a torchvision pipeline makes of one unpadded uint8 image, one operation after the other."""
    size = [config.resolution, config.resolution]
    view = TF.resized_crop(image / 255, *params.crop[i].tolist(), size, InterpolationMode.BILINEAR, antialias=False)
    if params.jitter[i]:
        for kind in params.order[i].tolist():
            view = TV_JITTER[kind](view, params.factors[i, kind].item())
    if params.gray[i]:
        view = TF.rgb_to_grayscale(view, 3)
    if params.blur[i]:
        view = TF.gaussian_blur(view, [config.blur_kernel] * 2, [params.sigma[i].item()] * 2)
    if params.flip[i]:
        view = TF.hflip(view)
    if params.solarize[i]:
        view = TF.solarize(view, config.solarize_threshold)
    return TF.normalize(view, list(config.mean), list(config.std))


# --- operations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", range(4), ids=["brightness", "contrast", "saturation", "hue"])
def test_jitter_operations_equal_torchvision(images: Tensor, kind: int) -> None:
    grid = torch.tensor([-0.5, -0.31, -0.1, -1e-4, 0.0, 0.05, 1 / 6, 1 / 3, 0.5])
    for factor in grid if kind == 3 else (grid + 0.5) * 2:  # factors 0 to 2
        found = OUR_JITTER[kind](images, factor.expand(len(images)))
        close(found, TV_JITTER[kind](images, factor.item()))


def test_hue_keeps_gray_pixels_and_full_turns(images: Tensor) -> None:
    gray = images[:, :1].expand_as(images)
    assert torch.equal(color.adjust_hue(gray, torch.full((len(images),), 0.37)), gray)
    third = torch.full((len(images),), 1 / 3)
    close(color.adjust_hue(images, third), images.roll(1, dims=1))  # a third of a turn: red becomes green


def test_gray_solarize_normalize_equal_torchvision(images: Tensor) -> None:
    close(color.to_gray(images), TF.rgb_to_grayscale(images, 3))
    for threshold in (0.0, 0.5, 128 / 255, 1.0):
        assert torch.equal(color.solarize(images, threshold), TF.solarize(images, threshold))
    mean, std = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    assert torch.equal(color.normalize(images, mean, std), TF.normalize(images, mean, std))


@pytest.mark.parametrize("kernel", [1, 3, 7, 13, 39])
def test_blur_equals_torchvision(images: Tensor, kernel: int) -> None:
    """39 is the largest kernel that can be reflected in 20 columns."""
    sigma = torch.logspace(-2, 1, len(images))  # from 0.01 (nothing) to 10 pixels
    found = color.gaussian_blur(images, sigma, kernel)
    for image, s, result in zip(images, sigma.tolist(), found, strict=True):
        close(result, TF.gaussian_blur(image, [kernel, kernel], [s, s]))


def test_blur_kernel_follows_the_resolution() -> None:
    assert ViewConfig(resolution=224).blur_kernel == 13
    assert ViewConfig(resolution=112).blur_kernel == 7
    tiny = ViewConfig(resolution=4, blur_resolution=4, blur_sigma=(5, 9), blur=1)
    assert tiny.blur_kernel == 7
    canvas, sizes = ragged_canvas([(9, 9)])
    assert random_views(tiny, canvas, sizes, seeded()).isfinite().all()


# --- crop, resize, flip -----------------------------------------------------------------------------------

POSITION = 1e-5  # of a pixel: how exact float32 is near 120, where colors may change from 0 to 1 within a pixel
SIZES = [(40, 40), (40, 61), (57, 40), (40, 120), (1, 90), (40, 1)]
CROPS = [  # image, (top, left, height, width)
    (0, (0, 0, 40, 40)),
    (0, (3, 5, 16, 16)),
    (1, (0, 0, 7, 9)),
    (1, (30, 50, 10, 11)),
    (1, (39, 0, 1, 61)),
    (2, (0, 39, 57, 1)),
    (2, (56, 39, 1, 1)),
    (3, (13, 100, 20, 20)),
    (3, (0, 0, 40, 120)),
    (4, (0, 17, 1, 73)),
    (5, (8, 0, 32, 1)),
]


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("resolution", [2, 16, 17, 64])
def test_crop_resize_flip_equals_torchvision(resolution: int, flipped: bool) -> None:
    """Crops at every border, one pixel high or wide, smaller and larger than the view; padding is white."""
    canvas, sizes = ragged_canvas(SIZES, padding=255)
    which = [image for image, _ in CROPS]
    crop = torch.tensor([box for _, box in CROPS])
    flip = torch.full((len(CROPS),), flipped)
    found = crop_resize_flip(canvas[which], crop, flip, resolution)
    close(crop_together(canvas[which], crop, flip, resolution), found, POSITION)  # as on a GPU
    for result, (image, box) in zip(found, CROPS, strict=True):
        h, w = sizes[image].tolist()
        pixels = canvas[image, :, :h, :w] / 255
        expected = TF.resized_crop(pixels, *box, [resolution] * 2, InterpolationMode.BILINEAR, antialias=False)
        close(result, TF.hflip(expected) if flipped else expected, POSITION)
        tight = canvas[image : image + 1, :, :h, :w]
        alone = crop_resize_flip(tight, torch.tensor([box]), torch.tensor([flipped]), resolution)
        assert torch.equal(alone[0], result)


def test_neither_padding_nor_canvas_size_reaches_a_view() -> None:
    sizes = [(40, 40), (40, 61), (57, 40), (40, 120)] * 8
    config = ViewConfig(resolution=24, scale=(0.5, 1.0))
    black, size = ragged_canvas(sizes, padding=0)
    white, _ = ragged_canvas(sizes, padding=255)
    params = sample_params(config, size, seeded())
    expected = apply_views(config, black, params)
    assert torch.equal(apply_views(config, white, params), expected)
    wider = torch.nn.functional.pad(black, (0, 37, 0, 11), value=99)
    assert torch.equal(apply_views(config, wider, params), expected)
    assert torch.equal(apply_views(config, black.contiguous(memory_format=torch.channels_last), params), expected)


# --- the whole view ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("apply_all", [apply_views, apply_together], ids=["cpu", "as on a GPU"])
def test_jitter_in_all_24_orders(apply_all: Apply) -> None:
    orders = torch.tensor(list(permutations(range(4))))
    config = ViewConfig(resolution=12, jitter=1, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.4)
    canvas, sizes = ragged_canvas([(12, 12)] * 24)
    off = torch.zeros(24, dtype=torch.bool)
    params = replace(sample_params(config, sizes, seeded()), order=orders, gray=off, blur=off)
    found = apply_all(config, canvas, params)
    for i in range(24):
        close(found[i], torchvision_view(config, canvas[i, :, :12, :12], params, i), atol=2e-5)
    assert params.jitter.all()


@pytest.mark.parametrize("apply_all", [apply_views, apply_together], ids=["cpu", "as on a GPU"])
@pytest.mark.parametrize("resolution", [16, 48])
def test_pipeline_equals_torchvision_image_by_image(resolution: int, apply_all: Apply) -> None:
    config = ViewConfig(resolution=resolution, blur_resolution=32, solarize=0.3, gray=0.3)
    canvas, sizes = ragged_canvas([(40, 40), (40, 61), (57, 40), (40, 120)] * 16, padding=255)
    params = sample_params(config, sizes, seeded(3))
    for drawn in (params.flip, params.jitter, params.gray, params.blur, params.solarize):
        assert 0 < drawn.sum() < len(params)
    found = apply_all(config, canvas, params)
    assert found.dtype == torch.float32
    for i, (h, w) in enumerate(sizes.tolist()):
        close(found[i], torchvision_view(config, canvas[i, :, :h, :w], params, i), atol=5e-5)


def test_zero_strength_means_no_change() -> None:
    """torchvision leaves an operation of strength 0 out; so the view is the plain crop."""
    config = ViewConfig(resolution=16, jitter=1, brightness=0, contrast=0, saturation=0, hue=0, gray=0, blur=0, flip=0)
    canvas, sizes = ragged_canvas([(40, 61)] * 4)
    params = sample_params(config, sizes, seeded())
    plain = crop_resize_flip(canvas, params.crop, params.flip, 16)
    close(apply_views(config, canvas, params), color.normalize(plain, config.mean, config.std))


def test_same_seed_same_views_and_nothing_else_is_touched() -> None:
    config = ViewConfig(resolution=16)
    canvas, sizes = ragged_canvas([(40, 61)] * 6)
    before, state = canvas.clone(), torch.get_rng_state()
    once = random_views(config, canvas, sizes, seeded(7))
    assert torch.equal(random_views(config, canvas, sizes, seeded(7)), once)
    assert not torch.equal(random_views(config, canvas, sizes, seeded(8)), once)
    generator = seeded(7)
    random_views(config, canvas, sizes, generator)
    assert not torch.equal(random_views(config, canvas, sizes, generator), once)  # two views of a batch differ
    assert torch.equal(canvas, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert random_views(config, canvas[:0], sizes[:0], seeded()).shape == (0, 3, 16, 16)


def test_a_rank_gets_its_share_of_the_joined_batch() -> None:
    config = ViewConfig(resolution=16, solarize=0.5)
    canvas, sizes = ragged_canvas([(40, 61), (57, 40), (40, 120)] * 4)
    params = sample_params(config, sizes, seeded())
    joined = apply_views(config, canvas, params)
    for rank in range(3):
        share = slice(rank * 4, rank * 4 + 4)
        assert torch.equal(apply_views(config, canvas[share], params[share]), joined[share])
    shuffled = torch.randperm(12, generator=seeded())
    assert torch.equal(apply_views(config, canvas[shuffled], params[shuffled]), joined[shuffled])
    assert len(params[2:5]) == 3


@pytest.mark.parametrize("resolution", [16, 224])  # threads are used from 224 on
def test_the_number_of_threads_changes_no_bit(resolution: int) -> None:
    config = ViewConfig(resolution=resolution, solarize=0.2)
    canvas, sizes = ragged_canvas([(130, 190), (170, 128), (140, 150)] * 4)
    params = sample_params(config, sizes, seeded())
    with torch_threads(1):
        expected = apply_views(config, canvas, params)
    for threads in (2, 3, 16):
        with torch_threads(threads):
            assert torch.equal(apply_views(config, canvas, params), expected)
            assert torch.get_num_threads() == threads


def test_autocast_does_not_change_a_view() -> None:
    canvas, sizes = ragged_canvas([(40, 61)] * 8)
    config = ViewConfig(resolution=16)
    expected = random_views(config, canvas, sizes, seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = random_views(config, canvas, sizes, seeded())
    assert torch.equal(found, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_equals_cpu() -> None:
    canvas, sizes = ragged_canvas([(40, 61), (57, 40)] * 16)
    config = ViewConfig(resolution=32, solarize=0.3)
    params = sample_params(config, sizes, seeded())
    found = apply_views(config, canvas.cuda(), params).cpu()
    close(found, apply_views(config, canvas, params), atol=5e-5)


# --- distributions ----------------------------------------------------------------------------------------

DRAWS = 4000


def derived(crop: Tensor) -> list[Tensor]:
    """Return the four columns of crops, their areas, ratios, bottoms and rights."""
    top, left, height, width = crop.unbind(1)
    return [top, left, height, width, height * width, height / width, top + height, left + width]


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((128, 128), (0.2, 1.0), (3 / 4, 4 / 3)),
        ((128, 192), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((200, 128), (0.5, 0.9), (0.5, 1.5)),
        ((128, 384), (0.3, 1.0), (3 / 4, 4 / 3)),  # the fallback is common: most tries are too high
        ((6, 5), (0.01, 1.0), (3 / 4, 4 / 3)),  # rounding to zero pixels is common
    ],
)
def test_crops_are_distributed_as_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    config = ViewConfig(scale=scale, ratio=ratio)
    found = sample_params(config, torch.tensor([size] * DRAWS), seeded()).crop
    blank = torch.empty(3, *size)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        expected = torch.tensor([RandomResizedCrop.get_params(blank, list(scale), list(ratio)) for _ in range(DRAWS)])
    assert (found[:, :2] >= 0).all()
    assert (found[:, 2:] >= 1).all()
    assert (found[:, :2] + found[:, 2:] <= torch.tensor(size)).all()
    for ours, theirs in zip(derived(found), derived(expected), strict=True):
        assert stats.ks_2samp(ours.double().numpy(), theirs.double().numpy()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("size", "scale"), [((20, 200), (1, 1)), ((200, 21), (1, 1)), ((1, 50), (0.9, 1)), ((33, 2), (0.9, 1))]
)
def test_fallback_crop_equals_torchvisions(size: tuple[int, int], scale: tuple[float, float]) -> None:
    """Nothing fits, so both must give the same centered crop."""
    config = ViewConfig(scale=scale)
    found = sample_params(config, torch.tensor([size] * 5), seeded()).crop
    expected = RandomResizedCrop.get_params(torch.empty(3, *size), list(scale), list(config.ratio))
    assert found.tolist() == [list(expected)] * 5


@pytest.mark.parametrize("strengths", [(0.4, 0.4, 0.4, 0.1), (0.8, 1.5, 0.2, 0.5)])
def test_jitter_is_distributed_as_torchvisions(strengths: tuple[float, float, float, float]) -> None:
    names = ("brightness", "contrast", "saturation", "hue")
    config = ViewConfig(**dict(zip(names, strengths, strict=True)))
    params = sample_params(config, torch.tensor([[9, 9]] * DRAWS), seeded())
    jitter = ColorJitter(*strengths)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        drawn = [
            jitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue) for _ in range(DRAWS)
        ]
    factors = torch.tensor([factors for _, *factors in drawn])
    for kind in range(4):
        assert stats.ks_2samp(params.factors[:, kind].double().numpy(), factors[:, kind].double().numpy()).pvalue > 1e-3
    codes = torch.tensor([1000, 100, 10, 1])
    counts = (params.order @ codes).unique(return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_chances_and_sigma() -> None:
    config = ViewConfig(resolution=112, flip=0.3, jitter=0.8, gray=0.2, blur=0.6, solarize=0.1)
    params = sample_params(config, torch.tensor([[9, 9]] * DRAWS), seeded())
    for name in ("flip", "jitter", "gray", "blur", "solarize"):
        happened, chance = int(getattr(params, name).sum()), getattr(config, name)
        assert stats.binomtest(happened, DRAWS, chance).pvalue > 1e-3, name
    # σ is uniform between 0.1 and 2 pixels at 224, so half of that at 112
    assert stats.kstest(params.sigma.numpy(), stats.uniform(0.05, 0.95).cdf).pvalue > 1e-3


def test_parameters_are_independent_of_each_other() -> None:
    params = sample_params(ViewConfig(gray=0.5), torch.tensor([[90, 120]] * DRAWS), seeded())
    chances = (params.flip, params.jitter, params.gray, params.blur)
    columns = [*params.crop[:, 2:3].T, *params.factors.T, params.sigma, *chances]
    correlation = torch.corrcoef(torch.stack([column.double() for column in columns]))
    assert (correlation - torch.eye(len(columns))).abs().max() < 5 / DRAWS**0.5
    neighbors = torch.corrcoef(torch.stack([params.sigma[1:], params.sigma[:-1]]))[0, 1]
    assert neighbors.abs() < 5 / DRAWS**0.5


# --- the views of one image -------------------------------------------------------------------------------


def changed(kind: ViewConfig, plain: ViewConfig) -> dict[str, object]:
    """The settings in which two kinds of view differ."""
    ours, theirs = kind.model_dump(), plain.model_dump()
    return {name: value for name, value in ours.items() if value != theirs[name]}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({}, {}),
        ({"second_blur": 0.1}, {"blur": 0.1}),
        ({"second_blur": 0.0}, {"blur": 0.0}),
        ({"second_solarize": 0.2}, {"solarize": 0.2}),
        ({"second_blur": 0.1, "second_solarize": 0.2}, {"blur": 0.1, "solarize": 0.2}),
        ({"solarize": 0.3, "second_solarize": 0.0}, {"solarize": 0.0}),
    ],
    ids=str,
)
def test_the_second_view_differs_in_what_is_set_for_it(second: dict[str, float], expected: dict[str, float]) -> None:
    first, other = ViewConfig(resolution=48, blur=1.0, **second).kinds()
    assert first == ViewConfig(resolution=48, blur=1.0, solarize=second.get("solarize", 0.0))
    assert changed(other, first) == expected


def test_what_the_second_view_is_changes_no_other() -> None:
    canvas, sizes = ragged_canvas([(40, 61), (57, 40)] * 16)
    plain = ViewConfig(resolution=16, blur=1.0, local_crops=1, local_blur=0.5)
    other = plain.model_copy(update={"second_blur": 0.0, "second_solarize": 1.0})

    def drawn(config: ViewConfig) -> list[ViewParams]:
        generator = seeded(5)
        return [sample_params(kind, sizes, generator) for kind in config.kinds()]

    before, after = drawn(plain), drawn(other)
    found = [apply_views(kind, canvas, params) for kind, params in zip(other.kinds(), after, strict=True)]
    expected = [apply_views(kind, canvas, params) for kind, params in zip(plain.kinds(), before, strict=True)]
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[2], expected[2])
    assert not any(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
    assert before[1].blur.all()
    assert not after[1].blur.any()
    assert after[1].solarize.all()
    assert torch.equal(before[1].crop, after[1].crop)


@pytest.mark.parametrize("count", [0, 1, 8])
def test_local_crops_follow_the_two_large_views(count: int) -> None:
    own = {"local_scale": (0.1, 0.3), "local_blur": 0.5}
    first, second, *local = ViewConfig(blur=1.0, second_blur=0.1, local_crops=count, **own).kinds()
    assert (first.resolution, first.scale, first.blur) == (224, (0.2, 1.0), 1.0)
    assert changed(second, first) == {"blur": 0.1}
    assert [changed(kind, first) for kind in local] == [{"resolution": 96, "scale": (0.1, 0.3), "blur": 0.5}] * count


def test_local_crops_are_small_parts_and_blurred_as_the_first_view_unless_told() -> None:
    first, second, local = ViewConfig(resolution=32, blur=0.7, second_blur=0.1, local_crops=1).kinds()
    assert (first.blur, second.blur, local.blur) == (0.7, 0.1, 0.7)
    assert (local.scale, local.resolution) == ((0.05, 0.14), 14), "three sevenths, as 96 of 224 px"
    params = sample_params(local, torch.tensor([[200, 200]] * 500), seeded())
    share = params.crop[:, 2:].prod(1) / 200**2
    assert 0.045 < share.min() < 0.06
    assert 0.13 < share.max() < 0.145


@pytest.mark.parametrize("side", [33, 224])
def test_local_crops_larger_than_the_views_are_refused(side: int) -> None:
    words = f"local crops of {side} px are larger than the views of 32 px"
    with pytest.raises(ValidationError, match=words):
        ViewConfig(resolution=32, local_crops=1, local_resolution=side)
    with pytest.raises(FineSightError, match=words):
        build_config({"data": "-", "views.resolution": 32, "views.local_crops": 1, "views.local_resolution": side})
    assert len(ViewConfig(resolution=32, local_resolution=side).kinds()) == 2, "none are asked for"
    ViewConfig(resolution=side, local_crops=1, local_resolution=side)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.objective])
def test_views_of_every_method_have_the_size_of_their_kind(method: str) -> None:
    config = build_config({"data": "-", "method": method, "views.resolution": 28}).views
    canvas, sizes = ragged_canvas([(40, 61), (57, 40), (40, 40)])
    generator = seeded()
    shapes = []
    for kind in config.kinds():
        view = apply_views(kind, canvas, sample_params(kind, sizes, generator))
        assert view.isfinite().all()
        assert view.dtype == torch.float32
        shapes.append(tuple(view.shape))
    assert shapes == [(3, 3, 28, 28)] * 2 + [(3, 3, 12, 12)] * (8 if method == "dino" else 0)


# --- configuration ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"flip": 1.1},
        {"scale": (0, 1)},
        {"scale": (0.9, 0.2)},
        {"scale": (0.5, 2)},
        {"ratio": (2, 1)},
        {"hue": 0.6},
        {"contrast": -0.1},
        {"blur_sigma": (0, 1)},
        {"std": (1, 0, 1)},
        {"resolution": 1},
        {"grayness": 0.2},
    ],
    ids=str,
)
def test_wrong_settings_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ViewConfig.model_validate(wrong)
