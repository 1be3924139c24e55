"""Settings: every network of every profile can be configured, and ``paper`` is what the paper says."""

import json
from pathlib import Path

import pytest

from finesight.bench.birds import FROZEN_SEED, Bench
from finesight.bench.networks import changed
from finesight.bench.profiles import PROFILES, Profile, profile
from finesight.bench.results import ResultFiles
from finesight.bench.systems import NETWORKS, PROJECTIONS, SYSTEMS
from finesight.config import RuntimeConfig, TrainConfig
from finesight.errors import FineSightError

ROOT = Path(__file__).resolve().parents[2]
TRAINED = [name for name, network in NETWORKS.items() if network.method is not None]


def config(name: str, network: str, seed: int = 0) -> TrainConfig:
    return PROFILES[name].config(network, data="birds", weights="random", seed=seed)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("network", TRAINED)
def test_every_network_has_a_configuration(name: str, network: str) -> None:
    found = config(name, network, seed=7)
    assert found.seed == 7
    assert found.method == NETWORKS[network].method
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
    assert literal.reading == "paper"
    assert literal.study == ()


@pytest.mark.parametrize("name", PROFILES)
def test_probed_rows_exist_and_hold_what_the_claims_need(name: str) -> None:
    rows = {row for row, system in SYSTEMS.items() if PROFILES[name].probes(row, system)}
    assert rows >= set(PROFILES[name].probed or ())
    assert rows >= {"frozen", "frozen-energy", "frozen-gem", "moco-v2", "moco-v2-energy-gem", "lcr", "lcr-paper"}


@pytest.mark.parametrize("name", PROFILES)
def test_names_and_seeds(name: str) -> None:
    assert PROFILES[name].name == name
    assert FROZEN_SEED in PROFILES[name].seeds, "else its frozen rows were never scored"
    assert len(set(PROFILES[name].seeds)) == len(PROFILES[name].seeds) >= 3


@pytest.mark.parametrize("network", TRAINED)
def test_the_paper_profile_is_what_the_paper_says(network: str) -> None:
    found = config("paper", network)
    assert found.backbone.name == "resnet50"
    assert found.views.resolution == found.encoder_resolution == 224
    assert found.epochs == 100
    assert found.batch == 128
    assert found.objective.queue == 65536
    assert found.objective.momentum == 0.999
    assert found.objective.temperature == 0.2
    assert found.optim.lr == 0.03
    assert found.optim.momentum == 0.9
    assert found.optim.weight_decay == 1e-4
    assert found.backbone.freeze == 0
    assert not found.backbone.frozen_norm
    assert found.limit_classes is None
    assert found.limit_images is None


def test_facts_say_what_the_configuration_has() -> None:
    found = config("cpu-50", "lcr")
    facts = PROFILES["cpu-50"].facts(found, 123)
    assert facts["name"] == "cpu-50"
    assert facts["queue"] == 123
    assert (facts["epochs"], facts["batch"], facts["lr"]) == (found.epochs, found.batch, found.optim.lr)
    assert json.loads(json.dumps(facts)) == facts


def test_an_unknown_profile_or_setting_is_named() -> None:
    with pytest.raises(FineSightError, match=r"There is no profile 'gpu'. There are: cpu-50, cpu-200, paper"):
        profile("gpu")
    odd = Profile(name="odd", words="", settings={"epoch": 3})
    with pytest.raises(FineSightError, match="epoch"):
        odd.config("lcr", data="birds", weights="random", seed=0)


@pytest.mark.parametrize("name", PROFILES)
def test_committed_results_are_of_the_profile_as_it_is(name: str) -> None:
    files = ResultFiles(ROOT / "results" / "cub" / name)
    found = files.read()
    if not found:
        pytest.skip(f"no results in {files.folder}")
    for seeds in found.values():
        for result in seeds.values():
            weights = result["settings"]["backbone.weights"]
            bench = Bench(PROFILES[name], Path("CUB_200_2011"), weights, Path("runs"), files, RuntimeConfig())
            assert changed(result["settings"], bench.settings(result["network"])) == [], result["command"]
