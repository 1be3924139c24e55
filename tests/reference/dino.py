"""DINO: cross-entropy between the teacher's and the student's assignment of different views, and the center."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(values: Sequence[float]) -> list[float]:
    largest = max(values)
    powers = [math.exp(value - largest) for value in values]
    return [power / math.fsum(powers) for power in powers]


def cross_entropy(p: Sequence[float], logits: Sequence[float]) -> float:
    """−Σ p log softmax(logits)."""
    largest = max(logits)
    total = largest + math.log(math.fsum(math.exp(value - largest) for value in logits))
    return math.fsum(share * (total - value) for share, value in zip(p, logits, strict=True))


def dino(
    student: Sequence[Array], teacher: Sequence[Array], center: Array, student_t: float = 0.1, teacher_t: float = 0.04
) -> Array:
    """(N,): the mean over every teacher view and every other student view. Outputs are (N, P), one array a view."""
    losses = []
    for image in range(len(student[0])):
        terms = []
        for t, taught in enumerate(teacher):
            target = softmax([(x - c) / teacher_t for x, c in zip(taught[image], center, strict=True)])
            for s, learned in enumerate(student):
                if s != t:
                    terms.append(cross_entropy(target, [x / student_t for x in learned[image]]))
        losses.append(sum(terms) / len(terms))
    return np.array(losses)


def center(history: Sequence[Sequence[Array]], start: Array, momentum: float) -> Array:
    """Where the center is after steps in which the teacher said ``history``, each a list of views (N, P)."""
    now = start.copy()
    for views in history:
        outputs = [output for view in views for output in view]
        for p in range(len(now)):
            mean = math.fsum(float(output[p]) for output in outputs) / len(outputs)
            now[p] = momentum * now[p] + (1 - momentum) * mean
    return now
