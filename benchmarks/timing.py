"""Seconds of several ways to do one thing, in turns: whatever else the machine does falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def clock() -> Callable[[], float]:
    """Return the clock that counts: with one thread the processor's, which other programs do not move."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def take_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way in every round; a round before them, which allocates, is not counted."""
    now = clock()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, run in ways.items():
            began = now()
            run()
            if turn:
                seconds[name].append(now() - began)
    return seconds


def ratio(base: list[float], values: list[float]) -> float:
    """Return how many times as long ``base`` takes: the median over the rounds."""
    return round(statistics.median(a / b for a, b in zip(base, values, strict=True)), 3)
