import math
import re
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finesight.errors import FineSightError
from finesight.evaluation import linear
from finesight.evaluation.fractions import nested_fractions
from finesight.evaluation.probe_fits import class_places
from finesight.evaluation.softmax import (
    Rows,
    fit,
    fit_products,
    inner_products,
    leading_directions,
    predict,
    weights_of,
)
from finesight.features.wide import WideRows
from reference.linear import probe, sgd


def linear_probe(*data: Any, **options: Any) -> dict[str, dict[str, float]]:
    """The scores alone."""
    return {percent: result.summary() for percent, result in linear.linear_probe(*data, **options).items()}


QUICK = {"lrs": (1.0, 10.0, 100.0), "epochs": (5, 15)}


def blobs(
    seed: int, *, images: int = 20, classes: int = 6, dim: int = 12, noise: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian classes around the same centers whatever the seed."""
    centers = np.random.default_rng(99).standard_normal((classes, dim))
    labels = np.repeat(np.arange(classes), images)
    draw = np.random.default_rng(seed).standard_normal((len(labels), dim))
    return (centers[labels] + noise * draw).astype(np.float32), labels


# --- label fractions


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-1, 5), max_size=60),
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_fractions_are_nested_and_rounded_up_per_class(labels: list[int], percents: list[int], seed: int) -> None:
    parts = nested_fractions(np.array(labels, dtype=np.int64), [p / 100 for p in percents], seed)
    for percent in percents:
        part = parts[percent / 100]
        assert part.tolist() == sorted(set(part.tolist()))
        drawn = [labels[i] for i in part]
        assert -1 not in drawn
        for label in range(6):
            assert drawn.count(label) == -(-labels.count(label) * percent // 100)  # exact ceiling
    sets = [set(parts[p / 100].tolist()) for p in sorted(percents)]
    assert all(small <= large for small, large in pairwise(sets))


def test_fractions_of_cub_have_the_known_sizes() -> None:
    """CUB train has 29 or 30 images a class, 5994 in all; the published list for 50 % has 3000."""
    labels = np.repeat(np.arange(200), [29] * 6 + [30] * 194)
    assert [len(part) for part in nested_fractions(labels).values()] == [5994, 3000, 1200]


def test_fractions_depend_on_seed_and_class_alone() -> None:
    labels = np.repeat([0, 1, 2], 30)
    first = nested_fractions(labels, [0.3], seed=1)[0.3]
    assert first.tolist() == nested_fractions(labels, [0.3], seed=1)[0.3].tolist()
    assert first.tolist() != nested_fractions(labels, [0.3], seed=2)[0.3].tolist()
    without = nested_fractions(np.where(labels == 1, -1, labels), [0.3], seed=1)[0.3]
    assert without.tolist() == [i for i in first if labels[i] != 1]
    drawn = [set(first[labels[first] == c] % 30) for c in range(3)]
    assert drawn[0] != drawn[1]  # not the same places in every class


def test_validation_takes_a_fifth_of_each_class_but_never_all_of_it() -> None:
    sizes = [1, 2, 3, 5, 10, 30]
    labels = np.repeat(np.arange(6), sizes)
    folds = linear.validation_folds(labels, 0)
    counts = [np.bincount(labels[held], minlength=6).tolist() for held in folds]
    assert counts[0] == [0, 1, 1, 1, 2, 6]
    assert np.sum(counts, axis=0).tolist() == [0, 2, 3, 5, 10, 30], "five folds of so few images hold each out once"
    assert len(np.unique(np.concatenate(folds))) == sum(len(held) for held in folds) == 50


def test_as_many_folds_as_it_takes_to_choose_by() -> None:
    for images, count in ((10, 5), (30, 4), (60, 2), (100, 1), (500, 1)):  # of 50 classes
        folds = linear.validation_folds(np.repeat(np.arange(50), images), 0)
        assert len(folds) == count
        assert len(folds) == 5 or sum(len(held) for held in folds) >= linear.ENOUGH
    assert linear.validation_folds(np.arange(50), 0) == [], "nothing to hold out"


# --- training


@pytest.mark.parametrize("images", [40, 300])  # one batch; two of equal size
def test_sgd_matches_the_loop_reference(images: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((images, 5)), rng.integers(0, 4, images)
    lrs, epochs = [0.1, 2.0, 30.0], 3
    generator = torch.Generator().manual_seed(7)
    orders = [torch.randperm(images, generator=generator).tolist() for _ in range(epochs)]
    half = images // 2
    batches = [[order] if images <= 256 else [order[:half], order[half:]] for order in orders]
    got = fit(torch.from_numpy(x), torch.from_numpy(y), 4, lrs, epochs, seed=7)
    for member, lr in zip(got.numpy(), lrs, strict=True):
        weight, bias = sgd(x, y, 4, lr, batches)
        np.testing.assert_allclose(member[:, :-1], weight, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(member[:, -1], bias, rtol=1e-9, atol=1e-11)


def test_members_of_the_grid_do_not_touch_each_other() -> None:
    x, y = (torch.from_numpy(a) for a in blobs(0))
    together = fit(x, y, 6, [1.0, 1e38, 10.0], 5, seed=0)
    assert not together[1].isfinite().all()
    for n, lr in [(0, 1.0), (2, 10.0)]:
        torch.testing.assert_close(together[n], fit(x, y, 6, [lr], 5, seed=0)[0], rtol=1e-4, atol=1e-4)


# --- the probe


def test_separable_classes_reach_100() -> None:
    result = linear_probe(*blobs(0, noise=0.05), *blobs(1, noise=0.05), **QUICK)
    assert list(result) == ["100", "50", "20"]
    for scores in result.values():
        assert (scores["top1"], scores["top5"]) == (100, 100)
        assert scores["lr"] in QUICK["lrs"]
        assert scores["epochs"] in QUICK["epochs"]


def test_random_labels_stay_at_chance() -> None:
    """10 classes, 2000 test images: five standard deviations of a binomial around 10 % and 50 %."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 2000, 8)).astype(np.float32), rng.integers(0, 10, (2, 2000))
    scores = linear_probe(x[0], y[0], x[1], y[1], fractions=[20], **QUICK)["20"]
    assert abs(scores["top1"] - 10) < 100 * 5 * math.sqrt(0.1 * 0.9 / 2000)
    assert abs(scores["top5"] - 50) < 100 * 5 * math.sqrt(0.5 * 0.5 / 2000)


def test_top_accuracies_against_sorted_logits() -> None:
    rng = np.random.default_rng(0)
    logits, y = rng.standard_normal((200, 9)), rng.integers(-1, 9, 200)
    order = np.argsort(-logits, axis=1)
    got = class_places(torch.from_numpy(logits), torch.from_numpy(y))
    assert got.tolist() == [[*order[i, :5], y[i]].index(y[i]) + 1 for i in range(200)]


def test_same_seed_same_numbers_and_words_on_the_way() -> None:
    data = (*blobs(0, noise=2), *blobs(1, noise=2))
    copies, said = [a.copy() for a in data], []
    first = linear_probe(*data, seed=3, progress=said.append, **QUICK)
    assert linear_probe(*data, seed=3, **QUICK) == first
    assert linear_probe(*data, seed=4, **QUICK) != first
    for now, before in zip(data, copies, strict=True):
        np.testing.assert_array_equal(now, before)
    assert said[0] == "linear probe, 100 % of the labels: choosing the learning rate, 5 epochs"
    assert "fitting with learning rate" in said[-1]


def test_a_signal_ends_what_the_threads_do() -> None:
    """As Ctrl-C does; the fits would go on for hours."""
    main = threading.main_thread().ident
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    data, timer = (*blobs(0), *blobs(1)), threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGUSR1))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (the timer must not end before the block begins)
        timer.start()
        linear_probe(*data, lrs=(1.0,), epochs=(10**8,))
    signal.signal(signal.SIGUSR1, before)


def test_test_labels_and_features_cannot_influence_the_choice() -> None:
    train, (test_x, test_y) = blobs(0, noise=2), blobs(1, noise=2)
    rng = np.random.default_rng(0)
    plain = linear_probe(*train, test_x, test_y, **QUICK)
    permuted = linear_probe(*train, rng.permutation(test_x), rng.permutation(test_y), **QUICK)
    assert permuted["100"]["top1"] < plain["100"]["top1"]
    for percent in plain:
        assert [permuted[percent][k] for k in ("lr", "epochs")] == [plain[percent][k] for k in ("lr", "epochs")]


def test_choice_is_the_best_on_validation() -> None:
    """Against the grid trained member by member (few enough rates that none is dropped on the way)."""
    x, labels = blobs(0, noise=2, images=50)  # two batches: a fold is fitted in as many as all of it
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    tx, ty = torch.from_numpy(x), torch.from_numpy(labels)
    folds = [np.isin(np.arange(len(x)), held) for held in linear.validation_folds(labels, 0)]
    assert len(folds) == 5
    accuracy = {}
    lrs, lengths = (1.0, 10.0), QUICK["epochs"]
    for lr in lrs:
        for epochs in lengths:
            hits = [
                predict(fit(tx[~held], ty[~held], 6, [lr], epochs, 0, batches=2), tx[held])[0].argmax(1).numpy()
                == labels[held]
                for held in folds
            ]
            accuracy[lr, epochs] = np.mean(np.concatenate(hits))
    assert len(set(accuracy.values())) > 1
    scores = linear_probe(x, labels, *blobs(1), fractions=[100], lrs=lrs, epochs=lengths)["100"]
    assert accuracy[scores["lr"], scores["epochs"]] == max(accuracy.values())


@pytest.mark.parametrize(("images", "width"), [(1600, 450), (1000, 450)])  # in leading directions, on products
def test_the_probe_is_that_of_plain_loops(images: int, width: int) -> None:
    """One setting at a time, on all dimensions in float64; many small directions, as features have."""
    lrs, epochs = (1.0, 10.0), (4, 12)
    rng = np.random.default_rng(1)
    labels = np.arange(images) % 10
    scale, centers = np.arange(1, width + 1) ** -0.5, rng.standard_normal((10, width))
    x = (centers[labels] + 5 * rng.standard_normal((images, width))) * scale
    test = (centers[labels] + 5 * rng.standard_normal((images, width))) * scale
    x, test = (one.astype(np.float32) / np.linalg.norm(one, axis=1, keepdims=True) for one in (x, test))

    def batches(count: int, length: int) -> list[list[list[int]]]:
        generator = torch.Generator().manual_seed(0)
        orders = [torch.randperm(count, generator=generator) for _ in range(length)]
        return [[part.tolist() for part in torch.tensor_split(order, -(-images // 256))] for order in orders]

    folds = linear.validation_folds(labels, 0)
    setting, accuracy, classes = probe(x, labels, test, folds, lrs, epochs, batches)
    got = linear_probe(x, labels, test, labels, fractions=[100], lrs=lrs, epochs=epochs)["100"]
    assert min(accuracy.values()) < max(accuracy.values()) - 1
    assert (got["lr"], got["epochs"]) == setting
    assert got["top1"] == pytest.approx(100 * (classes == labels).mean(), abs=0.3)
    assert 40 < got["top1"] < 99


def test_the_count_of_steps_is_that_of_the_probe() -> None:
    """Seven rates for 30 epochs and two for 100 on every fold, then one for 100 on all; batches of 256 at most."""
    labels = np.repeat(np.arange(6), [3, 120, 120, 120, 120, 120])  # one of the three is held out, a fifth of others
    choosing = 7 * 30 + 2 * 100
    assert linear.steps_of_one_rate(labels, (100,)) == 3 * (5 * choosing + 100), "603 images, 121 held out in each fold"
    assert linear.steps_of_one_rate(labels, (20,)) == 1 * (5 * choosing + 100)
    many = np.repeat(np.arange(100), 60)
    assert linear.steps_of_one_rate(many, (100,)) == 24 * (choosing + 100), "1,200 held out are enough"


def test_fractions_use_their_own_labels_only() -> None:
    """Images outside the 20 % can hold anything."""
    (x, y), test = blobs(0, noise=2), blobs(1, noise=2)
    outside = np.setdiff1d(np.arange(len(y)), nested_fractions(y, [0.2])[0.2])
    other = x.copy()
    other[outside] = 1000
    first = linear_probe(x, y, *test, fractions=[20], **QUICK)
    assert linear_probe(other, y, *test, fractions=[20], **QUICK) == first


def test_divergent_settings_lose() -> None:
    """Softmax gradients are bounded, so it takes a rate beyond float32 to overflow."""
    scores = linear_probe(*blobs(0), *blobs(1), fractions=[100], lrs=(1e39, 10.0, 1e40), epochs=(10,))["100"]
    assert scores["lr"] == 10
    assert scores["top1"] > 90
    with pytest.raises(FineSightError, match="diverged at every setting"):
        linear_probe(*blobs(0), *blobs(1), lrs=(1e39, 1e40), epochs=(10,))
    logits = torch.full((4, 3), float("nan"))
    assert class_places(logits, torch.zeros(4, dtype=torch.long)).tolist() == [6] * 4, "never right"


def test_one_image_per_class_falls_back_on_the_papers_setting() -> None:
    scores = linear_probe(*blobs(0, images=5, noise=0.05), *blobs(1, noise=0.05), fractions=[20], **QUICK)["20"]
    assert (scores["lr"], scores["epochs"]) == linear.UNCHOSEN
    assert scores["top1"] == 100


@pytest.mark.parametrize("normalize", [True, False])
def test_scale_of_the_features_does_not_matter(normalize: bool) -> None:
    (x, y), (test_x, test_y) = blobs(0, noise=1), blobs(1, noise=1)
    plain = linear_probe(x, y, test_x, test_y, normalize=normalize, **QUICK)
    scaled = linear_probe(x * 1024, y, test_x * 1024, test_y, normalize=normalize, **QUICK)
    assert scaled == plain


def test_normalizing_takes_the_length_out() -> None:
    """Classes that differ in length alone: only the probe that sees lengths can tell them."""
    direction = np.random.default_rng(0).standard_normal((200, 1)).astype(np.float32) * 0.01 + 1
    y = np.arange(200) % 2
    x = direction * np.where(y, 3, 1)[:, None].astype(np.float32) * np.ones((1, 4), dtype=np.float32)
    assert linear_probe(x, y, x, y, fractions=[100], normalize=False, **QUICK)["100"]["top1"] == 100
    assert linear_probe(x, y, x, y, fractions=[100], normalize=True, **QUICK)["100"]["top1"] < 80


def test_zero_features_two_classes_and_labels_with_gaps() -> None:
    x, y = blobs(0, classes=2, noise=0.05)
    x[0] = 0
    gaps = np.where(y == 0, 17, 90_000)
    scores = linear_probe(x, gaps, x, gaps, fractions=[100], **QUICK)["100"]
    assert scores["top1"] >= 97.5
    assert scores["top5"] == 100


def test_unlabeled_are_left_out_and_unknown_test_classes_are_wrong() -> None:
    (x, y), (test_x, test_y) = blobs(0, noise=0.05), blobs(1, noise=0.05)
    test_y[:30] = -1
    test_y[-9:] = 1000
    scores = linear_probe(x, np.where(y == 2, -1, y), test_x, test_y, fractions=[100], **QUICK)["100"]
    known = (test_y >= 0) & (test_y < 1000) & (test_y != 2)
    assert scores["top1"] == pytest.approx(100 * known.sum() / (test_y >= 0).sum())


@pytest.mark.parametrize(
    ("train_y", "test_y", "message"),
    [
        ([-1, -1, -1, -1], [0, 1, 0, 1], "no train image has one"),
        ([0, 1, 0, 1], [-1, -1, -1, -1], "no test image has one"),
        ([2, 2, -1, 2], [2, 0, 1, 1], "at least two classes"),
        ([0, 1, 0, 1], [2, 3, -1, 2], "No class of the test images"),
    ],
)
def test_labels_that_give_no_probe(train_y: list[int], test_y: list[int], message: str) -> None:
    x = np.eye(4, dtype=np.float32)
    with pytest.raises(FineSightError, match=re.escape(message)):
        linear_probe(x, np.array(train_y), x, np.array(test_y), **QUICK)


def test_features_and_fractions_that_are_refused() -> None:
    (x, y), (bad, _) = blobs(0), blobs(0)
    bad[3, 2] = np.nan
    for train, test, split in ((bad, x, "train"), (x, bad, "test"), (half(x), half(bad), "test")):
        with pytest.raises(FineSightError, match=f"{split} features hold values that are not finite"):
            linear_probe(train, y, test, y, **QUICK)
    with pytest.raises(ValueError, match="test features"):
        linear_probe(x, y, x, y[:-1], **QUICK)
    for fraction in (0.0, 1.5, -0.1):
        with pytest.raises(ValueError, match="fractions"):
            nested_fractions(y, [fraction])


# --- more dimensions than images --------------------------------------------------------------------------------------


def wide(seed: int, images: int = 60, dim: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Much alike, as features are, with copies and a row of zeros; unit length but for those."""
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % 4
    centers = np.random.default_rng(99).standard_normal((4, dim))
    x = 3 + centers[labels] + rng.standard_normal((images, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[10:20] = x[:10]  # of other classes
    x[30:33] = x[29]
    x[40] = 0
    return x.astype(np.float32), labels


def half(x: np.ndarray) -> WideRows:
    rows = WideRows.empty(*x.shape)
    rows[:] = x
    return rows


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("kept", ["float32", "float16"])
def test_a_probe_on_inner_products_is_the_probe(uneven: bool, kept: str) -> None:
    """The same weights and predictions as the direct fit, whatever the rate, on all rows and on a part of them."""
    (x, labels), (test, _) = wide(0), wide(1)
    if uneven:
        x *= np.random.default_rng(2).uniform(0.01, 3, (60, 1)).astype(np.float32)
    given = torch.from_numpy(x) if kept == "float32" else half(x)
    exact = torch.from_numpy(np.asarray(given))
    y, seen = torch.from_numpy(labels), (torch.from_numpy(x), torch.from_numpy(test))
    products = inner_products(given, block_bytes=4 * 60 * 37)
    torch.testing.assert_close(products, exact @ exact.T + 1, rtol=1e-5, atol=1e-6)
    for part in (torch.arange(60), torch.arange(5, 47)):
        inside = products[part[:, None], part]
        same_probe(inside, given[part], exact[part], y[part], [0.3, 3.0, 10.0], seen)
        doubled = exact[part].double()
        high = [3.0, 30.0, 100.0]
        same_probe(inner_products(doubled), doubled, doubled, y[part], high, tuple(one.double() for one in seen))


def same_probe(
    products: torch.Tensor, given: Rows, rows: torch.Tensor, y: torch.Tensor, lrs: list[float], seen: tuple
) -> None:
    """Rates at which a fit overshoots magnify its rounding, a thousandfold and more: those are tried in float64."""
    direct, shares = (way(x, y, 4, lrs, 50, seed=0) for way, x in ((fit, rows), (fit_products, products)))
    lifted = weights_of(shares, given, 4, block_bytes=4 * 60 * 37)
    assert lifted.shape == direct.shape
    for x in seen:
        for got, want in zip(predict(lifted, x), predict(direct, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


def test_leading_directions_hold_the_most() -> None:
    x = torch.from_numpy(blobs(0, dim=30)[0])
    directions = leading_directions(x, 7)
    torch.testing.assert_close(directions.T @ directions, torch.eye(7), rtol=0, atol=1e-5)
    held = torch.linalg.svdvals(x)[:7]
    torch.testing.assert_close((x @ directions).norm(dim=0), held, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_way_does_not_change_the_scores(normalize: bool) -> None:
    (x, y), (test, test_y) = blobs(0, dim=400, noise=4), blobs(1, dim=400, noise=4)
    x *= np.random.default_rng(0).uniform(0.5, 2, (len(x), 1)).astype(np.float32)
    words: list[str] = []
    options = {"lrs": (1.0, 10.0), "epochs": (5, 15), "normalize": normalize, "progress": words.append}
    inside = linear_probe(x, y, test, test_y, **options)
    assert [text.split()[-5] for text in words if "with each other" in text] == ["120", "60", "24"]
    words.clear()
    direct = linear_probe(x, y, test, test_y, compared=1, **options)
    assert 20 < direct["100"]["top1"] < 100
    for percent in direct:
        assert inside[percent]["top1"] == pytest.approx(direct[percent]["top1"], abs=1)  # one image of 120
        assert (inside[percent]["lr"], inside[percent]["epochs"]) == (direct[percent]["lr"], direct[percent]["epochs"])
    lazily = linear_probe(half(x), y, half(test), test_y, compared=1, **options)  # row by row out of one matrix
    assert not any("with each other" in text for text in words)
    for percent in direct:
        assert lazily[percent]["top1"] == pytest.approx(direct[percent]["top1"], abs=2)


@pytest.mark.slow
def test_wide_features_are_never_copied() -> None:
    """Of 3,000 images with 20,000 numbers (120 MB in 16 bits, 240 in float32) in all, 800 to fit to."""
    script = """
import resource, numpy as np
from finesight.evaluation import linear, softmax
from finesight.features import wide as store
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
store.BLOCK_BYTES = softmax.BLOCK_BYTES = 2 * 2**20
softmax.BATCH = 64
rng = np.random.default_rng(0)
features = store.WideRows.empty(3000, 20_000)
for start in range(0, 3000, 50):
    features[start : start + 50] = rng.standard_normal((50, 20_000), dtype="f4")
labels = np.arange(3000) % 5
labels[::50] = -1
def probe(train, test):
    return linear.linear_probe(
        features[train], labels[train], features[test], labels[test], lrs=(1.0,), epochs=(2,), fractions=(100,)
    )
probe(slice(0, 60), slice(60, 120))
before = peak()
probe(slice(0, 800), slice(800, 3000))
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 50  # MB
