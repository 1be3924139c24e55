"""The rows of the bench: what each is made of exists, here and in the paper."""

import pytest

from finesight.errors import FineSightError
from finesight.methods.base import METHODS
from finesight.nn.poolings import find_pooling
from finesight.paper.published import paper_row
from finesight.paper.systems import (
    NETWORKS,
    OTHER_NETWORKS,
    OTHER_SYSTEMS,
    PROJECTIONS,
    SYSTEMS,
    UNTRAINED,
    System,
    chosen,
    network,
)
from finesight.paper.table import COMPARED, CURVE, OURS


@pytest.mark.parametrize(("name", "system"), SYSTEMS.items())
def test_a_row_is_made_of_what_there_is(name: str, system: System) -> None:
    made = NETWORKS[system.network]
    assert name.startswith(system.network)
    assert made.method is None or made.method in METHODS
    pooling = find_pooling(system.pooling)
    if pooling.mask is not None and ":" in pooling.mask:
        branch = pooling.mask.removeprefix("rationale:")
        assert branch == UNTRAINED or int(branch) in PROJECTIONS
    if pooling.needs_branch:
        assert made.method == "lcr"


def test_names_and_words_are_each_of_one_row() -> None:
    assert len({system.words for system in SYSTEMS.values()}) == len(SYSTEMS)
    assert len({(system.network, system.pooling) for system in SYSTEMS.values()}) == len(SYSTEMS)
    assert not [name for name in SYSTEMS if "," in name or " " in name], "names are given with commas"


def test_rows_of_the_paper_exist() -> None:
    named = {name: system.paper for name, system in SYSTEMS.items() if system.paper is not None}
    assert {"frozen", "moco-v2", "lcr", "lcr-multitask"} <= named.keys()
    for paper in named.values():
        row = paper_row(paper)
        assert {"retrieval", "linear"} <= row.keys()
        assert row["retrieval"]["rank1"] > 0


def test_the_curve_is_lcr_with_another_k() -> None:
    assert list(CURVE) == list(PROJECTIONS)
    for k, name in CURVE.items():
        assert SYSTEMS[name].pooling == f"rationale:{k}-gem"
        assert not SYSTEMS[name].probe
    assert {OURS, *COMPARED, *CURVE.values()} == set(SYSTEMS)


def test_the_other_systems_are_recipes_and_none_of_the_birds() -> None:
    assert not OTHER_SYSTEMS.keys() & SYSTEMS.keys()
    assert not OTHER_NETWORKS.keys() & NETWORKS.keys()
    assert OTHER_SYSTEMS.keys() == OTHER_NETWORKS.keys()
    for name, system in OTHER_SYSTEMS.items():
        entry = METHODS[OTHER_NETWORKS[name].method or ""]
        assert system.network == name
        assert system.paper == entry.paper
        assert network(name).rationale == entry.rationale
        assert system.probe
    assert list(chosen([], OTHER_SYSTEMS)) == list(OTHER_SYSTEMS)
    with pytest.raises(FineSightError, match="There is no system 'byol'"):
        chosen(["byol"])


def test_chosen_rows_keep_the_order_of_the_table() -> None:
    assert chosen([]) == SYSTEMS
    assert list(chosen(["lcr", "frozen", "lcr"])) == ["frozen", "lcr"]
    with pytest.raises(FineSightError, match=r"There is no system 'moco-v3'. Nearest: .*moco-v2"):
        chosen(["frozen", "moco-v3"])
    with pytest.raises(FineSightError, match="frozen-energy-gem"):  # nothing is near: all are named
        chosen(["§"])
