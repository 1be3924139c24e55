"""Every family of timm is supported, or refused with a reason that is listed here; the documentation says the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from families import HEAD, Family, family, modules
from finesight.nn.feature_map import FeatureMap, find_map
from finesight.nn.parts import find_parts

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"
REFUSED = {
    "crossvit": "gives several maps or sequences of tokens",
    "efficientvim": "gives several maps or sequences of tokens",
    "pit": "gives the class token alone",
}
UNKNOWN_PARTS: set[str] = set()
LATER_TOKENS = {"coat", "visformer"}  # they have tokens or position embeddings for each stage
SHARED = {"coat"}  # position encodings that all blocks of a stage use
RECURRENT = {"sequencer"}
# where timm's own words on the last stage are not those on the map: a head after it, or cells that overlap
OTHER_STRIDE = {"mobilenetv5"}


@pytest.fixture(scope="module")
def families() -> list[Family]:
    return [family(module) for module in modules()]


@dataclass(frozen=True)
class Walk:
    """What is seen when an image without numbers goes through the example of a family."""

    each: Family
    side: int  # of the image
    phi: torch.Size | None  # None where it would take long even without numbers
    features: int
    reduction: int
    weights: list[str]  # names of the parameters that φ needs
    tokens: set[str]  # and of those that belong to no module
    order: list[str]  # names in the order of the forward pass


@pytest.fixture(scope="module")
def walks(families: list[Family]) -> list[Walk]:
    """One for each family that has a map: building them and walking through them is what takes time here."""
    return [walk(each, each.map) for each in families if each.map is not None]


def walk(each: Family, feature_map: FeatureMap) -> Walk:
    found, order = find_map(each.example), list[str]()
    with torch.device("meta"):
        model: Any = found.build().eval()
    features, reduction = model.num_features, model.feature_info[-1]["reduction"]
    for name in found.unused:
        setattr(model, name, torch.nn.Identity())
    for name, module in model.named_modules():
        for own, _ in module.named_parameters(name, recurse=False):
            module.register_forward_hook(lambda *_, own=own: order.append(own))
    side, phi = feature_map.sides.at_least(160), None
    if each.module not in RECURRENT:
        images = torch.empty(1, 3, side, side, device="meta")
        with torch.no_grad():
            phi = feature_map(model.forward_features(images), images).shape
    tokens = {name for name, _ in model.named_parameters(recurse=False)}
    return Walk(each, side, phi, features, reduction, [n for n, _ in model.named_parameters()], tokens, order)


def test_every_family_has_a_map_or_a_reason(families: list[Family], walks: list[Walk]) -> None:
    refused = {each.module: str(each.refusal) for each in families if each.map is None}
    assert refused.keys() == REFUSED.keys()
    for module, words in REFUSED.items():
        assert words in refused[module]
    for seen in walks:
        each = seen.each
        assert each.map is not None
        assert (seen.phi is None) == (each.module in RECURRENT)
        if seen.phi is not None:
            assert seen.phi[:2] == (1, seen.features), each
            assert abs(seen.phi[2] - seen.side / each.map.stride) <= 3, each  # some drop the border
            assert seen.phi[2] == seen.phi[3] > 1, each
        if each.module not in OTHER_STRIDE:
            assert each.map.stride == seen.reduction, each


def test_the_parts_of_every_family_divide_its_weights_in_the_order_of_the_forward_pass(walks: list[Walk]) -> None:
    for walked in walks:
        each, parts = walked.each, find_parts(walked.each.example)
        assert bool(parts) != (each.module in UNKNOWN_PARTS), each
        assert sorted(name for part in parts.names for name in part) == sorted(walked.weights)
        assert len(parts) >= 4, each
        assert all(parts.names), each
        assert walked.tokens <= set(parts.names[0]) or each.module in LATER_TOKENS, each
        if each.module in RECURRENT:
            continue
        place = {name: number for number, part in enumerate(parts.names) for name in part}
        seen = [place[name] for name in walked.order]
        assert (seen[0], max(seen)) == (0, len(parts) - 1), each
        first = [seen.index(number) for number in range(len(parts))]
        assert first == sorted(first), each
        if each.module not in SHARED:
            assert seen == sorted(seen), each


def test_the_documentation_has_the_same_table(families: list[Family]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    if f"timm {timm.__version__}" not in text:
        pytest.skip("the table is of another version of timm")
    table = "\n".join([HEAD, *(each.row() for each in families)])
    assert table in text, "print the new table with `python tests/families.py`"
