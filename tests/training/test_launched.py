"""Two commands as a launcher starts them, here on one machine. The second one sees the images, but not the run."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from finesight.data.cache import open_cache
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.training.begin import begin_or_continue
from finesight.training.checkpoints import checkpoints
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import path_hashes, require_same_images
from processes import TINY, Command, Finished, command, refused, succeeded
from ranks import assert_same_training, in_ranks

pytestmark = pytest.mark.slow

ONE_NORM = ("--set", "backbone.frozen_norm=true")  # else each process normalizes by its own half of the batch
OPTIONS = ("--epochs", "2", *ONE_NORM, *TINY)


@pytest.fixture(scope="module")
def finished(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with checkpoints of its steps 9 and 10."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    succeeded(command("train", "--data", birds, "--out", run, "--checkpoint-minutes", "0", *OPTIONS))
    return run


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Path:
    """The same run as if it was killed before its encoder was saved."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(run / "encoder")
    return run


def misfit(checkpoint: Path) -> None:
    """It can be read, and is not of this run."""
    state = torch.load(checkpoint, weights_only=True)
    name = next(name for name, value in state["module"].items() if value.ndim > 1)
    state["module"][name] = torch.zeros(3)
    torch.save(state, checkpoint)


def launch(places: list[Path], data: Path) -> list[Finished]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        Command("train", "--data", data, "--out", out, *OPTIONS, RANK=str(rank), **meeting)
        for rank, out in enumerate(places)
    ]
    return [one.wait() for one in running]


def test_all_go_on_from_the_older_checkpoint(finished: Path, unfinished: Path, birds: Path, tmp_path: Path) -> None:
    newest = checkpoints(unfinished / "checkpoints")[-1]
    misfit(newest)
    first, second = (succeeded(done) for done in launch([unfinished, tmp_path / "none"], birds))
    assert f"{newest.name} is not a checkpoint of this run" in first.err
    assert "Continuing at step 9 of 10" in first.err
    assert second.err == ""
    assert not (tmp_path / "none").exists()
    assert_same_training(finished, unfinished)


def test_none_that_fits_stops_all(unfinished: Path, birds: Path, tmp_path: Path) -> None:
    for file in checkpoints(unfinished / "checkpoints"):
        misfit(file)
    first, second = launch([unfinished, tmp_path / "none"], birds)
    refused(first, "No checkpoint in", "--restart")
    refused(second)


# --- processes that are not given the same ----------------------------------------------------------------------------


class _OtherImages:
    """Decodes the images; on the second process, all but one."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def __call__(self, rank: int) -> str:
        source = open_source(self.data)
        cache = open_cache(source.select(np.arange(rank, len(source))), 32, progress=False)
        try:
            require_same_images(cache)
        except FineSightError as error:
            return str(error)
        return "the same"


def test_other_images_on_one_machine_stop_all(birds: Path, tmp_path: Path) -> None:
    first, second = in_ranks(_OtherImages(birds), tmp_path)
    assert "72 here, 72 on the first one" in first
    assert "71 here, 72 on the first one" in second


class _Sizes:
    """Asks for the module of the run, with as many projections as are given for each process."""

    def __init__(self, run: Path, data: Path, *projections: int) -> None:
        self.run, self.data, self.projections = run, data, projections

    def __call__(self, rank: int) -> str:
        run, runtime = RunFolder(self.run), RuntimeConfig(accelerator="cpu")
        config = build_config({**run.settings(), "rationale.projections": self.projections[rank]}, warn=False)
        cache = open_cache(open_source(self.data), 32, progress=False)
        try:
            module, _, _ = begin_or_continue(config, runtime, run, cache, len(cache), path_hashes(cache.source), None)
        except FineSightError as error:
            return str(error)
        return f"step {int(module.steps)}"


@pytest.mark.parametrize(("projections", "words"), [((4, 4), "step 10"), ((4, 5), "No checkpoint in")])
def test_what_one_process_cannot_use_none_uses(
    finished: Path, birds: Path, tmp_path: Path, projections: tuple[int, int], words: str
) -> None:
    assert all(words in said for said in in_ranks(_Sizes(finished, birds, *projections), tmp_path))
