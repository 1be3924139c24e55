"""Signs that training goes wrong, and what is held out to tell whether it goes right."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from finesight.errors import FineSightError
from finesight.evaluation.retrieval import retrieval
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.training.batches import Batches
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.health import SPREAD_FLOOR
from finesight.training.run_folder import RunFolder
from finesight.training.train import train
from finesight.training.train_images import hold_out, prepare_data
from processes import TINY, command, refused, rows, trained
from small import SMALL

pytestmark = pytest.mark.slow

# --- not a number -----------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_stops_the_run(birds: Path, tmp_path: Path) -> None:
    """At this rate the weights overflow after a few steps: there is something good to go back to."""
    out = tmp_path / "run"
    options = ("--data", birds, "--out", out, "--epochs", "4", "--lr", "1e6", "--checkpoint-minutes", "0", *TINY)
    message = refused(command("train", *options), "Training has stopped", "--lr", "--clip-grad-norm", "--precision 32")
    found = re.search(r"The loss is not a number at step (\d+)\..* Last good checkpoint: (\S+\.pt)\.", message)
    assert found is not None, message
    step, good = int(found[1]), Path(found[2])
    assert good == sorted((out / "checkpoints").glob("*.pt"))[-1]
    state = torch.load(good, weights_only=True)["module"]
    assert 1 <= int(state["steps"]) <= step
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())
    assert [int(row["step"]) for row in rows(out)] == list(range(step)), "the steps until then are on record"
    assert all(math.isfinite(float(row["loss"])) for row in rows(out))
    assert not (out / "encoder").exists()


def test_weights_spoilt_by_the_last_step_are_not_handed_out(birds: Path, tmp_path: Path) -> None:
    """The only update, after a loss that was a number, takes the weights beyond all numbers."""
    out = tmp_path / "run"
    settings = {"limit_images": 8, "epochs": 1, "optim.lr": 1e35, "optim.weight_decay": 1e6, "validation.fraction": 0}
    config = build_config({**SMALL, **settings, "data": str(birds)})
    with pytest.raises(FineSightError, match=r"not numbers after the last step.* checkpoint: none was written yet\."):
        train(config, out, RuntimeConfig(progress=False))
    assert not (out / "encoder").exists()


# --- collapse ---------------------------------------------------------------------------------------------------------


def test_a_collapsing_run_is_warned_of_once(birds: Path, tmp_path: Path) -> None:
    """A weight decay that takes all weights to nothing within a few steps."""
    options = ("--data", birds, "--method", "moco-v2", "--epochs", "5", *without("--projections"))
    done = trained(tmp_path / "collapsing", *options, "--set", "optim.weight_decay=5")
    assert done.err.count("The embeddings have collapsed") == 1, done.err
    assert float(rows(tmp_path / "collapsing")[-1]["embedding_spread"]) < SPREAD_FLOOR


def without(option: str) -> list[str]:
    words = list(TINY)
    place = words.index(option)
    return words[:place] + words[place + 2 :]


# --- held-out validation ----------------------------------------------------------------------------------------------


def test_validation_where_there_are_labels(birds: Path, unlabeled: Path, tmp_path: Path) -> None:
    trained(tmp_path / "with", "--data", birds, "--epochs", "3", "--set", "validation.every_n_epochs=2", *TINY)
    scored = [int(row["step"]) for row in rows(tmp_path / "with") if row["val_rank1"]]
    assert scored == [9, 14], "after every second epoch and the last"
    config = RunFolder(tmp_path / "with").config()
    cache, images, held_out = prepare_data(config, RuntimeConfig(progress=False))
    name = config.pooling
    features = extract(Encoder.load(tmp_path / "with"), cache, held_out, (name,), progress=False).features[name]
    assert cache.source.labels is not None
    expected = retrieval(features, cache.source.labels[held_out])
    last = rows(tmp_path / "with")[-1]
    assert float(last["val_rank1"]) == expected.score("rank1")
    assert float(last["val_mAP"]) == pytest.approx(expected.score("mAP"), rel=1e-12)
    assert len(held_out) == 5
    assert len(images) == 43

    done = trained(tmp_path / "without", "--data", unlabeled, "--epochs", "1", *TINY)
    assert all(row["val_rank1"] == row["val_mAP"] == "" for row in rows(tmp_path / "without"))
    assert len(rows(tmp_path / "without")) == 3, "no image is held out for nothing: 24 images in batches of 8"
    assert "2 files were skipped" in done.err


def test_held_out_images_are_never_trained_on(birds: Path) -> None:
    config = build_config({"data": str(birds), "views.resolution": 32, "batch_size": 8})
    cache, images, held_out = prepare_data(config, RuntimeConfig(progress=False))
    assert sorted([*images, *held_out]) == list(range(48))
    assert set(cache.source.splits) == {"train"}, "test images are not even opened"
    batches = Batches(cache, images, batch_size=8, epochs=6, seed=0)
    seen = np.concatenate([batches.indices(step) for step in range(batches.total)])
    assert set(seen) == set(images)


def test_held_out_images_change_nothing_but_the_validation(birds: Path, tmp_path: Path) -> None:
    """The same run on a copy in which every held-out image, and every test image, is another picture."""
    config = build_config({"data": str(birds), "views.resolution": 32, "batch_size": 8})
    cache, _, held_out = prepare_data(config, RuntimeConfig(progress=False))
    altered = Path(shutil.copytree(birds, tmp_path / "birds"))
    others = [altered / str(path) for path in cache.source.paths[held_out]] + sorted(altered.glob("test/*/*"))
    for number, path in enumerate(others):
        shutil.copy(sorted(birds.glob("train/*/*.png"))[number % 7], path)
    options = ("--epochs", "1", *TINY)
    trained(tmp_path / "a", "--data", birds, *options)
    trained(tmp_path / "b", "--data", altered, *options)
    first, second = rows(tmp_path / "a"), rows(tmp_path / "b")
    assert [row["loss"] for row in first] == [row["loss"] for row in second]
    weights = [(tmp_path / name / "encoder" / "encoder.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    assert first[-1]["val_mAP"] != second[-1]["val_mAP"]


def test_hold_out_looks_at_no_label_and_keeps_its_limits() -> None:
    def held(count: int, **settings: object) -> tuple[np.ndarray, np.ndarray]:
        return hold_out(count, build_config({"data": "x", **{f"validation.{k}": v for k, v in settings.items()}}))

    kept, out = held(100_000)
    assert len(out) == 1000
    assert len(np.unique(np.concatenate([kept, out]))) == 100_000
    assert len(held(100, fraction=0.25)[1]) == 25
    assert len(held(100, fraction=0)[1]) == 0
    assert len(held(100, fraction=0.9, max_images=7)[1]) == 7
    assert np.array_equal(held(50)[1], held(50)[1])
