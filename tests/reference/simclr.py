"""NT-Xent: every one of the 2N views looks for its partner among the 2N − 1 others."""

import math

import numpy as np
from numpy.typing import NDArray

from reference.infonce import dot

Array = NDArray[np.float64]


def nt_xent(a: Array, b: Array, temperature: float) -> Array:
    """(N,): the mean of what the two views of an image pay as anchors."""
    n, views = len(a), [*a, *b]
    paid = []
    for i, view in enumerate(views):
        partner = i + n if i < n else i - n
        similarity = {k: dot(view, other) / temperature for k, other in enumerate(views) if k != i}
        largest = max(similarity.values())
        total = math.fsum(math.exp(value - largest) for value in similarity.values())
        paid.append(largest + math.log(total) - similarity[partner])
    return np.array([(paid[i] + paid[i + n]) / 2 for i in range(n)])
