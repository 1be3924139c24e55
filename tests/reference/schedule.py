"""The learning rate of a whole run, listed step by step."""

import math


def rates(steps_per_epoch: int, epochs: int, warmup_epochs: int, every: str, floor: float = 0.0) -> list[float]:
    """Share of the base rate at each step: a straight climb that arrives after the warm-up, then half a cosine that
    goes from all of it to ``floor``."""
    listed = []
    climb = warmup_epochs * steps_per_epoch
    for epoch in range(epochs):
        for position in range(steps_per_epoch):
            step = epoch * steps_per_epoch + position
            if epoch < warmup_epochs:
                listed.append((step + 1) / (climb + 1))
                continue
            done = epoch - warmup_epochs + (position / steps_per_epoch if every == "step" else 0)
            middle, swing = (1 + floor) / 2, (1 - floor) / 2
            listed.append(middle + swing * math.cos(math.pi * done / (epochs - warmup_epochs)))
    return listed
