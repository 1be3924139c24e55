"""Which process of a training this is, as torchrun, Slurm and Kubernetes tell it by variables."""

from __future__ import annotations

import pytest

from finesight.errors import FineSightError
from finesight.training.cluster import find_launch, is_main_process, launched
from finesight.training.config import RuntimeConfig

SECOND_MACHINE = {
    "torchrun": {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    },
    "slurm": {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_LOCALID": "0"},
    "kubernetes": {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
}
ALL = sorted({name for variables in SECOND_MACHINE.values() for name in variables} | {"NODE_RANK", "SLURM_JOB_NAME"})


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=sorted(SECOND_MACHINE))
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in SECOND_MACHINE[request.param].items():
        monkeypatch.setenv(name, value)
    return str(request.param)


def test_the_first_process_of_another_machine_is_not_the_first_of_all(launcher: str) -> None:
    launch = find_launch()
    assert launch is not None
    assert (launch.rank, launch.processes) == (2, 4)
    assert not is_main_process()


def test_the_launcher_says_how_many_there_are(launcher: str) -> None:
    runtime = launched(RuntimeConfig())
    assert (runtime.devices, runtime.nodes) == ((1, 4) if launcher == "kubernetes" else (2, 2))
    assert launched(RuntimeConfig(devices=2, nodes=2)).devices * runtime.nodes >= 4
    with pytest.raises(FineSightError, match="leave the options out"):
        launched(RuntimeConfig(devices=8))


def test_variables_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    with pytest.raises(FineSightError, match="ntasks-per-node"):
        find_launch()
    monkeypatch.setenv("SLURM_NTASKS", "two")
    with pytest.raises(FineSightError, match="not a number"):
        find_launch()


def test_by_hand_there_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_launch() is None
    assert is_main_process()
    monkeypatch.setenv("LOCAL_RANK", "1")  # by Lightning, with --devices 2
    assert find_launch() is None
    assert not is_main_process()
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert find_launch() is None
