"""Settings: every network of every profile can be configured, and ``paper`` is what the paper says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finesight.errors import FineSightError
from finesight.paper.benchmark import FROZEN_SEED, Benchmark
from finesight.paper.experiment import Run
from finesight.paper.profiles import PROFILES, Profile, find_profile
from finesight.paper.rows import BIRD_ROWS, BY_LARS, PROJECTIONS, TRAININGS, WITH_RATIONALE, Training
from finesight.paper.selection import find_row
from finesight.paper.store import ResultStore, settings_diff
from finesight.paper.tables import TABLES
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.dotted_keys import flat
from finesight.training.gentle import choose_settings, settings_for
from finesight.training.lengths import Circumstances

ROOT = Path(__file__).resolve().parents[2]
TRAINED = ["moco-v2", "lcr", "lcr-paper"]
OTHERS = sorted({name for table in TABLES.values() for name in table.rows} - BIRD_ROWS.keys())


def config(name: str, network: str, seed: int = 0) -> TrainConfig:
    return configure(PROFILES[name], network, seed)


def configure(profile: Profile, training: str, seed: int = 0) -> TrainConfig:
    entry = TRAININGS.get(training) or Training(training)
    return profile.config(entry, data="birds", seed=seed, given={"backbone.weights": "random"})


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("network", TRAINED)
def test_every_network_has_a_configuration(name: str, network: str) -> None:
    found = config(name, network, seed=7)
    assert found.seed == 7
    assert found.method == ("moco-v2" if network == "moco-v2" else "lcr")
    assert found.limit_classes == PROFILES[name].classes
    assert found.validation.fraction == 0, "every train image is trained on, as in the paper"
    assert (found.rationale is not None) == (network != "moco-v2")


@pytest.mark.parametrize("name", PROFILES)
def test_the_networks_of_a_profile_differ_in_the_rationale_only(name: str) -> None:
    moco, lcr = config(name, "moco-v2"), config(name, "lcr")
    assert lcr.model_copy(update={"method": "moco-v2", "rationale": None}) == moco
    assert lcr.rationale is not None
    assert lcr.rationale.study == PROJECTIONS
    assert lcr.rationale.projections not in PROJECTIONS, "the row LCR is its own point of the curve"
    literal = config(name, "lcr-paper").rationale
    assert literal is not None
    assert literal.variant == "paper"
    assert literal.study == ()


@pytest.mark.parametrize("name", PROFILES)
def test_probed_rows_exist_and_hold_what_the_claims_need(name: str) -> None:
    rows = {name_ for name_, row in BIRD_ROWS.items() if PROFILES[name].probes(name_, row)}
    assert rows >= set(PROFILES[name].probed or ())
    assert rows >= {"frozen", "frozen-energy", "frozen-gem", "moco-v2", "moco-v2-energy-gem", "lcr", "lcr-paper"}


@pytest.mark.parametrize("name", PROFILES)
def test_names_and_seeds(name: str) -> None:
    seeds = PROFILES[name].seeds
    assert PROFILES[name].name == name
    assert FROZEN_SEED in seeds, "else its frozen rows were never scored"
    assert len(set(seeds)) == len(seeds)
    assert len(seeds) >= 3 or name == "smoke", "one seed is chance"


@pytest.mark.parametrize("network", TRAINED)
def test_the_paper_profile_is_what_the_paper_says(network: str) -> None:
    found = config("paper", network)
    assert found.encoder_resolution == 224
    expected = {
        "backbone.name": "resnet50",
        "backbone.freeze": 0,
        "backbone.frozen_norm": False,
        "views.resolution": 224,
        "epochs": 100,
        "batch_size": 128,
        "objective.queue": 65536,
        "objective.momentum": 0.999,
        "objective.temperature": 0.2,
        "optim.lr": 0.03,
        "optim.momentum": 0.9,
        "optim.weight_decay": 1e-4,
        "limit_classes": None,
        "limit_images": None,
    }
    settings = flat(found)
    assert {key: settings[key] for key in expected} == expected


# --- the other systems of the paper's tables --------------------------------------------------------------------------

SAME = ("epochs", "batch_size", "limit_classes", "backbone", "test_resolution", "initial_weight_ratio", "validation")
VIEWS = ("resolution", "saturation", "hue", "gray")


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("network", OTHERS)
def test_every_row_of_the_tables_sees_what_moco_sees_as_long_as_it_does(name: str, network: str) -> None:
    moco, found = config(name, "moco-v2"), config(name, network)
    assert found.method == ("lcr-multitask" if network == "multitask" else network)
    assert found.pooling == find_row(network).pooling
    assert [getattr(found, key) for key in SAME] == [getattr(moco, key) for key in SAME]
    assert found.views.resolution == moco.views.resolution
    assert found.optim.freeze_epochs == moco.optim.freeze_epochs
    if name != "paper":  # there the views are the method's own
        assert [getattr(found.views, key) for key in VIEWS] == [getattr(moco.views, key) for key in VIEWS]
    assert PROFILES[name].probes(network, find_row(network)), "the tables show little else"


@pytest.mark.parametrize("name", ["cpu-50", "paper"])
def test_other_objectives_keep_their_authors_optimizer(name: str) -> None:
    batch = PROFILES[name].settings["batch_size"]
    byol, simsiam, supervised, dino = (config(name, network) for network in ("byol", "simsiam", "supervised", "dino"))
    assert (byol.optim.optimizer, byol.optim.lr) == ("lars", pytest.approx(0.45 * batch / 256))
    assert (simsiam.optim.optimizer, simsiam.optim.lr) == ("sgd", pytest.approx(0.05 * batch / 256))
    assert (supervised.optim.lr, supervised.optim.backbone_lr_ratio) == (0.01, 0.1)
    assert dino.optim.lr == pytest.approx(0.03 * batch / 256)
    assert config(name, "cvsa").optim == config(name, "moco-v2").optim
    assert config(name, "lewel").optim == config(name, "moco-v2").optim


def test_a_twin_follows_as_fast_as_a_short_training_needs() -> None:
    momenta = {
        network: config("cpu-50", network).objective.momentum for network in ("moco-v2", "lewel", "byol", "dino")
    }
    assert set(momenta.values()) == {0.99}
    assert config("paper", "dino").objective.momentum == 0.9995
    assert config("paper", "lewel").objective.momentum == 0.999
    assert config("cpu-50", "lewel").objective.queue == config("cpu-50", "cvsa").objective.queue == 750


def test_a_misspelled_setting_is_not_dropped_as_another_methods() -> None:
    settings = {"objective.qeue": 5, "epochs": 1}
    assert settings_for(settings, "lcr") == settings
    assert settings_for(settings, "byol") == {"epochs": 1}
    with pytest.raises(FineSightError, match=r"objective.qeue \(no such setting\)"):
        configure(Profile(name="odd", words="", settings=settings), "lcr")


def test_what_a_recipe_says_of_its_rationale_stands() -> None:
    odd = Profile(name="odd", words="", settings={}, rationale={"rationale.nu": 0.5, "rationale.tau": 0.3})
    multitask, lcr = (configure(odd, name).rationale for name in ("multitask", "lcr"))
    assert multitask is not None
    assert lcr is not None
    assert (multitask.nu, multitask.tau, multitask.encoder_gradient, multitask.study) == (0.01, 0.3, 1.0, ())
    assert (lcr.nu, lcr.tau, lcr.study) == (0.5, 0.3, PROJECTIONS)


def test_facts_say_what_the_configuration_has() -> None:
    found = config("cpu-50", "lcr")
    facts = PROFILES["cpu-50"].facts(found, 123)
    assert facts["name"] == "cpu-50"
    assert facts["queue"] == 123
    assert (facts["epochs"], facts["batch"], facts["lr"]) == (found.epochs, found.batch_size, found.optim.lr)
    assert json.loads(json.dumps(facts)) == facts


def test_an_unknown_profile_or_setting_is_named() -> None:
    with pytest.raises(
        FineSightError,
        match=r"There is no profile 'gpu'. There are: cpu-50, cpu-200, cpu-200-320px, cpu-200-resnet18, paper",
    ):
        find_profile("gpu")
    odd = Profile(name="odd", words="", settings={"epoch": 3})
    with pytest.raises(FineSightError, match="epoch"):
        configure(odd, "lcr")


@pytest.mark.parametrize("name", ["cpu-50", "cpu-200", "cpu-200-320px", "cpu-200-resnet18"])
def test_committed_results_are_of_the_profile_as_it_is(name: str) -> None:
    store = ResultStore(ROOT / "results" / "cub" / name)
    for seeds in store.read().values():
        for result in seeds.values():
            bench = Benchmark(
                command="birds",
                profile=PROFILES[name],
                data=Path("CUB_200_2011"),
                weights=result["settings"]["backbone.weights"],
                runs=Path("runs"),
                store=store,
                runtime=RuntimeConfig(),
            )
            assert settings_diff(result["settings"], bench.settings(result["network"])) == [], result["command"]


@pytest.mark.parametrize("profile", ["cpu-50", "cpu-200"])
@pytest.mark.parametrize(("plain", "more"), WITH_RATIONALE.items())
def test_one_training_gives_an_objective_with_and_without_the_rationale(profile: str, plain: str, more: str) -> None:
    job = Benchmark(
        command="table2",
        profile=PROFILES[profile],
        data=Path("CUB_200_2011"),
        weights="random",
        runs=Path("runs"),
        store=ResultStore(Path("nowhere")),
        runtime=RuntimeConfig(),
    )
    assert job.run(plain, 0) == job.run(more, 0) == Run(more, 0)
    apart = replace(job, profile=job.profile.model_copy(update={"rationale": {"rationale.encoder_gradient": 0.1}}))
    assert apart.run(plain, 0) == Run(plain, 0), "the branch reaches the encoder: two trainings"


@pytest.mark.parametrize("name", BY_LARS)
def test_the_gentle_optimizer_is_that_of_the_gentle_preset(name: str) -> None:
    """And nothing else differs."""
    plain, gentle = (flat(config("cpu-200", training)) for training in (name, f"{name}-gentle"))
    changed = {key for key in plain if plain[key] != gentle[key]}
    assert changed <= {"optim.backbone_lr_ratio", "optim.bias_lr_ratio"}
    assert changed
    there = Circumstances(images=5994, pretrained=True)
    preset = choose_settings({"method": name, "batch_size": 32, "epochs": 2}, there, "gentle")
    assert {key: preset[key].value for key in changed} == {key: gentle[key] for key in changed}
