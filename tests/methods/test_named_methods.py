"""The named systems: each one a whole configuration, with or without the rationale, beside the paper's row."""

from typing import Any

import pytest

from finesight.errors import FineSightError
from finesight.methods.base import METHODS, OBJECTIVES, find_method
from finesight.nn.poolings import find_pooling
from finesight.paper.published import TABLE_1, TABLE_3, paper_results
from finesight.training.config import build_config
from finesight.training.dotted_keys import flat

TRAINED = [name for name, entry in METHODS.items() if entry.objective is not None]
BY_BRANCH = {"lcr-dual-pooling", "moco-bilinear", "sam-ssl-bilinear"}  # their training pools by it
POOLING = {
    **dict.fromkeys(("lcr", "lcr+contrastive-crop", "lcr-mlp", "lcr-single", "byol-lcr"), "rationale-gem"),
    "lcr-dual-pooling": "rationale",
    "moco-bilinear": "bilinear",
    "sam-ssl-bilinear": "bilinear",
}


def test_every_system_of_tables_2_and_3_has_a_method_and_every_objective_one_without_rationale() -> None:
    tables, rows = paper_results(), [entry.paper for entry in METHODS.values() if entry.paper]
    assert len(rows) == len(set(rows))
    assert set(rows) >= {*tables["tab:comp_4SSL"], *tables[TABLE_3], *tables["tab:mlp_main"]}
    known = {row for name in ("tab:comp_4SSL", TABLE_1, TABLE_3, "tab:mlp_main") for row in tables[name]}
    assert set(rows) <= known
    assert {entry.objective for entry in METHODS.values() if not entry.rationale} == {None, *OBJECTIVES}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_whole_configuration(name: str) -> None:
    config = build_config({"data": "x", "method": name})
    assert find_method(name) is METHODS[name]
    assert METHODS[name].about
    assert (config.rationale is not None) == METHODS[name].rationale
    assert find_pooling(config.pooling).offered
    assert METHODS[name].rationale or not find_pooling(config.pooling).needs_branch
    assert config.pooling == POOLING.get(name, "average")
    assert config.train_pooling == {"bilinear": "bilinear", "rationale": "rationale"}.get(config.pooling, "average")


@pytest.mark.parametrize("name", [name for name in TRAINED if name not in BY_BRANCH])
def test_the_rationale_can_be_added_to_any_method_and_taken_from_it(name: str) -> None:
    with_it, without = (build_config({"data": "x", "method": name, "rationale": wanted}) for wanted in (True, False))
    assert with_it.rationale is not None
    assert with_it.pooling == ("average" if name in ("lcr-multitask", "sam-ssl") else "rationale-gem")
    assert without.rationale is None
    assert without.pooling == "average"
    assert with_it.model_copy(update={"rationale": None}) == without, "all else is the same"


@pytest.mark.parametrize("name", sorted(BY_BRANCH))
@pytest.mark.parametrize("off", [False, None])
def test_a_method_that_pools_by_the_branch_cannot_do_without_it(name: str, off: bool | None) -> None:
    with pytest.raises(FineSightError, match=r"train_pooling '(rationale|bilinear)' cannot do without a rationale"):
        build_config({"data": "x", "method": name, "rationale": off})
    averaged = build_config({"data": "x", "method": name, "rationale": off, "train_pooling": "average"})
    assert averaged.pooling == "average", "it is MoCo v2 then"


def test_crops_by_the_branch_cannot_do_without_it_either() -> None:
    focused = {"data": "x", "method": "lcr+contrastive-crop", "focus.source": "rationale"}
    assert build_config(focused).focus.source == "rationale"
    with pytest.raises(FineSightError, match=r"focus\.source 'rationale' cannot do without a rationale"):
        build_config({**focused, "rationale": False})


# --- what sets a method apart --------------------------------------------------------------------------------------

REACHES = {"rationale.encoder_gradient": 1.0, "rationale.nu": 0.01}
BILINEAR = {"train_pooling": "bilinear", "rationale.branch_norm": "batch"}
DIFFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "lcr+contrastive-crop": ("lcr", {"focus.source": "energy"}),
    "lcr-multitask": ("lcr", REACHES),
    "lcr-dual-pooling": ("lcr", {"train_pooling": "rationale"}),
    "lcr-mlp": ("lcr", {"rationale.form": "mlp"}),
    "lcr-single": ("lcr", {"rationale.projections": 1}),
    "moco-bilinear": ("lcr", {**BILINEAR, "rationale.nu": 0.0}),
    "sam-ssl": ("lcr", {**REACHES, "rationale.projections": 1}),
    "sam-ssl-bilinear": ("lcr", BILINEAR),
    "contrastive-crop": ("moco-v2", {"focus.source": "energy"}),
    "dilo": (
        "moco-v2",
        {"saliency.source": "detector", "views.paste": 0.5, "views.backdrops": [2.0, 1.0, 1.0]},
    ),
    "cvsa": (
        "moco-v2",
        {
            "saliency.source": "detector",
            "focus.source": "saliency",
            "views.second_paste": 1.0,
            "objective.alignment": 1.0,
        },
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_variant_differs_in_what_it_says_and_in_nothing_else(name: str) -> None:
    base, expected = DIFFERENCES[name]
    ours, theirs = (flat(build_config({"data": "x", "method": method})) for method in (name, base))
    ours.pop("method")
    different = {key: value for key, value in ours.items() if key not in theirs or theirs[key] != value}
    assert different == expected
    assert theirs.keys() - ours.keys() == {"method"}


def test_every_method_with_settings_is_compared() -> None:
    assert {name for name, entry in METHODS.items() if entry.settings} <= DIFFERENCES.keys()


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_settings_of_a_method_stand_on_top_of_the_variants_and_given_ones_on_top_of_both(variant: str) -> None:
    asked = {"data": "x", "method": "sam-ssl", "rationale.variant": variant}
    config = build_config(asked).rationale
    assert config is not None
    assert config.variant == variant
    assert (config.projections, config.nu, config.rectify) == (1, 0.01, "relu")
    given = build_config({**asked, "rationale.projections": 4, "rationale.nu": 0.5}).rationale
    assert given is not None
    assert (given.projections, given.nu, given.encoder_gradient) == (4, 0.5, 1.0)
    views = build_config({"data": "x", "method": "dilo", "views.paste": 0.2, "views.resolution": 112}).views
    assert (views.paste, views.resolution, views.backdrops) == (0.2, 112, (2.0, 1.0, 1.0))
    assert build_config({"data": "x", "method": "lcr-dual-pooling", "train_pooling": "average"}).pooling == "rationale"


def test_a_variant_asks_for_the_rationale_and_brings_its_projector_where_there_is_one() -> None:
    asked = {"data": "x", "rationale.variant": "paper"}
    moco = build_config({**asked, "method": "moco-v2"})
    assert moco.rationale is not None
    assert flat(moco)["objective.projector"] == "3-layer-bn"
    byol = build_config({**asked, "method": "byol"})
    assert byol.rationale is not None
    assert byol.rationale.variant == "paper"
    assert "objective.projector" not in flat(byol)


def test_settings_of_a_rationale_that_nobody_asked_for_are_refused() -> None:
    with pytest.raises(FineSightError, match=r"'byol' has no rationale, yet these were set: tau. Add --rationale"):
        build_config({"data": "x", "method": "byol", "rationale.tau": 0.2})
    with pytest.raises(FineSightError, match="'frozen' trains nothing"):
        build_config({"data": "x", "method": "frozen", "rationale": True})


def test_a_setting_of_another_method_is_named_with_all_the_others() -> None:
    with pytest.raises(FineSightError) as error:
        build_config({"data": "x", "method": "byol", "objective.queue": 64, "objective.dim": 0, "views.blurr": 1})
    assert "objective.queue (no such setting), got 64" in str(error.value)
    assert "objective.dim" in str(error.value)
    assert "views.blurr (no such setting)" in str(error.value)


# --- what the authors set, for any batch ---------------------------------------------------------------------------


def settings(name: str, **given: Any) -> dict[str, Any]:
    return flat(build_config({"data": "x", "method": name, **given}))


@pytest.mark.parametrize(
    ("name", "rule", "rate"),
    [
        ("moco-v2", "sgd", lambda batch: 0.03),
        ("lcr", "sgd", lambda batch: 0.03),
        ("simclr", "lars", lambda batch: 0.075 * batch**0.5),
        ("byol", "lars", lambda batch: 0.45 * batch / 256),
        ("byol-lcr", "lars", lambda batch: 0.45 * batch / 256),
        ("simsiam", "sgd", lambda batch: 0.05 * batch / 256),
        ("dino", "sgd", lambda batch: 0.03 * batch / 256),
        ("barlow-twins", "lars", lambda batch: 0.2 * batch / 256),
        ("vicreg", "lars", lambda batch: 0.2 * batch / 256),
        ("supervised", "sgd", lambda batch: 0.01),
    ],
)
@pytest.mark.parametrize("batch", [32, 128, 1024])
def test_rates_follow_the_batch(name: str, rule: str, rate: Any, batch: int) -> None:
    found = settings(name, batch_size=batch)
    assert found["optim.optimizer"] == rule
    assert found["optim.lr"] == pytest.approx(rate(batch))
    assert found["optim.weight_decay"] == (1e-6 if rule == "lars" else 1e-4)
    assert found["optim.lr"] * found["optim.bias_lr_ratio"] == pytest.approx(
        0.0048 * batch / 256 if name == "barlow-twins" else found["optim.lr"]
    )


@pytest.mark.parametrize(("epochs", "warm"), [(100, 10), (400, 10), (20, 2), (5, 0.5)])
def test_warm_up_is_a_tenth_and_at_most_ten_epochs(epochs: int, warm: float) -> None:
    for name in ("simclr", "byol", "dino", "barlow-twins", "vicreg"):
        assert settings(name, epochs=epochs)["optim.warmup_epochs"] == pytest.approx(warm)
    for name in ("moco-v2", "simsiam", "supervised"):
        assert settings(name, epochs=epochs)["optim.warmup_epochs"] == 0


def test_what_is_given_wins_over_what_the_authors_set() -> None:
    found = settings("byol", **{"optim.lr": 0.7, "views.blur": 0.25, "objective.momentum": 0.996})
    assert (found["optim.lr"], found["views.blur"], found["objective.momentum"]) == (0.7, 0.25, 0.996)
    assert found["views.second_blur"] == 0.1, "what is not given stays"


def test_views_of_the_methods() -> None:
    first, second = build_config({"data": "x", "method": "byol"}).views.kinds()
    assert (first.blur, first.solarize, second.blur, second.solarize) == (1.0, 0.0, 0.1, 0.2)
    dino = build_config({"data": "x", "method": "dino"}).views.kinds()
    assert [kind.resolution for kind in dino] == [224, 224, *[96] * 8]
    assert {kind.scale for kind in dino[2:]} == {(0.05, 0.14)}
    assert build_config({"data": "x", "method": "simclr"}).views.hue == 0.2
    supervised = build_config({"data": "x", "method": "supervised"}).views
    assert supervised.jitter == supervised.blur == supervised.gray == 0


# --- names ---------------------------------------------------------------------------------------------------------


def test_pooling_of_lcr_is_the_variants_and_that_of_multitask_is_fixed() -> None:
    settings = {"data": "x", "rationale.pooling": "rationale"}
    assert build_config(settings).pooling == "rationale"
    assert build_config({**settings, "method": "lcr-multitask"}).pooling == "average"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("moco", "moco-v2"), ("lrc", "lcr"), ("lcr-multi", "lcr-multitask"), ("barlow", "barlow-twins"), ("boyl", "byol")],
)
def test_unknown_name_suggests_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(FineSightError, match=f"no method '{typed}'.*{meant}"):
        find_method(typed)


def test_an_underscore_is_a_dash_and_nothing_near_lists_all() -> None:
    assert find_method("barlow_twins") is METHODS["barlow-twins"]
    with pytest.raises(FineSightError) as error:
        find_method("zzzz")
    assert all(name in str(error.value) for name in METHODS)
