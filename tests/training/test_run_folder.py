"""The rules of a run folder: continued by the same command, never mixed with another run, never another's lost."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from finesight.errors import FineSightError
from finesight.training.config import TrainConfig, build_config
from finesight.training.run_folder import RunFolder
from processes import TINY, Command, command, refused, rows, succeeded, trained

pytestmark = pytest.mark.slow


def config(**settings: object) -> TrainConfig:
    return build_config({"data": "birds", "method": "moco-v2", **settings})


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below, with the bytes of files."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def enter(root: Path, settings: TrainConfig, *, restart: bool = False) -> RunFolder:
    run = RunFolder(root)
    with run.locked():
        run.enter(settings, restart=restart)
    return run


# --- what a user sees -------------------------------------------------------------------------------------------------


def test_a_finished_run_has_nothing_to_do(lcr: Path, birds: Path) -> None:
    before = contents(lcr)
    done = succeeded(command("train", "--data", birds, "--out", lcr, "--epochs", "2", *TINY))
    assert "finished: nothing to do" in done.err
    assert contents(lcr) == before


def test_another_configuration_is_refused_with_the_differences(lcr: Path, birds: Path) -> None:
    before = contents(lcr)
    done = command("train", "--data", birds, "--out", lcr, "--epochs", "3", "--lr", "0.5", *TINY)
    message = refused(done, "another configuration", "epochs: 2 there, 3 now", "optim.lr: 0.03 there, 0.5 now")
    assert message.count(" there, ") == 2, "what is the same is not listed"
    assert "--restart" in message
    assert contents(lcr) == before


def test_restart_begins_anew_and_keeps_what_is_not_the_runs(lcr_copy: Path, birds: Path) -> None:
    (lcr_copy / "my notes.txt").write_text("keep me")
    (lcr_copy / "evaluation.json").write_text("{}")
    trained_before = (lcr_copy / "encoder" / "encoder.safetensors").read_bytes()
    options = ("--data", birds, "--out", lcr_copy, "--epochs", "1", "--seed", "5", *TINY)
    refused(command("train", *options), "seed: 0 there, 5 now")
    succeeded(command("train", *options, "--restart"))
    assert [row["step"] for row in rows(lcr_copy)] == ["0", "1", "2", "3", "4"]
    assert (lcr_copy / "encoder" / "encoder.safetensors").read_bytes() != trained_before
    assert [p.name for p in (lcr_copy / "checkpoints").iterdir()] == ["step-00000005.pt"]
    assert not (lcr_copy / "evaluation.json").exists(), "the scores were the old run's"
    assert (lcr_copy / "report.html").exists()
    assert (lcr_copy / "my notes.txt").read_text() == "keep me"
    assert "nothing to do" in succeeded(command("train", *options)).err


def test_two_at_once(birds: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--data", birds, "--out", out, "--epochs", "4", *TINY)
    first = Command("train", *options)
    first.until(lambda: len(rows(out)) >= 1)
    first.send(signal.SIGSTOP)  # however slow the others are: it is at work all the time
    refused(command("train", *options), "Another process is training in", "another --out")
    refused(command("train", *options, "--restart"), "Another process is training in")
    (out / "report.html").touch()
    first.send(signal.SIGCONT)
    succeeded(first.wait())
    assert len(rows(out)) == 20


# --- folders that are not a run's -------------------------------------------------------------------------------------


def theirs(folder: Path) -> dict[str, bytes | None]:
    """Someone's work, with names a run uses too."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000001.pt").write_bytes(b"months of work")
    (folder / "encoder").mkdir()
    (folder / "encoder" / "thesis.txt").write_text("the only copy")
    (folder / "report.html").write_text("<p>mine</p>")
    return contents(folder)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("own_config", [None, "lr: 1\n", "- a list\n", "\x00\xff"])
def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path, restart: bool, own_config: str | None) -> None:
    folder = tmp_path / "theirs"
    before = theirs(folder)
    if own_config is not None:
        (folder / "config.yaml").write_text(own_config)
        before = contents(folder)
    with pytest.raises(FineSightError, match="not empty and holds no run"):
        enter(folder, config(), restart=restart)
    assert contents(folder) == before


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("hello")
    with pytest.raises(FineSightError, match="is a file"):
        enter(tmp_path / "run", config())
    with pytest.raises(FineSightError, match="cannot be written to"):
        enter(tmp_path / "run" / "below", config())
    assert (tmp_path / "run").read_text() == "hello"


def test_an_empty_folder_and_missing_parents_will_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for root in (tmp_path / "empty", tmp_path / "a" / "b"):
        assert enter(root, config()).config() == config()


# --- beginnings and ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [".lock", ".config.yaml.tmp", ".config.yaml.123.tmp.yaml"])
def test_killed_while_it_began(tmp_path: Path, left: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / left).write_text("data: bir")
    assert enter(tmp_path / "run", config()).config() == config()


def test_killed_while_it_was_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever --restart had removed by then, --restart again does the rest."""
    run = enter(tmp_path / "run", config())
    run.metrics_file.write_text("step\n")
    run.encoder.mkdir()
    rmtree = shutil.rmtree

    def killed(path: Path) -> None:
        rmtree(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        enter(run.root, config(seed=1), restart=True)
    monkeypatch.undo()
    enter(run.root, config(seed=1), restart=True)
    assert run.config() == config(seed=1)
    assert set(os.listdir(run.root)) == {".lock", "config.yaml"}


def test_every_kind_of_difference_is_listed(tmp_path: Path) -> None:
    """Also where one side has no such setting at all."""
    run = enter(tmp_path / "run", config())
    run.metrics_file.write_text("step\n")
    with pytest.raises(FineSightError) as caught:
        enter(run.root, build_config({"data": "birds", "method": "lcr", "views.blur": 0.25, "limit_images": 10}))
    message = str(caught.value)
    assert "method: moco-v2 there, lcr now" in message
    assert "views.blur: 0.5 there, 0.25 now" in message
    assert "limit_images: None there, 10 now" in message
    assert "rationale.tau: None there, 0.4 now" in message
    assert "epochs" not in message


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match=r"has no config\.yaml"):
        RunFolder(tmp_path).config()


def test_no_checkpoint_can_be_read(birds: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--data", birds, "--epochs", "1", *TINY)
    trained(out, *options)
    shutil.rmtree(out / "encoder")
    (out / "checkpoints" / "step-00000005.pt").write_bytes(b"")
    refused(command("train", "--out", out, *options), "No checkpoint in", "can be read", "--restart")


def test_a_command_that_failed_at_once_can_be_corrected(birds: Path, tmp_path: Path) -> None:
    """A wrong path or weight file is no run to be protected; what has been trained is."""
    out = tmp_path / "run"
    refused(command("train", "--data", birds / "nowhere", "--out", out, *TINY), "does not exist")
    refused(command("train", "--data", birds, "--out", out, *TINY, "--backbone", "resnet_51"), "resnet51")
    trained(out, "--data", birds, "--epochs", "1", *TINY)
    assert RunFolder(out).config().backbone.name == "test_resnet"
    (out / "metrics.csv").unlink()
    refused(command("train", "--data", birds, "--out", out, "--epochs", "2", *TINY), "epochs: 1 there, 2 now")
    assert (out / "encoder" / "encoder.json").exists()
