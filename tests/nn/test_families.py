"""Every family of timm is supported, or refused with a reason that is listed here; the documentation says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from families import HEAD, Family, family, modules
from finesight.nn.feature_map import find_map
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
# where timm's own words on the last stage are not those on the map: a head after it, or cells that overlap
OTHER_STRIDE = {"mobilenetv5"}


@pytest.fixture(scope="module")
def families() -> list[Family]:
    return [family(module) for module in modules()]


def test_every_family_has_a_map_or_a_reason(families: list[Family]) -> None:
    refused = {each.module: str(each.refusal) for each in families if each.map is None}
    assert refused.keys() == REFUSED.keys()
    for module, words in REFUSED.items():
        assert words in refused[module]
    for each in families:
        if each.map is None:
            continue
        found = find_map(each.example)
        with torch.device("meta"):
            model = found.build().eval()
        side = each.map.sides.at_least(160)
        images = torch.empty(1, 3, side, side, device="meta")
        if each.module != "sequencer":  # recurrent: it takes long even without numbers
            phi = each.map(model.forward_features(images), images)
            assert phi.shape[:2] == (1, model.num_features), each
            assert abs(phi.shape[2] - side / each.map.stride) <= 3, each  # some drop the border
            assert phi.shape[2] == phi.shape[3] > 1, each
        if each.module not in OTHER_STRIDE:
            assert each.map.stride == model.feature_info[-1]["reduction"], each


def test_the_parts_of_every_family_divide_its_weights_in_the_order_of_the_forward_pass(families: list[Family]) -> None:
    for each in families:
        if each.map is None:
            continue
        found, parts = find_map(each.example), find_parts(each.example)
        assert bool(parts) != (each.module in UNKNOWN_PARTS), each
        with torch.device("meta"):
            model = found.build().eval()
        for name in found.unused:
            setattr(model, name, torch.nn.Identity())
        assert sorted(name for part in parts.names for name in part) == sorted(n for n, _ in model.named_parameters())
        assert len(parts) >= 4, each
        assert all(parts.names), each
        tokens = {name for name, _ in model.named_parameters(recurse=False)}
        assert tokens <= set(parts.names[0]) or each.module in LATER_TOKENS, each
        if each.module == "sequencer":  # recurrent: it takes long even without numbers
            continue
        seen = parts_in_order(model, parts.names, each.map.sides.at_least(160))
        assert (seen[0], max(seen)) == (0, len(parts) - 1), each
        first = [seen.index(number) for number in range(len(parts))]
        assert first == sorted(first), each
        if each.module not in SHARED:
            assert seen == sorted(seen), each


def parts_in_order(model: Any, parts: tuple[tuple[str, ...], ...], side: int) -> list[int]:
    """The parts of the modules with weights, in the order in which an image goes through them."""
    place = {name: number for number, part in enumerate(parts) for name in part}
    seen: list[int] = []
    for name, module in model.named_modules():
        for own, _ in module.named_parameters(name, recurse=False):
            module.register_forward_hook(lambda *_, number=place[own]: seen.append(number))
    model.forward_features(torch.empty(1, 3, side, side, device="meta"))
    return seen


def test_the_documentation_has_the_same_table(families: list[Family]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    if f"timm {timm.__version__}" not in text:
        pytest.skip("the table is of another version of timm")
    table = "\n".join([HEAD, *(each.row() for each in families)])
    assert table in text, "print the new table with `python tests/families.py`"
