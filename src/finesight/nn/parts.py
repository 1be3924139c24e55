"""The parts of a timm model in the order of its forward pass: the stem, then its stages or blocks.

timm's own grouping (``group_matcher``) says which parameters belong together. What is called after a part never belongs
to an earlier one, so freezing the first parts freezes the beginning of the forward pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from timm.models import group_parameters
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from finesight.nn.feature_map import find_map

_PROJECTION = "qkv?|kv?|v|query|proj|[qkvo]_proj|out_proj"  # names of the layers of an attention


@dataclass(frozen=True)
class Parts:
    """What is known of a model without its weights."""

    names: tuple[tuple[str, ...], ...]  # of the parameters of each part; none if no stages are known
    kind: Literal["blocks", "stages"]  # what follows the stem
    attention: tuple[str, ...]  # the linear layers that project queries, keys, values and the output of attention
    transformer: bool  # most of its stages have attention
    batch_norms: bool
    parameters: int

    def __len__(self) -> int:
        return len(self.names)

    @property
    def words(self) -> str:
        """Return "a stem and 12 blocks"."""
        return f"a stem and {len(self) - 1} {self.kind}"


@cache
def find_parts(name: str) -> Parts:
    """Return the parts of a timm model that has a feature map.

    Position embeddings, class tokens and registers belong to the stem, final norms to the last part. A plain vision
    transformer's stages are its blocks.
    """
    ghost = find_map(name).ghost()
    parameters = dict(ghost.named_parameters())
    groups = _in_forward_order(ghost, _merge_tail(ghost, _groups(ghost)))
    names: list[tuple[str, ...]] = []
    for group in sorted(set(groups.values())):
        part = tuple(each for each in parameters if groups[each] == group)
        if len(names) > 1 and all(parameters[each].ndim < 2 for each in part):  # a norm alone is no part
            names[-1] += part
        else:
            names.append(part)
    stages, attention = names[1:], _attention(ghost)
    within = [[each for each in attention if any(own.startswith(f"{each}.") for own in stage)] for stage in stages]
    plain = all(within) and all(map(_is_block, stages[:-1], within[:-1]))  # class attention may follow the last block
    return Parts(
        names=tuple(names) if stages else (),
        kind="blocks" if stages and plain else "stages",
        attention=tuple(_projections(ghost, attention)),
        transformer=2 * sum(map(bool, within)) > len(stages),
        batch_norms=any(isinstance(module, _BatchNorm) for module in ghost.modules()),
        parameters=sum(each.numel() for each in parameters.values()),
    )


def _groups(ghost: Any) -> dict[str, int]:
    """Return the group of each parameter: timm's, or by the numbers in the list that holds the last stage."""
    try:
        groups: dict[str, int] = group_parameters(ghost, ghost.group_matcher(coarse=True), reverse=True)
        return groups
    except (AttributeError, AssertionError):  # some models have none, or not a coarse one
        stages = _last_stage(ghost).rpartition(".")[0]
        numbers = {each: re.match(rf"{stages}\.(\d+)\.", each) for each, _ in ghost.named_parameters()}
        return {each: 1 + int(number[1]) if number and stages else 0 for each, number in numbers.items()}


def _last_stage(ghost: Any) -> str:
    stages = getattr(ghost, "feature_info", None) or [{"module": ""}]
    name: str = stages[-1]["module"]
    return name


def _merge_tail(ghost: Any, groups: dict[str, int]) -> dict[str, int]:
    """Add what follows the last stage and is not called as stages are (final norms, a neck) to it."""
    tops: dict[int, set[str]] = {}
    for each, group in groups.items():
        tops.setdefault(group, set()).add(re.sub(r"\d+$", "", each.split(".")[0]))
    last = max((group for each, group in groups.items() if each.startswith(f"{_last_stage(ghost)}.")), default=None)
    if last is None:
        return groups
    tail = {group for group, names in tops.items() if group > last and not names & tops[last]}
    return {each: last if group in tail else group for each, group in groups.items()}


def _in_forward_order(ghost: Any, groups: dict[str, int]) -> dict[str, int]:
    """Raise the groups of modules that are called after a later group: they belong to that one."""
    names = {module: name for name, module in ghost.named_modules()}
    raised, reached = dict(groups), 0
    for module in ghost.called:
        own = [f"{names[module]}.{name}" for name, _ in module.named_parameters(recurse=False)]
        for each in own:
            reached = raised[each] = max(reached, groups[each])
    return raised


def _is_block(stage: tuple[str, ...], attention: list[str]) -> bool:
    """Return whether a stage is one transformer block: one attention, and all weights beside it."""
    block = f"{attention[0].rpartition('.')[0]}."
    return len(attention) == 1 and all(name.startswith(block) for name in stage)


def _attention(ghost: Any) -> list[str]:
    """Return the names of the modules that compute attention: they have heads and projections."""
    found = [
        name
        for name, module in ghost.named_modules()
        if name and (hasattr(module, "num_heads") or hasattr(module, "heads"))
        if any(re.fullmatch(_PROJECTION, child) for child, _ in module.named_children())
    ]
    return [name for name in found if not any(other.startswith(f"{name}.") for other in found)]


def _projections(ghost: Any, attention: list[str]) -> list[str]:
    """Return linear layers that are called: some models read the weights of one without calling it."""
    inside = "|".join(map(re.escape, attention))
    pattern = re.compile(rf"({inside})\.({_PROJECTION})(\.(ln|linear))*")
    return [
        name
        for name, module in ghost.named_modules()
        if isinstance(module, nn.Linear) and module in ghost.called and attention and pattern.fullmatch(name)
    ]
