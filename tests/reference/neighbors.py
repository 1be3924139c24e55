"""Neighbors by plain loops."""

import numpy as np


def shared(one, other, k):
    """Return the share of each row's k nearest other rows in ``one`` that are also nearest in ``other``."""

    def nearest(features, i):
        lengths = np.sqrt((features.astype(np.float64) ** 2).sum(1))
        cosines = [
            (-float(features[i].astype(np.float64) @ features[j] / (lengths[i] * lengths[j])), j)
            for j in range(len(features))
            if j != i
        ]
        return {j for _, j in sorted(cosines)[:k]}

    pairs = [(nearest(one, i), nearest(other, i)) for i in range(len(one))]
    return float(np.mean([len(a & b) / len(a) for a, b in pairs]))
