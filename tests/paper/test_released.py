"""The released code's probe: against NumPy, killed and continued, and what depends on what."""

from __future__ import annotations

import copy
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from finesight.evaluation.fractions import draw_parts
from finesight.evaluation.protocols import ProbeTask
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.paper.protocols.released import ReleasedProtocol, milestones
from finesight.paper.released import rate_at, train_probes, view_config
from finesight.training.checkpoints import load_checkpoint
from processes import Command, TooLate, command, in_time, refused, succeeded
from reference.released import steps
from small import seeded

pytestmark = pytest.mark.slow

FIVE = ReleasedProtocol(probe_epochs=5, seed=3)
SMALL = replace(FIVE, batch_size=10, forward_size=7, save_seconds=0.0)


@pytest.fixture(scope="module")
def encoder(lcr: Path) -> Encoder:
    return finesight.load(lcr)


@pytest.fixture(scope="module")
def task(encoder: Encoder, birds: Path) -> ProbeTask:
    cache = open_cache(open_source(birds), cache_side(encoder.config.resolution), progress=False)
    train, test, _ = split_indices(cache.source)
    assert cache.source.labels is not None
    features = extract(encoder, cache, test, ("average",), progress=False).features["average"]
    parts = draw_parts(cache.source.labels[train], (100, 50), 0)
    return ProbeTask(encoder, cache, "average", train, test, features, parts, progress=False)


def scores(task: ProbeTask, protocol: ReleasedProtocol = FIVE) -> dict[str, dict[str, Any]]:
    return {percent: result.summary() for percent, result in train_probes(task, protocol).items()}


@contextmanager
def watched(encoder: Encoder, call: Callable[[torch.Tensor, torch.Tensor], None]) -> Iterator[None]:
    """Call ``call`` with the views and the feature map of everything that goes through the backbone."""
    handle = encoder.backbone.register_forward_hook(lambda _, inputs, phi: call(inputs[0], phi))
    try:
        yield
    finally:
        handle.remove()


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_the_rate_is_the_released_codes() -> None:
    assert milestones(100) == (60, 80)
    rates = [rate_at(epoch, 100) for epoch in (0, 59, 60, 79, 80, 99)]
    assert rates == pytest.approx([30, 30, 3, 3, 0.3, 0.3])
    assert milestones(10) == (6, 8)
    assert milestones(1) == (1, 1), "one epoch has no steps"


def test_steps_are_those_of_plain_sgd(task: ProbeTask, tmp_path: Path) -> None:
    """Batches and rates are worked out again from the views that go through the network."""
    views: list[torch.Tensor] = []
    features: list[torch.Tensor] = []

    def keep(images: torch.Tensor, phi: torch.Tensor) -> None:
        views.append(images)
        features.append(torch.nn.functional.normalize(phi.mean((2, 3)), dim=1))

    with watched(task.encoder, keep):
        found = scores(task, replace(SMALL, state=tmp_path))
    count = len(task.train)
    assert sum(map(len, features)) == 5 * count, "every train image once an epoch"
    by_epoch = torch.cat(features).double().numpy().reshape(5, count, -1)
    pictures = torch.cat(views).reshape(5, count, -1)
    orders = [np.random.default_rng([3, epoch]).permutation(count) for epoch in range(5)]
    same = (pictures[0][np.argsort(orders[0])] == pictures[1][np.argsort(orders[1])]).all(dim=1)
    assert not same.any(), "views are new every epoch"
    kept = load_checkpoint(next(tmp_path.iterdir()))
    assert kept is not None
    labels, start = task.labels(task.train), 0.01 * torch.randn(4, by_epoch.shape[2], generator=seeded(3)).double()
    for percent, part in task.parts.items():
        batches = []
        for epoch, rate in enumerate((30, 30, 30, 3, 0.3)):
            mine = np.isin(orders[epoch], part)
            x, y = by_epoch[epoch][mine], labels[orders[epoch][mine]]
            batches += [(x[n : n + 10], y[n : n + 10], rate) for n in range(0, len(y), 10)]
        weight, bias = steps(start.numpy(), batches)
        learned = kept[1]["probes"][str(percent)]
        np.testing.assert_allclose(learned["weight"], weight, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(learned["bias"], bias, rtol=1e-3, atol=1e-3)
        test = np.asarray(task.test_features, dtype=np.float64)
        test /= np.linalg.norm(test, axis=1, keepdims=True)
        right = (test @ weight.T + bias).argmax(axis=1) == task.labels(task.test)
        assert found[str(percent)]["top1"] == pytest.approx(100 * right.mean())


def test_views_are_crops_and_flips(encoder: Encoder) -> None:
    config = view_config(encoder)
    assert (config.scale, config.flip) == ((0.08, 1.0), 0.5)
    assert not any((config.jitter, config.gray, config.blur, config.solarize))


def test_fractions_do_not_depend_on_each_other_and_the_best_stands_beside_the_last(task: ProbeTask) -> None:
    results = train_probes(task, FIVE)
    together = {percent: result.summary() for percent, result in results.items()}
    for percent, found in together.items():
        assert set(found) == {"top1", "top5", "lr", "epochs", "best_on_test"}
        assert (found["lr"], found["epochs"]) == (30, 5)
        for key in ("top1", "top5"):
            assert results[percent].per_image[key].shape == (24,)
            assert found[key] == pytest.approx(100 * results[percent].per_image[key].mean())
        assert found["best_on_test"]["top1"] >= found["top1"]
        assert 1 <= found["best_on_test"]["epoch"] <= 5
    assert scores(replace(task, parts={100: task.parts[100]}))["100"] == together["100"]
    assert scores(task, replace(FIVE, seed=4)) != together


def test_it_learns_what_is_easy(encoder: Encoder, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name, color in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
            (tmp_path / split / name).mkdir(parents=True)
            for shade in range(4):
                image = Image.new("RGB", (40, 40), tuple(value + 10 * shade for value in color))
                image.save(tmp_path / split / name / f"{shade}.png")
    protocol = ReleasedProtocol(probe_epochs=10)
    found = evaluate(encoder, tmp_path, fractions=(100,), protocol=protocol, progress=False).scores
    assert found["linear"]["100"]["top1"] == 100
    assert found["knn"]["1"]["top1"] == 100


# --- stopping and continuing ------------------------------------------------------------------------------------------


def test_stopped_anywhere_it_goes_on_to_the_same_bits(task: ProbeTask, tmp_path: Path) -> None:
    whole = train_probes(task, SMALL)
    calls = 0

    def fail(views: torch.Tensor, _: torch.Tensor) -> None:
        nonlocal calls
        before, calls = calls, calls + len(views)
        if before // 65 < calls // 65 < 4:  # images; in the middle of an epoch, three times
            raise RuntimeError("killed")

    kept = replace(SMALL, state=tmp_path)
    with watched(task.encoder, fail):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="killed"):
                train_probes(task, kept)
        found = train_probes(task, kept)
        assert 240 < calls <= 240 + 3 * 7, "only the batch that was under way was done twice"
        ended = calls
        assert scores(task, kept) == {percent: result.summary() for percent, result in whole.items()}
        assert calls == ended, "what has ended gives its result at once"
    for percent, result in whole.items():
        assert result.summary() == found[percent].summary()
        assert np.array_equal(result.per_image["top1"], found[percent].per_image["top1"])


def test_another_task_begins_anew(task: ProbeTask, tmp_path: Path) -> None:
    short, kept = replace(FIVE, probe_epochs=1), replace(FIVE, probe_epochs=1, state=tmp_path)
    scores(task, kept)
    other = copy.deepcopy(task.encoder)
    with torch.no_grad():
        next(other.backbone.parameters()).mul_(1.5)
    others = (
        (task, {"seed": 9}),
        (replace(task, parts={100: task.parts[100]}), {}),
        (replace(task, encoder=other), {}),
        (replace(task, train=task.train[1:], parts={100: np.arange(len(task.train) - 1)}), {}),
    )
    for number, (changed, options) in enumerate(others, start=2):
        assert scores(changed, replace(kept, **options)) == scores(changed, replace(short, **options))
        assert len(list(tmp_path.iterdir())) == number


def test_ctrl_c_says_how_to_go_on(task: ProbeTask, tmp_path: Path) -> None:
    def stop(*_: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with watched(task.encoder, stop):
        with pytest.raises(Interrupted, match=r"epoch 1\. The same command continues") as stopped:
            scores(task, replace(FIVE, state=tmp_path))
        assert stopped.value.exit_code == 130
        with pytest.raises(Interrupted, match="--state"):
            scores(task)


def test_killed_and_continued_by_the_command_line(lcr: Path, encoder: Encoder, birds: Path, tmp_path: Path) -> None:
    in_time(lambda place: kill_and_continue(Path(shutil.copytree(lcr, place / "run")), encoder, birds), tmp_path)


def kill_and_continue(run: Path, encoder: Encoder, birds: Path) -> None:
    options = ("--data", birds, "--protocol", "released", "--probe-epochs", "20", "--fractions", "100,20", "--json")
    running = Command("evaluate", run, *options, "--quiet")
    running.until(lambda: any((run / "probe").glob("probe-*/step-*.pt")))
    running.send(signal.SIGKILL)
    code = running.wait().code
    if (run / "evaluation.json").exists():
        raise TooLate
    assert code == -signal.SIGKILL
    assert not (run / "evaluation.json").exists()
    done = succeeded(command("evaluate", run, *options))
    assert "passes 20 times over 48 train images" in done.err
    assert "20 passes are left" not in done.err, "it began anew"
    whole = evaluate(encoder, birds, fractions=(100, 20), protocol=ReleasedProtocol(probe_epochs=20), progress=False)
    assert json.loads(done.out) == json.loads(json.dumps(whole.scores))
    setting = whole.scores["setting"]
    assert (setting["protocol"], setting["test_looks"], setting["rate_falls_after"]) == ("released", 20, [12, 16])
    page = (run / "report.html").read_text()
    assert "Test was looked at 20 times" in page
    assert "best on test 100 %" in page


# --- the protocol around it -------------------------------------------------------------------------------------------


def test_test_images_come_class_by_class(encoder: Encoder, birds: Path) -> None:
    source = open_source(birds)
    mixed = source.select(np.random.default_rng(0).permutation(len(source)))
    found = evaluate(encoder, mixed, linear=False, protocol=ReleasedProtocol(), progress=False)
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
        evaluate(encoder, birds, pooling="box", protocol=ReleasedProtocol(), progress=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(FineSightError, match="cannot be kept in"):
        evaluate(encoder, birds, protocol=ReleasedProtocol(state=tmp_path / "file"), progress=False)
    for options, words in (
        (("--probe-epochs", "3"), "--protocol released"),
        (("--state", str(tmp_path)), "--protocol released"),
        (("--protocol", "released", "--no-linear", "--state", str(tmp_path)), "--state is about the linear probe"),
        (("--protocol", "paper"), "released"),
    ):
        refused(command("evaluate", lcr, "--data", birds, *options), words)
