"""Linear probe: how well one linear layer on frozen features tells the classes apart.

The paper's released protocol reports the best epoch *on test* at one learning rate: it flatters, and suits some
features only. Here rate and length are chosen on a part of train, alike for every method, and test is used once.

Probes are fitted to the features or to their inner products, whichever costs less and with the same result: see
``finesight.evaluation.softmax``. For many images, rate and length are chosen in the leading directions of the features:
all in a few, then the two best in many. The probe that is scored has all of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finesight.errors import FineSightError
from finesight.evaluation.fractions import draw_parts, join, shuffled_classes
from finesight.evaluation.metrics import METRICS, Values, classifier_values
from finesight.evaluation.probe_fits import COMPARED, FINE, ROUGH, TASKS, ProbeFits, class_places
from finesight.evaluation.softmax import Rows, batch_count, predict
from finesight.features.wide import Features, WideRows, is_wide, row_lengths
from finesight.io.parallel import shared_threads

LEARNING_RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
EPOCHS = (30, 100)
UNCHOSEN = (30.0, 100)  # the paper's setting, for when every class has one image: nothing to choose on
VALIDATION = 0.2
ENOUGH = 1000  # validation images; a choice on fewer is luck, so that several folds are tried then
FOLDS = 5
FINALISTS = 2


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
    compared: int = COMPARED,
) -> dict[str, ProbeResult]:
    """Fit a probe to each percentage of the train labels and score it on test; return the results by percentage.

    Unlabeled images (-1) are left out; test images of a class that train lacks count as wrong. ``normalize``
    gives each feature length 1; without it one common scale is taken out, so that the same learning rates
    suit any network. ``progress`` is called with words that say what is being done. ``parts`` has the train images of
    each fraction; by default they are drawn (``draw_parts``). More than ``compared`` images
    are not compared with each other, which would take too much memory.
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

    drawn = draw_parts(train_y, fractions, seed) if parts is None else {}
    stopped = Event()
    with shared_threads(TASKS) as pool, ExitStack() as before_the_pool_ends:
        before_the_pool_ends.callback(stopped.set)
        data = {}
        for percent in fractions:
            say = _prefixed(progress, f"linear probe, {percent} % of the labels: ")
            part = torch.from_numpy(drawn[percent] if parts is None else labeled_index[parts[percent]])
            data[percent] = ProbeFits(x[part], y[part], len(classes), seed, compared, pool, stopped, say)
        for images in data.values():
            _ = images.prepared  # begun for all: while one waits for it, another can go on
        scored = {percent: _choose_and_score(images, lrs, epochs, test, target) for percent, images in data.items()}
        return {str(percent): finish() for percent, finish in scored.items()}


def _choose_and_score(
    images: ProbeFits, lrs: Sequence[float], epochs: Sequence[int], test: Rows, target: torch.Tensor
) -> Callable[[], ProbeResult]:
    """Choose rate and length, begin to fit, and return what waits for the scores."""
    folds = validation_folds(images.y.numpy(), images.seed)
    lr, length = _choose(images, folds, lrs, epochs)
    images.say(f"fitting with learning rate {lr:g} for {length} epochs")
    places = images.pool.submit(lambda: class_places(predict(images.fit(lr, length), test)[0], target))
    setting, held = {"lr": lr, "epochs": float(length)}, sum(map(len, folds))
    return lambda: ProbeResult(classifier_values("linear", places.result()), setting, len(folds), held)


def steps_of_one_rate(labels: NDArray[np.int64], fractions: Sequence[int] = (100, 50, 20), seed: int = 0) -> int:
    """Return how many steps ``linear_probe`` takes, each with one learning rate, to choose on every fold and to fit."""
    short, long = min(EPOCHS), max(EPOCHS)
    choosing = short * len(LEARNING_RATES) + long * FINALISTS
    total = 0
    for part in draw_parts(labels, fractions, seed).values():
        total += batch_count(len(part)) * (choosing * len(validation_folds(labels[part], seed)) + long)
    return total


def _choose(
    images: ProbeFits, folds: Sequence[NDArray[np.int64]], lrs: Sequence[float], epochs: Sequence[int]
) -> tuple[float, int]:
    """Return the learning rate and length with the best validation accuracy; of equal ones, the lowest loss.

    Every rate is tried for the shortest time and only the best two for longer, which saves most of the cost. Of many
    images, the first trial is in few directions and says only which these two are.
    """
    if not folds:
        return UNCHOSEN
    images.tell_preparation()
    short, *longer = sorted(epochs)
    images.say(f"choosing the learning rate, {short} epochs")
    scores = _try(images, folds, [(lr, short) for lr in lrs], ROUGH)
    best = sorted(scores, key=lambda setting: scores[setting])[-FINALISTS:]
    if images.many:
        scores = {}
    again = sorted(epochs) if images.many else longer
    if again:
        words = " and ".join(str(length) for length in again)
        images.say(f"comparing learning rates {' and '.join(f'{lr:g}' for lr, _ in best)}, {words} epochs")
        scores |= _try(images, folds, [(lr, length) for length in again for lr, _ in best], FINE)
    chosen = max(scores, key=lambda setting: scores[setting])
    if scores[chosen][0] < 0:
        raise FineSightError(
            f"The linear probe diverged at every setting tried (learning rate, epochs: {list(scores)}). "
            "Try lower learning rates."
        )
    return chosen


def _try(
    images: ProbeFits, folds: Sequence[NDArray[np.int64]], settings: Sequence[tuple[float, int]], directions: int
) -> dict[tuple[float, int], tuple[float, float]]:
    """Return the score of each rate and length, over all folds."""
    by_length = {length: [lr for lr, own in settings if own == length] for _, length in settings}
    begun = {
        length: [images.try_rates(held, lrs, length, directions) for held in folds] for length, lrs in by_length.items()
    }
    scores: dict[tuple[float, int], tuple[float, float]] = {}
    for length, tasks in begun.items():
        by_fold = [[score for some in fold for score in some.result()] for fold in tasks]
        scores |= {(lr, length): _joint_score([fold[n] for fold in by_fold]) for n, lr in enumerate(by_length[length])}
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
