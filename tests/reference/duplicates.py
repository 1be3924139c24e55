"""Near duplicates the slow way: every hash with every other, and groups by walking from image to image."""

from collections.abc import Sequence

import numpy as np
import scipy.fft
from numpy.typing import NDArray


def near_pairs(hashes: Sequence[int], distance: int) -> set[tuple[int, int]]:
    n = len(hashes)
    return {(i, j) for i in range(n) for j in range(i + 1, n) if (hashes[i] ^ hashes[j]).bit_count() <= distance}


def groups(contents: Sequence[bytes | None], hashes: Sequence[int | None], distance: int) -> list[int]:
    """For each image the smallest index that a chain of likenesses reaches."""

    def alike(i: int, j: int) -> bool:
        if contents[i] is not None and contents[i] == contents[j]:
            return True
        a, b = hashes[i], hashes[j]
        return a is not None and b is not None and (a ^ b).bit_count() <= distance

    first = [-1] * len(hashes)
    for start in range(len(hashes)):
        waiting = [start] if first[start] < 0 else []
        while waiting:
            i = waiting.pop()
            first[i] = start
            waiting += [j for j in range(len(hashes)) if first[j] < 0 and alike(i, j)]
    return first


def perceptual_hash(gray: NDArray[np.float64]) -> int:
    """(32, 32) gray levels: the 64 lowest coefficients of the DCT after the first, along the diagonals."""
    waves = scipy.fft.dctn(gray, norm="ortho")
    lowest = [waves[u, total - u] for total in range(1, 12) for u in range(total + 1)][:64]
    middle = np.median(lowest)
    return int("".join("1" if wave > middle else "0" for wave in lowest), 2)
