"""The released code's probe: against NumPy, killed and continued, and what depends on what."""

from __future__ import annotations

import copy
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import finesight
from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import open_source
from finesight.errors import FineSightError, Interrupted
from finesight.evaluation.evaluate import evaluate, split_indices
from finesight.evaluation.fractions import drawn_parts
from finesight.evaluation.linear import ProbeResult
from finesight.evaluation.protocol import Protocol
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.paper import released as module
from finesight.paper.released import Task, milestones, rate_at, released_probe
from processes import Command, command, refused, succeeded
from reference.released import steps


@pytest.fixture(scope="module")
def encoder(lcr: Path) -> Encoder:
    return finesight.load(lcr)


@pytest.fixture(scope="module")
def task(encoder: Encoder, birds: Path) -> Task:
    cache = open_cache(open_source(birds), cache_side(encoder.config.resolution), progress=False)
    train, test, _ = split_indices(cache.source)
    assert cache.source.labels is not None
    features = extract(encoder, cache, test, ("average",), progress=False).features["average"]
    parts = drawn_parts(cache.source.labels[train], (100, 50), 0)
    return Task(encoder, cache, "average", train, test, features, parts, epochs=5, seed=3)


def run(task: Task, **options: Any) -> tuple[dict[str, dict[str, Any]], dict[str, ProbeResult]]:
    kept = released_probe(task, progress=False, **options)
    return {percent: result.summary() for percent, result in kept.items()}, kept


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_the_rate_is_the_released_codes() -> None:
    assert milestones(100) == (60, 80)
    rates = [rate_at(epoch, 100) for epoch in (0, 59, 60, 79, 80, 99)]
    assert rates == pytest.approx([30, 30, 3, 3, 0.3, 0.3])
    assert milestones(10) == (6, 8)
    assert milestones(1) == (1, 1), "one epoch has no steps"


def test_steps_are_those_of_plain_sgd(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the features that the probe is given, the batches and the rates are worked out without it."""
    monkeypatch.setattr(module, "BATCH", 10)
    monkeypatch.setattr(module, "PIECE", 7)
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    real = module._Training._features

    def spy(self: Any, rows: torch.Tensor, params: Any) -> torch.Tensor:
        features = real(self, rows, params)
        seen.append((rows.numpy(), features.double().numpy()))
        return features

    monkeypatch.setattr(module._Training, "_features", spy)
    probes: list[Any] = []
    plain = module._Probe.__init__

    def built(self: Any, *args: Any) -> None:
        plain(self, *args)
        probes.append((self, self.weight.detach().double().numpy().copy()))

    monkeypatch.setattr(module._Probe, "__init__", built)
    scores, _ = run(task)
    labels = task.labels(task.train)
    per_epoch = -(-len(task.train) // 7)
    assert len(seen) == 5 * per_epoch
    for percent, (probe, start) in zip((100, 50), probes, strict=True):
        assert start.std() == pytest.approx(0.01, rel=0.15)
        batches = []
        for epoch, rate in enumerate((30, 30, 30, 3, 0.3)):
            pieces = seen[epoch * per_epoch : (epoch + 1) * per_epoch]
            rows = np.concatenate([rows for rows, _ in pieces])
            x = np.concatenate([x for _, x in pieces])
            assert sorted(rows) == list(range(len(task.train))), "every train image once an epoch"
            np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-5)
            mine = np.isin(rows, task.parts[percent])
            x, y = x[mine], labels[rows[mine]]
            batches += [(x[n : n + 10], y[n : n + 10], rate) for n in range(0, len(y), 10)]
        weight, bias = steps(start, batches)
        np.testing.assert_allclose(probe.weight.detach().numpy(), weight, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(probe.bias.detach().numpy(), bias, rtol=1e-3, atol=1e-3)
        test = task.test_features.astype(np.float64)
        test /= np.linalg.norm(test, axis=1, keepdims=True)
        right = (test @ weight.T + bias).argmax(axis=1) == task.labels(task.test)
        assert scores[str(percent)]["top1"] == pytest.approx(100 * right.mean())


def test_views_are_new_every_epoch_and_crops_of_the_images(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    real = module.sample_params

    def spy(config: Any, sizes: torch.Tensor, generator: torch.Generator) -> Any:
        drawn.append((config, real(config, sizes, generator)))
        return drawn[-1][1]

    monkeypatch.setattr(module, "sample_params", spy)
    run(replace(task, epochs=2))
    config = drawn[0][0]
    assert (config.scale, config.flip) == ((0.08, 1.0), 0.5)
    assert not any((config.jitter, config.gray, config.blur, config.solarize))
    assert not torch.equal(drawn[0][1].crop, drawn[1][1].crop)
    assert not torch.equal(drawn[0][1].flip, drawn[1][1].flip)


def test_last_is_the_score_and_best_stands_beside_it(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, outcomes = run(task)
    assert set(scores["100"]) == {"top1", "top5", "lr", "epochs", "best_on_test"}
    assert (scores["100"]["lr"], scores["100"]["epochs"]) == (30, 5)
    for percent, outcome in outcomes.items():
        assert scores[percent]["top1"] == pytest.approx(100 * outcome.per_image["top1"].mean())
        assert scores[percent]["top5"] == pytest.approx(100 * outcome.per_image["top5"].mean())
        assert scores[percent]["best_on_test"]["top1"] >= scores[percent]["top1"]
        assert 1 <= scores[percent]["best_on_test"]["epoch"] <= 5


def test_a_fraction_does_not_depend_on_the_others(task: Task) -> None:
    together, _ = run(task)
    alone, _ = run(replace(task, parts={100: task.parts[100]}))
    assert alone["100"] == together["100"]
    again, _ = run(task)
    assert again == together
    other, kept = run(replace(task, seed=4))
    assert {percent: outcome.per_image["top1"].shape for percent, outcome in kept.items()} == {
        "100": (24,),
        "50": (24,),
    }
    assert other != together


def test_it_learns_what_is_easy(encoder: Encoder, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name, color in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
            (tmp_path / split / name).mkdir(parents=True)
            for shade in range(4):
                image = Image.new("RGB", (40, 40), tuple(value + 10 * shade for value in color))
                image.save(tmp_path / split / name / f"{shade}.png")
    rules = Protocol("released", probe_epochs=10)
    scores = evaluate(encoder, tmp_path, fractions=(100,), protocol=rules, progress=False).scores
    assert scores["linear"]["100"]["top1"] == 100
    assert scores["knn"]["1"]["top1"] == 100


# --- stopping and continuing ------------------------------------------------------------------------------------------


def test_stopped_anywhere_it_goes_on_to_the_same_bits(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", 7)
    monkeypatch.setattr(module, "BATCH", 10)
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    whole, outcomes = run(task)
    real, calls = module._Training._features, 0

    def fails(self: Any, rows: torch.Tensor, params: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls % 10 == 0:  # in the middle of an epoch of seven pieces
            raise RuntimeError("killed")
        return real(self, rows, params)

    monkeypatch.setattr(module._Training, "_features", fails)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="killed"):
            run(task, state=tmp_path)
    scores, kept = run(task, state=tmp_path)
    assert calls == 35 + 3, "no piece was done twice"
    assert scores == whole
    for percent in outcomes:
        assert np.array_equal(kept[percent].per_image["top1"], outcomes[percent].per_image["top1"])
    run(task, state=tmp_path)
    assert calls == 38, "what has ended gives its result at once"


def test_another_task_begins_anew(task: Task, tmp_path: Path) -> None:
    short = replace(task, epochs=2)
    run(short, state=tmp_path)
    others = (
        replace(short, seed=9),
        replace(short, parts={100: task.parts[100]}),
        replace(short, encoder=_nudged(task.encoder)),
        replace(short, train=task.train[1:], parts={100: np.arange(len(task.train) - 1)}),
    )
    for number, other in enumerate(others, start=2):
        assert run(other, state=tmp_path)[0] == run(other)[0]
        assert len(list(tmp_path.iterdir())) == number


def _nudged(encoder: Encoder) -> Encoder:
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        next(other.backbone.parameters()).mul_(1.5)
    return other


def test_ctrl_c_says_how_to_go_on(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Any, rows: torch.Tensor, params: Any) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Training, "_features", stopped)
    with pytest.raises(Interrupted, match=r"epoch 1\. The same command continues") as stop:
        run(task, state=tmp_path)
    assert stop.value.exit_code == 130
    with pytest.raises(Interrupted, match="--state"):
        run(task)


def test_killed_and_continued_by_the_command_line(lcr: Path, birds: Path, tmp_path: Path) -> None:
    runs = [Path(shutil.copytree(lcr, tmp_path / name)) for name in ("whole", "killed")]
    options = ("--data", birds, "--protocol", "released", "--probe-epochs", "20", "--fractions", "100,20", "--json")
    whole = json.loads(succeeded(command("evaluate", runs[0], *options, "--quiet")).out)
    running = Command("evaluate", runs[1], *options, "--quiet")
    running.until(lambda: any((runs[1] / "probe").glob("probe-*/step-*.pt")))
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    assert not (runs[1] / "evaluation.json").exists()
    done = succeeded(command("evaluate", runs[1], *options))
    assert "passes 20 times over 48 train images" in done.err
    assert "20 passes are left" not in done.err, "it began anew"
    assert json.loads(done.out) == whole
    setting = whole["setting"]
    assert (setting["protocol"], setting["test_looks"], setting["rate_falls_after"]) == ("released", 20, [12, 16])
    page = (runs[1] / "report.html").read_text()
    assert "Test was looked at 20 times" in page
    assert "best on test 100 %" in page


# --- the protocol around it -------------------------------------------------------------------------------------------


def test_test_images_come_class_by_class(encoder: Encoder, birds: Path) -> None:
    source = open_source(birds)
    mixed = source.select(np.random.default_rng(0).permutation(len(source)))
    found = evaluate(encoder, mixed, linear=False, protocol=Protocol("released"), progress=False)
    labels = found.cache.source.labels
    assert labels is not None
    assert (np.diff(labels[found.test]) >= 0).all()
    plain = evaluate(encoder, mixed, linear=False, progress=False)
    assert (np.diff(plain.test) > 0).all()
    assert not np.array_equal(plain.test, found.test)
    assert found.scores["retrieval"]["rank1"] == pytest.approx(plain.scores["retrieval"]["rank1"])
    assert plain.scores["setting"]["protocol"] == "finesight"


def test_oracles_and_bad_options_are_refused(encoder: Encoder, birds: Path, lcr: Path, tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match="'box' is a control"):
        evaluate(encoder, birds, pooling="box", protocol=Protocol("released"), progress=False)
    (tmp_path / "file").write_text("")
    wrong = Protocol("released", state=tmp_path / "file")
    with pytest.raises(FineSightError, match="cannot be kept in"):
        evaluate(encoder, birds, protocol=wrong, progress=False)
    refused(command("evaluate", lcr, "--data", birds, "--probe-epochs", "3"), "--protocol released")
    refused(command("evaluate", lcr, "--data", birds, "--state", tmp_path), "--protocol released")
    words = ("--protocol", "released", "--no-linear", "--state", str(tmp_path))
    refused(command("evaluate", lcr, "--data", birds, *words), "--state is about the linear probe")
    refused(command("evaluate", lcr, "--data", birds, "--protocol", "paper"), "released")
