"""A time budget: what fits is computed from what a step takes, and a run keeps what was planned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import finesight
from finesight.data.cache import open_cache
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.training.budget import Pace, Work, measure, minutes_for, steps_within
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.folder import Folder
from finesight.training.presets import Plan, plan_training
from finesight.training.run_folder import RunFolder
from finesight.training.train import train
from processes import TINY, command, refused, rows, succeeded, trained
from small import SMALL

CPU = RuntimeConfig(accelerator="cpu", progress=False)
# a network of a few thousand weights, of which the gentle preset is told that they are pretrained
TINY_NET = {key: value for key, value in SMALL.items() if key.startswith("backbone") or key == "views.resolution"}


def planned(data: Path, preset: str = "auto", minutes: float | None = None, **given: Any) -> Plan:
    return plan_training({**TINY_NET, "data": str(data), **given}, None, CPU, preset=preset, minutes=minutes)


# --- what fits --------------------------------------------------------------------------------------------------------


@given(
    seconds=st.floats(0, 5000),
    images=st.integers(10, 5000),
    batch=st.integers(2, 64),
    step=st.floats(0.01, 10),
    decode=st.floats(0, 0.5),
    most=st.integers(1, 400),
)
@settings(max_examples=200, deadline=None)
def test_as_many_steps_as_a_plain_count_finds(
    seconds: float, images: int, batch: int, step: float, decode: float, most: int
) -> None:
    work, pace = Work(images, images // 9, batch, epochs=5), Pace(step, 0.05, prepare=0.02, look=0.001, decode=decode)
    held = images // 9
    rest = 15 + (4 * held + 128) * 0.05 + (held + 64) * decode
    fits = 0
    for steps in range(1, most + 1):
        trained = min(images, steps * batch)
        before = trained * (1 + held / images) * decode + trained * (0.02 + 5 * 0.001)
        if rest + 1.1 * steps * step + before <= seconds:
            fits = steps
    assert steps_within(seconds, work, pace, most) == fits


def test_the_minutes_that_are_asked_for_suffice() -> None:
    work, pace = Work(900, 100, 32), Pace(1.7, 0.08, decode=0.02)
    for steps in (20, 70, 300):
        minutes = minutes_for(steps, work, pace, used=25)
        assert steps_within(60 * minutes - 25, work, pace, 10_000) >= steps
        assert steps_within(60 * (minutes - 0.6) - 25, work, pace, 10_000) < steps


def test_only_the_images_that_are_looked_at_are_decoded() -> None:
    config = build_config({"data": "-"})
    whole = Folder(1_000_000, 1000, labeled=True)
    part = whole.part_for(3200, config)
    assert part.images == 3200
    assert part.held_out == round(part.count / 10)
    assert Folder(1_000_000, 0, labeled=False).part_for(3200, config).count == 3200
    assert whole.part_for(2_000_000, config) is whole
    assert whole.part_for(100_000, config).held_out == 1000


def test_a_part_has_room_for_files_that_cannot_be_read(unlabeled: Path, tmp_path: Path) -> None:
    """One step of eight images looks at a part of these. Before, files that cannot be read were counted as images of
    it, and the command refused to train on seven."""
    folder = Path(shutil.copytree(unlabeled, tmp_path / "folder"))
    for number in range(8):
        shutil.copy(folder / "broken.png", folder / f"image-{number}-broken.png")
    part = Folder(24, 0, labeled=False, unreadable=9).part_for(8, build_config({"data": "-"}))
    assert (part.count, part.listed) == (8, 8 + 6)
    trained(tmp_path / "run", "--data", folder, "--set", "max_steps=1", *TINY)
    assert RunFolder(tmp_path / "run").config().limit_images == 8 + 6


def test_timing_leaves_the_random_numbers_alone(birds: Path) -> None:
    config = build_config({**SMALL, "data": str(birds)})
    cache = open_cache(open_source(birds).split("train"), 37, progress=False)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    pace = measure(config, cache, device=torch.device("cpu"))
    assert 0 < pace.step < 60
    assert 0 < pace.image < 60
    assert torch.equal(torch.get_rng_state(), before)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_gentle_plan_of_a_small_folder(birds: Path) -> None:
    """48 train images, a tenth of them held out."""
    plan = planned(birds, preset="gentle")
    assert plan.minutes == 20
    assert plan.config.max_steps == 70
    assert 43 % plan.config.batch_size <= 4
    assert plan.config.backbone.freeze == 3
    assert plan.pace is not None
    assert "70 steps of" in plan.words
    assert "43 images" in plan.words
    assert plan.reasons["views.hue"].startswith("color ")
    assert plan.reasons.keys().isdisjoint(TINY_NET)
    literal = build_config({**TINY_NET, "data": str(birds), "batch_size": 8})
    assert planned(birds, batch_size=8, epochs=100).config == literal, "random weights, a length: no budget, no preset"
    assert planned(birds, preset="paper").config == build_config({**TINY_NET, "data": str(birds)})


def test_a_short_budget_shortens_and_one_that_is_too_short_is_refused_with_what_would_fit(birds: Path) -> None:
    options = {"batch_size": 8, "epochs": 4000}
    plan = planned(birds, preset="paper", minutes=1.5, **options)
    assert plan.config.max_steps is not None
    assert 20 <= plan.config.max_steps < 20_000
    assert "as many as fit into 1.5 minutes" in plan.reasons["max_steps"]
    assert sum(plan.seconds.values()) <= 90
    with pytest.raises(FineSightError, match=r"too few for these 48 images.*--minutes [\d.]+ or more"):
        planned(birds, preset="gentle", minutes=0.05)
    for wrong in (0, -3, float("nan")):
        with pytest.raises(FineSightError, match="above 0"):
            planned(birds, minutes=wrong)
    with pytest.raises(FineSightError, match="no preset 'soft'"):
        planned(birds, preset="soft")


def test_minutes_that_are_too_few_are_found_by_a_few_steps_alone(
    birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``finesight up`` asks before it indexes anything."""
    settings = {**TINY_NET, "data": str(birds)}

    def asked(minutes: float | None, **options: Any) -> Plan:
        return plan_training(settings, None, CPU, preset="gentle", minutes=minutes, **options)

    with pytest.raises(
        FineSightError, match=r"0\.05 minutes are too few for these 48 images.*--minutes [\d.]+ or more"
    ):
        asked(0.05, look=False)
    assert "Timing a few steps" in capsys.readouterr().err
    plan = asked(19, look=False)  # few minutes, and enough
    assert (plan.minutes, plan.pace, plan.config.max_steps) == (19, None, 70)
    assert "Timing a few steps" in capsys.readouterr().err
    for minutes, strict in ((20, True), (None, True), (0.05, False)):
        assert asked(minutes, look=False, strict=strict).pace is None
        assert "Timing" not in capsys.readouterr().err, "it takes no time where it need not"
    shortest = asked(0.05, strict=False)
    assert (shortest.minutes, shortest.config.max_steps) == (0.05, 20)
    assert "the fewest that are worth it, more than fit into 0.05 minutes" in shortest.reasons["max_steps"]


def test_a_batch_larger_than_the_sample_is_timed(birds: Path) -> None:
    """Some of the sample may not be readable."""
    cache = open_cache(open_source(birds).split("train").select(np.arange(5)), 37, progress=False)
    pace = measure(build_config({**SMALL, "data": str(birds)}), cache, device=torch.device("cpu"), fewest=1, seconds=0)
    assert 0 < pace.step < 60


def test_steps_end_a_run_in_the_middle_of_an_epoch(birds: Path, tmp_path: Path) -> None:
    """The last step is logged and validated, rates fall to the end, and the saved run is the planned one."""
    config = build_config({**SMALL, "data": str(birds), "max_steps": 7, "optim.cosine": "step", "batch_size": 8})
    run = train(config, tmp_path / "run", RuntimeConfig(accelerator="cpu", progress=False, log_every=1))
    table = rows(run.root)
    assert [int(row["step"]) for row in table] == list(range(7))
    assert table[-1]["val_rank1"]
    rates = [float(row["lr"]) for row in table]
    expected = [0.03 * 0.5 * (1 + np.cos(np.pi * step / 7)) for step in range(7)]
    np.testing.assert_allclose(rates, expected, rtol=1e-9)


# --- the same command again -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_keeps_its_plan_and_other_options_are_refused(birds: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("train", "--data", birds, "--out", out, *TINY, "--preset", "gentle", "--minutes", "5")
    done = succeeded(command(*words, "--set", "max_steps=6"))
    assert "Preset gentle, 5 minutes: 6 steps of 8 images at 32 px" in done.err
    stored = json.loads((out / "plan.json").read_text())
    assert (stored["preset"], stored["minutes"]) == ("gentle", 5)
    assert stored["measured"]["step"] > 0
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["max_steps"], config["initial_weight_ratio"]) == (6, 0.5)
    plain = ("train", "--data", birds, "--out", out)
    again = succeeded(command(*plain, "--quiet"))
    assert "nothing to do" in again.err
    assert "timing" not in again.err
    refused(command(*plain, "--preset", "paper"), "preset gentle, 5 minutes there", "preset paper, 5 minutes now")
    refused(command(*plain, "--minutes", "7"), "5 minutes there", "7 minutes now")
    refused(command(*plain, "--set", "max_steps=9"), "max_steps: 6 there, 9 now")


def test_a_run_of_earlier_defaults_goes_on_with_its_own_settings(birds: Path, tmp_path: Path) -> None:
    """It has no plan, and its config.yaml lacks the settings that came later."""
    run = train(build_config({**SMALL, "data": str(birds), "batch_size": 16, "epochs": 1}), tmp_path / "run", CPU)
    values = yaml.safe_load(run.config_file.read_text())
    del values["max_steps"], values["test_pooling"]
    run.config_file.write_text(yaml.safe_dump(values))
    plan = plan_training({"data": str(birds)}, run, CPU)
    assert plan.config == run.config()
    assert (plan.preset, plan.minutes, plan.config.batch_size) == ("paper", None, 16)
    assert plan_training({"data": str(birds)}, run, CPU, preset="paper").config == run.config()
    with pytest.raises(FineSightError, match="preset paper, no time budget there, preset gentle"):
        plan_training({"data": str(birds)}, run, CPU, preset="gentle")
    with pytest.raises(FineSightError, match=r"no time budget there, .* 3 minutes now"):
        plan_training({"data": str(birds)}, run, CPU, minutes=3)
    assert plan_training({**TINY_NET, "data": str(birds)}, run, CPU, restart=True, dry=True).preset == "scratch"


def test_other_processes_take_what_the_first_has_stored(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are started with the same command line, which times nothing there."""
    run = RunFolder(tmp_path / "run")
    stored = build_config({**SMALL, "data": str(birds), "max_steps": 33})
    with run.locked():
        run.enter(stored, restart=False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert plan_training({"data": str(birds)}, run, CPU, preset="gentle", minutes=1, restart=True).config == stored
    monkeypatch.delenv("LOCAL_RANK")
    several = CPU.model_copy(update={"nodes": 2})
    plan = plan_training({**TINY_NET, "data": str(birds)}, None, several, preset="gentle")
    assert (plan.minutes, plan.pace) == (None, None), "each machine plans: nothing may depend on its speed"
    with pytest.raises(FineSightError, match="--minutes needs processes that are started by this command"):
        plan_training({**TINY_NET, "data": str(birds)}, None, several, minutes=5)


def test_from_python_as_from_the_command_line(birds: Path, tmp_path: Path) -> None:
    small = {**TINY_NET, "max_steps": 3, "rationale.projections": 2}
    encoder = finesight.train(birds, tmp_path / "run", runtime=CPU, preset="gentle", **small)
    assert encoder.config.resolution == 224
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["preset"] == "gentle"
    assert "Did training help?" in (tmp_path / "run" / "report.html").read_text()
    verdict = finesight.verdict(tmp_path / "run", runtime=CPU)
    assert verdict is not None
    assert (verdict.verdict, verdict.kept) == ("cannot tell", "trained")
    assert json.loads((tmp_path / "run" / "verdict.json").read_text()) == verdict.model_dump(mode="json")
    assert finesight.verdict(tmp_path / "run", runtime=CPU, keep="frozen") != verdict
    assert finesight.load(tmp_path / "run").config.method == "frozen"


def test_settings_are_shown_with_their_reasons(birds: Path, tmp_path: Path) -> None:
    words = ("train", "--data", birds, "--out", tmp_path / "run", *TINY, "--preset", "gentle", "--show-config")
    shown = succeeded(command(*words)).out
    assert shown.startswith("# Preset gentle, 20 minutes: 70 steps of 8 images at 32 px")
    assert "when training starts" in shown.splitlines()[0]
    assert "max_steps: 70  # a length that suits 43 images" in shown
    config = yaml.safe_load(shown)
    assert (config["initial_weight_ratio"], config["optim"]["backbone_lr_ratio"]) == (0.5, 0.3)
    assert not (tmp_path / "run").exists()
