from typing import get_args

import pytest

from finesight.config import build_config
from finesight.errors import FineSightError
from finesight.methods.recipes import RECIPES, recipe
from finesight.nn.pooling import uses_rationale
from finesight.nn.pooling_config import PoolingName


def test_the_systems_of_the_paper() -> None:
    assert {name: (r.rationale, r.pooling) for name, r in RECIPES.items()} == {
        "lcr": (True, None),
        "lcr-multitask": (True, "average"),
        "moco-v2": (False, "average"),
    }


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_whole_configuration(name: str) -> None:
    config = build_config({"data": "x", "method": name})
    assert recipe(name) is RECIPES[name]
    assert RECIPES[name].about
    assert (config.rationale is not None) == RECIPES[name].rationale
    assert config.pooling in get_args(PoolingName)
    assert RECIPES[name].rationale or not uses_rationale(config.pooling)
    assert config.pooling == {"lcr": "rationale-gem"}.get(name, "average")


def test_pooling_of_lcr_is_the_readings_and_that_of_the_others_is_fixed() -> None:
    settings = {"data": "x", "rationale.pooling": "rationale"}
    assert build_config(settings).pooling == "rationale"
    assert build_config({**settings, "method": "lcr-multitask"}).pooling == "average"


@pytest.mark.parametrize(("typed", "meant"), [("moco", "moco-v2"), ("lrc", "lcr"), ("lcr-multi", "lcr-multitask")])
def test_unknown_name_suggests_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(FineSightError, match=f"no method '{typed}'.*{meant}"):
        recipe(typed)


def test_nothing_near_lists_all() -> None:
    with pytest.raises(FineSightError) as error:
        recipe("zzzz")
    assert all(name in str(error.value) for name in RECIPES)
