"""Barrier distances, backgroundness and contrast, pixel by pixel."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def neighbors(y: int, x: int, height: int, width: int) -> list[tuple[int, int]]:
    near = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
    return [(v, u) for v, u in near if 0 <= v < height and 0 <= u < width]


def on_border(y: int, x: int, height: int, width: int) -> bool:
    return y in (0, height - 1) or x in (0, width - 1)


def swept(channel: NDArray[np.float32], rounds: int) -> NDArray[np.float32]:
    """(H, W): each pixel looks back at the one its sweep (down, up, right, left) came from."""
    height, width = channel.shape
    path = {
        at: (channel[at], channel[at]) if on_border(*at, height, width) else None for at in np.ndindex(height, width)
    }

    def look_back(y: int, x: int, v: int, u: int) -> None:
        if not (0 <= v < height and 0 <= u < width) or path[v, u] is None:
            return
        high, low = max(path[v, u][0], channel[y, x]), min(path[v, u][1], channel[y, x])
        if path[y, x] is None or high - low < path[y, x][0] - path[y, x][1]:
            path[y, x] = (high, low)

    for _ in range(rounds):
        for dy, dx in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            for y in range(height)[:: dy or 1]:
                for x in range(width)[:: dx or 1]:
                    look_back(y, x, y - dy, x - dx)
    return np.array([[path[y, x][0] - path[y, x][1] for x in range(width)] for y in range(height)])


def exact(channel: Array) -> Array:
    """(H, W): for every range of values flood the image from the border; the narrowest that reaches a pixel counts."""
    distance = np.full(channel.shape, np.inf)
    levels = sorted(set(channel.flat))
    for low in levels:
        for high in levels:
            for at in flooded(channel, low, high):
                distance[at] = min(distance[at], high - low)
    return distance


def flooded(channel: Array, low: float, high: float) -> set[tuple[int, int]]:
    height, width = channel.shape
    waiting = [at for at in np.ndindex(height, width) if on_border(*at, height, width) and low <= channel[at] <= high]
    reached = set(waiting)
    while waiting:
        for at in neighbors(*waiting.pop(), height, width):
            if at not in reached and low <= channel[at] <= high:
                reached.add(at)
                waiting.append(at)
    return reached


def backgroundness(lab: Array, strip: float, spread: float) -> Array:
    """(3, H, W) -> (H, W): Mahalanobis distance to each border strip, scaled to 1; their sum less the largest."""
    _, height, width = lab.shape
    tall, wide = max(1, round(height * strip)), max(1, round(width * strip))
    inside = [
        lambda y, x: y < tall,
        lambda y, x: y >= height - tall,
        lambda y, x: x < wide,
        lambda y, x: x >= width - wide,
    ]
    maps = []
    for belongs in inside:
        sample = [lab[:, y, x] for y, x in np.ndindex(height, width) if belongs(y, x)]
        mean = sum(sample) / len(sample)
        covariance = sum(np.outer(c - mean, c - mean) for c in sample) / len(sample)
        inverse = np.linalg.inv(covariance + spread * np.eye(3))
        distance = np.zeros((height, width))
        for y, x in np.ndindex(height, width):
            distance[y, x] = math.sqrt((lab[:, y, x] - mean) @ inverse @ (lab[:, y, x] - mean))
        maps.append(distance / max(distance.max(), 1e-6))
    return sum(maps) - np.maximum.reduce(maps)


def contrasted(values: Array, slope: float) -> Array:
    """(H, W): 0 at the least, 1 at the mean of all that exceed twice the mean, and a sigmoid between."""

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-slope * (value - 0.5)))

    low, high = min(values.flat), max(values.flat)
    stretched = (values - low) / max(high - low, 1e-6)
    above = [v for v in stretched.flat if v > 2 * stretched.mean()]
    level = sum(above) / len(above) if above else 1.0
    result = np.zeros_like(values)
    for at in np.ndindex(*values.shape):
        result[at] = (sigmoid(min(1.0, stretched[at] / level)) - sigmoid(0)) / (sigmoid(1) - sigmoid(0))
    return result


def auc(values: Array, positive: NDArray[np.bool_], negative: NDArray[np.bool_]) -> float:
    """How often a positive pixel has the higher value, ties counting half."""
    others = np.sort(values[negative])
    wins = [(np.searchsorted(others, v, "left") + np.searchsorted(others, v, "right")) / 2 for v in values[positive]]
    return float(np.mean(wins) / len(others))
