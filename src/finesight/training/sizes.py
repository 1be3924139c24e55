"""Image sizes that the network takes: a vision transformer's are multiples of its patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finesight.errors import FineSightError
from finesight.nn.feature_map import ANY_SIDE, Sides, find_map
from finesight.training.config import TrainConfig, build_config
from finesight.training.lengths import Choice, Choices

_OPTIONS = {"views.resolution": "--resolution", "test_resolution": "--test-resolution"}


def fit_sizes(given: Mapping[str, Any], chosen: Choices) -> Choices:
    """Return the choices with the nearest sizes that the network takes where it does not take those of the settings.

    A size that is ``given`` is never changed: one that the network does not take is a FineSightError, and so is a
    network that cannot be used.
    """
    config = build_config({**{key: choice.value for key, choice in chosen.items()}, **given}, warn=False)
    name = config.backbone.name
    sides = find_map(name, config.backbone.output_stride).map.sides
    if sides == ANY_SIDE:
        return chosen
    fitted: Choices = {}
    for key, pixels in _sizes(config, sides).items():
        if sides.take(pixels):
            continue
        if key in given:
            raise FineSightError(f"{_OPTIONS.get(key, key)} {pixels}: {sides.problem(name, pixels)}")
        fitted[key] = Choice(sides.nearest(pixels), f"{name} takes {sides.words}: the nearest to {pixels} px")
    return {**chosen, **fitted}


def describe_sizes(config: TrainConfig) -> str | None:
    """Return a line about the sizes of a network that does not take all, for people."""
    sides = find_map(config.backbone.name, config.backbone.output_stride).map.sides
    if sides == ANY_SIDE:
        return None
    trained, used = config.views.resolution, config.encoder_resolution
    return f"{config.backbone.name} takes {sides.words}: it is trained at {trained} px and used at {used} px."


def _sizes(config: TrainConfig, sides: Sides) -> dict[str, int]:
    """Return every size of the settings; that of local crops by default follows that of the views."""
    views = config.views
    sizes = {"views.resolution": views.resolution}
    if config.test_resolution is not None:
        sizes["test_resolution"] = config.test_resolution
    if views.local_crops:
        whole = views.model_copy(update={"resolution": sides.nearest(views.resolution)})
        sizes["views.local_resolution"] = whole.local_side
    return sizes
