"""Linear probe: how well one linear layer on frozen features tells the classes apart.

The paper's released protocol reports the best epoch *on test* at one learning rate: it flatters, and suits
some features only. Here rate and length are chosen on a part of train, alike for every method, and test is
touched once.

Features with many more dimensions than there are images to fit to are fitted in the images' row space, which gives
the same probe at the cost of as many dimensions as images; see ``RowSpace``. No random projection is needed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.evaluation.fractions import join, nested_fractions, shuffled_classes
from finesight.features.row_space import Rows, RowSpace
from finesight.features.wide import WIDE, Features, WideRows, row_lengths

LEARNING_RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
EPOCHS = (30, 100)
UNCHOSEN = (30.0, 100)  # the paper's setting, for when every class has one image: nothing to choose on
BATCH = 256
MOMENTUM = 0.9
VALIDATION = 0.2
ENOUGH = 1000  # validation images; a choice on fewer is luck, so that several folds are tried then
FOLDS = 5
FINALISTS = 3
GRAM = 16_384  # images at most in a matrix of their inner products, which takes 2 GB then


@dataclass(frozen=True, eq=False)
class Outcome:
    """What each labeled test image gave, in their order, and on how much of train the setting was chosen."""

    hit1: NDArray[np.bool_]
    hit5: NDArray[np.bool_]
    folds: int = 0
    validation_images: int = 0  # over all folds, each of which is held out of the others


def linear_probe(
    train_x: Features,
    train_y: NDArray[np.int64],
    test_x: Features,
    test_y: NDArray[np.int64],
    *,
    fractions: Sequence[int] = (100, 50, 20),
    seed: int = 0,
    normalize: bool = True,
    lrs: Sequence[float] = LEARNING_RATES,
    epochs: Sequence[int] = EPOCHS,
    progress: Callable[[str], None] | None = None,
    parts: Mapping[int, NDArray[np.int64]] | None = None,
    found: Callable[[str, Outcome], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Top-1 and top-5 in percent on test for each percentage of the train labels, and the setting chosen.

    Unlabeled images (-1) are left out; test images of a class that train lacks count as wrong. ``normalize``
    gives each feature length 1; without it one common scale is taken out, so that the same learning rates
    suit any network. ``progress`` is told in words what is being done. ``parts`` has the train images of each
    fraction; by default they are drawn (``nested_fractions``). ``found`` is told what each test image gave.
    """
    place = np.cumsum(np.asarray(train_y) >= 0) - 1  # among the labeled
    train_x, train_y, norm = _labeled(train_x, train_y, "train")
    test_x, test_y, test_norm = _labeled(test_x, test_y, "test")
    classes = np.unique(train_y)
    _check_classes(classes, test_y)
    common = np.sqrt(np.mean(norm**2))
    x, test = divided(train_x, norm if normalize else common), divided(test_x, test_norm if normalize else common)
    y = torch.from_numpy(np.searchsorted(classes, train_y))
    target = torch.from_numpy(class_index(classes, test_y))

    result = {}
    drawn = nested_fractions(train_y, [percent / 100 for percent in fractions], seed) if parts is None else {}
    for percent in fractions:
        say = _prefixed(progress, f"linear probe, {percent} % of the labels: ")
        part = torch.from_numpy(drawn[percent / 100] if parts is None else place[parts[percent]])
        own = x[part]
        span = _span(own, say)
        seen = own if span is None else span.rows
        lr, length = _choose(seen, y[part], len(classes), lrs, epochs, seed, say)
        say(f"fitting with learning rate {lr:g} for {length} epochs")
        weight = fit(seen, y[part], len(classes), [lr], length, seed)
        right = hits(predict(weight if span is None else span.lift(weight), test)[0], target)
        top1, top5 = (100 * hit.double().mean().item() for hit in right)
        result[str(percent)] = {"top1": top1, "top5": top5, "lr": lr, "epochs": float(length)}
        if found is not None:
            folds = _folds(y[part].numpy(), seed)
            found(str(percent), Outcome(right[0].numpy(), right[1].numpy(), len(folds), sum(map(len, folds))))
    return result


def steps_of_one_rate(labels: NDArray[np.int64], fractions: Sequence[int] = (100, 50, 20), seed: int = 0) -> int:
    """How many steps ``linear_probe`` takes, each with one learning rate, to choose on every fold and to fit."""
    short, long = min(EPOCHS), max(EPOCHS)
    choosing = short * len(LEARNING_RATES) + long * FINALISTS
    total = 0
    for part in nested_fractions(labels, [percent / 100 for percent in fractions], seed).values():
        total += _batches(len(part)) * (choosing * len(_folds(labels[part], seed)) + long)
    return total


def _span(x: Rows, say: Callable[[str], None]) -> RowSpace | None:
    """Where it pays: the way there has its cost, and the matrix its size."""
    if len(x) > min(GRAM, x.shape[1] // 2):
        return None
    say(f"comparing {len(x)} images with each other")
    return RowSpace(x)


def fit(
    x: Rows,
    y: torch.Tensor,
    classes: int,
    lrs: Sequence[float],
    epochs: int,
    seed: int,
    batches: int | None = None,
) -> torch.Tensor:
    """Train one softmax regression per learning rate; weights (G, C, D + 1), the last column being the bias.

    SGD with momentum, no weight decay, cosine schedule; all G see the same batches. The gradient of the
    cross-entropy is written out, so that a step of all of them is two matrix products and one addition. The
    problem is convex, so the start (the paper draws N(0, 0.01)) is zero. An epoch is ``batches`` steps of equal size,
    by default as many as batches of 256 would be.
    """
    weight = _with_one(x[:0]).new_zeros(len(lrs) * classes, x.shape[1] + 1)
    speed = torch.zeros_like(weight)  # momentum times the learning rate
    rates = weight.new_tensor(lrs)[:, None]
    for batch, decay in _steps(len(x), epochs, seed, batches or _batches(len(x))):
        rows = _with_one(x[batch])
        error = (rows @ weight.T).view(len(batch), len(lrs), classes).softmax(dim=2)
        error[torch.arange(len(batch)), :, y[batch]] -= 1  # (B, G, C): d cross-entropy / d logits
        error *= rates / len(batch)
        speed.addmm_(error.flatten(1).T, rows, beta=MOMENTUM)
        weight.sub_(speed, alpha=decay)
    return weight.view(len(lrs), classes, -1)


def predict(weight: torch.Tensor, x: Rows) -> torch.Tensor:
    """Logits (G, N, C) of the probes that ``fit`` gave."""
    if isinstance(x, torch.Tensor):
        return _with_one(x) @ weight.mT
    logits = weight.new_empty(len(weight), len(x), weight.shape[1])
    for start in range(0, len(x), BATCH):
        logits[:, start : start + BATCH] = _with_one(x[start : start + BATCH]) @ weight.mT
    return logits


def _with_one(x: Rows) -> torch.Tensor:
    dense = x.tensor() if isinstance(x, WideRows) else x
    return torch.cat([dense, dense.new_ones(len(dense), 1)], dim=1)


def _batches(images: int) -> int:
    return math.ceil(images / BATCH)


def _steps(images: int, epochs: int, seed: int, batches: int) -> Iterator[tuple[torch.Tensor, float]]:
    """Batches of a fresh order each epoch, with the cosine factor of the learning rate.

    Of equal size: at the high rates that suit unit features, a short last batch could throw the fit off.
    """
    generator = torch.Generator().manual_seed(seed)
    total = epochs * batches
    step = 0
    for _ in range(epochs):
        for batch in torch.tensor_split(torch.randperm(images, generator=generator), batches):
            yield batch, 0.5 * (1 + math.cos(math.pi * step / total))
            step += 1


def _choose(
    x: Rows,
    y: torch.Tensor,
    classes: int,
    lrs: Sequence[float],
    epochs: Sequence[int],
    seed: int,
    say: Callable[[str], None],
) -> tuple[float, int]:
    """The learning rate and length with the best validation accuracy; of equal ones, the lowest loss.

    Every rate is tried for the shortest time, only the best few for longer: most of the cost is in the rest.
    """
    folds = _folds(y.numpy(), seed)
    if not folds:
        return UNCHOSEN
    scores = {}
    for length in sorted(epochs):
        say(f"choosing the learning rate, {length} epochs")
        found = [_fold_scores(x, y, classes, lrs, length, seed, held) for held in folds]
        for n, lr in enumerate(lrs):
            scores[lr, length] = _joint_score([fold[n] for fold in found])
        lrs = [lr for _, lr in sorted((scores[lr, length], lr) for lr in lrs)][-FINALISTS:]
    best = max(scores, key=lambda setting: scores[setting])
    if scores[best][0] < 0:
        raise FineSightError(
            f"The linear probe diverged at every setting tried (learning rate, epochs: {list(scores)}). "
            "Try lower learning rates."
        )
    return best


def _fold_scores(
    x: Rows,
    y: torch.Tensor,
    classes: int,
    lrs: Sequence[float],
    length: int,
    seed: int,
    held: NDArray[np.int64],
) -> list[tuple[int, float, float]]:
    """For each rate: held-out images, accuracy and loss on them of a probe fitted to the others."""
    kept = torch.ones(len(y), dtype=torch.bool)
    kept[held] = False
    weight = fit(x[kept], y[kept], classes, lrs, length, seed, _batches(len(y)))  # as unsteady as the fit to all
    return [(len(held), *_validation_score(logits, y[held])) for logits in predict(weight, x[held])]


def _validation_score(logits: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Larger is better; a probe that overflowed loses to every one that did not."""
    if not bool(logits.isfinite().all()):
        return -1.0, 0.0
    return _accuracy(logits, y)[0], -float(torch.nn.functional.cross_entropy(logits, y))


def _joint_score(folds: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """Over all held-out images; a probe that overflowed once has lost."""
    if any(accuracy < 0 for _, accuracy, _ in folds):
        return -1.0, 0.0
    total = sum(count for count, _, _ in folds)
    accuracy = sum(count * value for count, value, _ in folds) / total
    return accuracy, sum(count * value for count, _, value in folds) / total


def _folds(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Disjoint validation sets: a fifth of each class, at least one image but never a class's only one.

    One where that is enough images to choose by, else as many as it takes, up to five.
    """
    shuffled = [order for order in shuffled_classes(labels, seed) if len(order) > 1]
    sizes = [max(1, round(VALIDATION * len(order))) for order in shuffled]
    count = min(FOLDS, math.ceil(ENOUGH / max(1, sum(sizes))))
    pairs = list(zip(shuffled, sizes, strict=True))
    folds = [join(order[n * size : (n + 1) * size] for order, size in pairs) for n in range(count)]
    return [fold for fold in folds if len(fold)]


def _accuracy(logits: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Top-1 and top-5 in percent; (N, C), (N,)."""
    first, fifth = hits(logits, y)
    return 100 * first.double().mean().item(), 100 * fifth.double().mean().item()


def hits(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether the class is the first, and whether it is among the first five. (N, C), (N,) -> (N,) each"""
    best = logits.topk(min(5, logits.shape[1]), dim=1)
    hit = (best.indices == y[:, None]) & best.values.isfinite()  # topk puts NaN first
    return hit[:, 0], hit.any(dim=1)


def class_index(classes: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into the sorted classes; -1 for a label that is not among them."""
    place = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[place] == labels, place, -1)


def divided(x: Features, by: NDArray[np.float64]) -> Rows:
    """Rows by their own length or by a common one; a zero vector stays zero."""
    divisor = np.broadcast_to(np.where(by > 0, by, 1.0), len(x))
    if x.shape[1] > WIDE:
        return WideRows.of(x).times(1 / divisor)
    return torch.from_numpy((np.asarray(x) / divisor[:, None]).astype(np.float32))


def _labeled(x: Features, y: NDArray[np.int64], split: str) -> tuple[Features, NDArray[np.int64], NDArray[np.float64]]:
    """Those that have a label, and their lengths; wide features are not copied."""
    x, y = WideRows.of(x) if x.shape[1] > WIDE else np.asarray(x), np.asarray(y)
    if y.shape != (len(x),):
        raise ValueError(f"{len(x)} {split} features but labels of shape {y.shape}")
    if not (y >= 0).any():
        raise FineSightError(
            f"The linear probe needs class labels and no {split} image has one. "
            "Give a folder with one sub-folder per class, or a list with a label column."
        )
    x, y = x[y >= 0], y[y >= 0]
    norm = row_lengths(x)
    if not np.isfinite(norm).all():
        raise FineSightError(
            f"The {split} features hold values that are not finite (NaN or infinity): the network diverged. "
            "Evaluate an earlier checkpoint or train with a lower learning rate."
        )
    return x, y, norm


def _check_classes(classes: NDArray[np.int64], test_y: NDArray[np.int64]) -> None:
    if len(classes) < 2:
        raise FineSightError(
            "The linear probe needs at least two classes, but all labeled train images are of one. "
            "Give images of more classes."
        )
    if not np.isin(test_y, classes).any():
        raise FineSightError(
            "No class of the test images occurs among the train images, so a linear probe cannot be right. "
            "Give train and test splits that share their classes."
        )


def _prefixed(progress: Callable[[str], None] | None, prefix: str) -> Callable[[str], None]:
    return lambda text: progress(prefix + text) if progress else None
