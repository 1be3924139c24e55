"""Linear probe: how well one linear layer on frozen features tells the classes apart.

The paper's released protocol reports the best epoch *on test* at one learning rate: it flatters, and suits some
features only. Here rate and length are chosen on a part of train, alike for every method, and test is used once.

Features with many more dimensions than there are images are fitted in the images' row space, which gives the same probe
at the cost of as many dimensions as images; see ``RowSpace``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.evaluation.fractions import draw_parts, join, shuffled_classes
from finesight.evaluation.metrics import METRICS, Values, classifier_values
from finesight.features.row_space import Rows, RowSpace
from finesight.features.wide import Features, WideRows, is_wide, row_lengths

LEARNING_RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
EPOCHS = (30, 100)
UNCHOSEN = (30.0, 100)  # the paper's setting, for when every class has one image: nothing to choose on
BATCH = 256
MOMENTUM = 0.9
VALIDATION = 0.2
ENOUGH = 1000  # validation images; a choice on fewer is luck, so that several folds are tried then
FOLDS = 5
FINALISTS = 3
ROW_SPACE_IMAGES = 16_384  # the matrix of their inner products takes 2 GB then


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The scores of a probe, the setting it was fitted with, and what each labeled test image gave, in their order."""

    per_image: Mapping[str, Values]  # key of a metric -> (test images,)
    setting: Mapping[str, Any]  # learning rate, epochs and the like
    folds: int = 0
    validation_images: int = 0  # over all folds, each of which is held out of the others

    def summary(self) -> dict[str, Any]:
        """Return the scores in percent and the setting, ready for JSON."""
        scores = {key: METRICS[f"linear.{key}"].score(values) for key, values in self.per_image.items()}
        return {**scores, **self.setting}


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
    row_space_images: int = ROW_SPACE_IMAGES,
) -> dict[str, ProbeResult]:
    """Fit a probe to each percentage of the train labels and score it on test; return the results by percentage.

    Unlabeled images (-1) are left out; test images of a class that train lacks count as wrong. ``normalize``
    gives each feature length 1; without it one common scale is taken out, so that the same learning rates
    suit any network. ``progress`` is called with words that say what is being done. ``parts`` has the train images of
    each fraction; by default they are drawn (``draw_parts``). More than ``row_space_images`` are not fitted in
    their row space, which would take too much memory.
    """
    labeled_index = np.cumsum(np.asarray(train_y) >= 0) - 1
    train_x, train_y, norm = _labeled(train_x, train_y, "train")
    test_x, test_y, test_norm = _labeled(test_x, test_y, "test")
    classes = np.unique(train_y)
    _check_classes(classes, test_y)
    common = np.sqrt(np.mean(norm**2))
    x = divide_rows(train_x, norm if normalize else common)
    test = divide_rows(test_x, test_norm if normalize else common)
    y = torch.from_numpy(np.searchsorted(classes, train_y))
    target = torch.from_numpy(class_index(classes, test_y))

    result = {}
    drawn = draw_parts(train_y, fractions, seed) if parts is None else {}
    for percent in fractions:
        say = _prefixed(progress, f"linear probe, {percent} % of the labels: ")
        part = torch.from_numpy(drawn[percent] if parts is None else labeled_index[parts[percent]])
        own_x, own_y = x[part], y[part]
        row_space = None
        if len(own_x) <= min(row_space_images, own_x.shape[1] // 2):  # fitting in it is cheaper then
            say(f"comparing {len(own_x)} images with each other")
            row_space = RowSpace(own_x)
        fitted_x = own_x if row_space is None else row_space.rows
        folds = validation_folds(own_y.numpy(), seed)
        lr, length = _choose(fitted_x, own_y, len(classes), folds, lrs, epochs, seed, say)
        say(f"fitting with learning rate {lr:g} for {length} epochs")
        weight = fit(fitted_x, own_y, len(classes), [lr], length, seed)
        logits = predict(weight if row_space is None else row_space.lift(weight), test)[0]
        values = classifier_values("linear", class_places(logits, target))
        setting = {"lr": lr, "epochs": float(length)}
        result[str(percent)] = ProbeResult(values, setting, len(folds), sum(map(len, folds)))
    return result


def steps_of_one_rate(labels: NDArray[np.int64], fractions: Sequence[int] = (100, 50, 20), seed: int = 0) -> int:
    """Return how many steps ``linear_probe`` takes, each with one learning rate, to choose on every fold and to fit."""
    short, long = min(EPOCHS), max(EPOCHS)
    choosing = short * len(LEARNING_RATES) + long * FINALISTS
    total = 0
    for part in draw_parts(labels, fractions, seed).values():
        total += _batches(len(part)) * (choosing * len(validation_folds(labels[part], seed)) + long)
    return total


def fit(
    x: Rows, y: torch.Tensor, classes: int, lrs: Sequence[float], epochs: int, seed: int, batches: int | None = None
) -> torch.Tensor:
    """Train one softmax regression per learning rate; return weights (G, C, D + 1), the last column being the bias.

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
    """Return the logits (G, N, C) of the probes that ``fit`` gave."""
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
    """Yield batches of a fresh order each epoch, with the cosine factor of the learning rate.

    Batches are of equal size: at the high rates that suit unit features, a short last batch could throw the fit off.
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
    folds: Sequence[NDArray[np.int64]],
    lrs: Sequence[float],
    epochs: Sequence[int],
    seed: int,
    say: Callable[[str], None],
) -> tuple[float, int]:
    """Return the learning rate and length with the best validation accuracy; of equal ones, the lowest loss.

    Every rate is tried for the shortest time and only the best few for longer, which saves most of the cost.
    """
    if not folds:
        return UNCHOSEN
    scores = {}
    for length in sorted(epochs):
        say(f"choosing the learning rate, {length} epochs")
        by_fold = [_fold_scores(x, y, classes, lrs, length, seed, held) for held in folds]
        for n, lr in enumerate(lrs):
            scores[lr, length] = _joint_score([fold[n] for fold in by_fold])
        lrs = [lr for _, lr in sorted((scores[lr, length], lr) for lr in lrs)][-FINALISTS:]
    best = max(scores, key=lambda setting: scores[setting])
    if scores[best][0] < 0:
        raise FineSightError(
            f"The linear probe diverged at every setting tried (learning rate, epochs: {list(scores)}). "
            "Try lower learning rates."
        )
    return best


def _fold_scores(
    x: Rows, y: torch.Tensor, classes: int, lrs: Sequence[float], length: int, seed: int, held: NDArray[np.int64]
) -> list[tuple[int, float, float]]:
    """Return, for each rate: held-out images, accuracy and negative loss on them of a probe fitted to the others."""
    kept = torch.ones(len(y), dtype=torch.bool)
    kept[held] = False
    weight = fit(x[kept], y[kept], classes, lrs, length, seed, _batches(len(y)))  # as unsteady as the fit to all
    scores = []
    for logits in predict(weight, x[held]):
        accuracy, negative_loss = -1.0, 0.0  # of a probe that overflowed: it loses to every one that did not
        if bool(logits.isfinite().all()):
            accuracy = float(100 * (class_places(logits, y[held]) <= 1).mean())
            negative_loss = -float(torch.nn.functional.cross_entropy(logits, y[held]))
        scores.append((len(held), accuracy, negative_loss))
    return scores


def _joint_score(folds: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """Return the score over all held-out images; a probe that overflowed once has lost."""
    if any(accuracy < 0 for _, accuracy, _ in folds):
        return -1.0, 0.0
    total = sum(count for count, _, _ in folds)
    accuracy = sum(count * value for count, value, _ in folds) / total
    return accuracy, sum(count * value for count, _, value in folds) / total


def validation_folds(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Return disjoint validation sets: a fifth of each class, at least one image but never a class's only one.

    There is one set if it has enough images to choose by, else as many as it takes, up to five.
    """
    shuffled = [order for order in shuffled_classes(labels, seed) if len(order) > 1]
    sizes = [max(1, round(VALIDATION * len(order))) for order in shuffled]
    count = min(FOLDS, math.ceil(ENOUGH / max(1, sum(sizes))))
    pairs = list(zip(shuffled, sizes, strict=True))
    folds = [join(order[n * size : (n + 1) * size] for order, size in pairs) for n in range(count)]
    return [fold for fold in folds if len(fold)]


def class_places(logits: torch.Tensor, y: torch.Tensor) -> NDArray[np.int64]:
    """Return the place of the right class among the five highest logits (N, C), from 1; 6 if it is not there."""
    best = logits.topk(min(5, logits.shape[1]), dim=1)
    hit = (best.indices == y[:, None]) & best.values.isfinite()  # topk puts NaN first
    place: NDArray[np.int64] = torch.where(hit.any(dim=1), hit.int().argmax(dim=1) + 1, 6).numpy()
    return place


def class_index(classes: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each label in the sorted classes; -1 for a label that is not among them."""
    index = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[index] == labels, index, -1)


def divide_rows(x: Features, by: NDArray[np.float64]) -> Rows:
    """Divide rows by their own length or by a common one; a zero vector stays zero."""
    divisor = np.broadcast_to(np.where(by > 0, by, 1.0), len(x))
    if is_wide(x):
        return WideRows.of(x).times(1 / divisor)
    return torch.from_numpy((np.asarray(x) / divisor[:, None]).astype(np.float32))


def _labeled(x: Features, y: NDArray[np.int64], split: str) -> tuple[Features, NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows that have a label, their labels and their lengths; wide features are not copied."""
    x, y = WideRows.of(x) if is_wide(x) else np.asarray(x), np.asarray(y)
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
