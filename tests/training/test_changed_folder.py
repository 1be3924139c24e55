"""Photos are added and removed between two starts of a run, or while it runs: it goes on."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.methods.base import METHODS
from finesight.paper.hooks.objects import ObjectsHook
from finesight.training.batches import Batches
from finesight.training.checkpoints import checkpoints, load_checkpoint
from finesight.training.config import RuntimeConfig, TrainConfig, build_config
from finesight.training.metrics_log import read_metrics
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import RunImages, carry_rows, path_hashes
from finesight.training.train import train
from finesight.training.train_images import hold_out, prepare_data
from processes import TINY, Command, TooLate, in_time, trained
from real_birds import cub_root
from small import SMALL, small_settings

QUIET = RuntimeConfig(progress=False, checkpoint_minutes=0, accelerator="cpu", log_every=1)
NAMES = [name for name, method in METHODS.items() if method.objective]
OBJECTS = {  # what the paper's hook keeps for each image
    "saliency.source": "rationale",
    "saliency.every_n_epochs": 1,
    "views.paste": 0.5,
    "focus.source": "saliency",
    "focus.threshold": 0.6,
}


@pytest.fixture
def photos(class_folders: Path, tmp_path: Path) -> Path:
    """48 in four class folders, to be changed."""
    return Path(shutil.copytree(class_folders, tmp_path / "photos"))


def change(photos: Path) -> None:
    """Twelve new images, three of them of a new class that comes first; a class of twelve is gone."""
    first, second, *_ = sorted(photos.iterdir())
    for number, file in enumerate(sorted(second.iterdir())[:9]):
        Image.open(file).rotate(90).save(second / f"new {number}.png")
    (photos / "0 new").mkdir()
    for file in sorted(second.glob("new*"))[:3]:
        Image.open(file).rotate(90).save(photos / "0 new" / file.name)
    shutil.rmtree(first)


def settings(photos: Path, method: str, **more: Any) -> TrainConfig:
    small = {**SMALL, **small_settings(method), "method": method, "data": str(photos)}
    return build_config({**small, "validation.every_n_epochs": 1, **more})


def unfinished(config: TrainConfig, out: Path) -> tuple[int, int]:
    """Train, and take the end away again. Returns the step it is at and the steps of the whole run."""
    run = train(config, out, QUIET)
    *_, before, last = checkpoints(run.checkpoints)
    last.unlink()
    shutil.rmtree(run.encoder)
    return (int(before.stem[5:]), int(last.stem[5:]))


def goes_on(config: TrainConfig, out: Path, at: int, steps: int, err: Callable[[], str]) -> str:
    err()
    train(config, out, QUIET)
    assert [int(row["step"]) for row in read_metrics(out / "metrics.csv")] == list(range(steps))
    assert int(torch.load(checkpoints(out / "checkpoints")[-1], weights_only=True)["module"]["steps"]) == steps
    assert all(weight.isfinite().all() for weight in Encoder.load(out).parameters())
    printed = err()
    assert f"Continuing at step {at} of {steps}." in printed
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_every_method_goes_on(method: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, out = settings(photos, method), tmp_path / "run"
    at, steps = unfinished(config, out)
    change(photos)
    printed = goes_on(config, out, at, steps, lambda: capsys.readouterr().err)
    assert "12 new images, 12 gone since this run began: it goes on with the 48 that are there" in printed
    assert ("Not learned, since the run began without them: 0 new." in printed) == (method == "supervised")


@pytest.mark.slow
def test_what_is_known_of_each_image_stays_with_it(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = settings(photos, "lcr", **OBJECTS, epochs=3), tmp_path / "run"
    at, steps = unfinished(config, out)
    before = load_checkpoint(out / "checkpoints")[1]
    change(photos)
    goes_on(config, out, at, steps, lambda: capsys.readouterr().err)
    after = load_checkpoint(out / "checkpoints")[1]
    assert not any("hook" in name for name in torch.load(checkpoints(out / "checkpoints")[-1])["module"])
    rows = [dict(zip(s["images"].tolist(), s["module"]["hook.maps"], strict=True)) for s in (before, after)]
    shared = rows[0].keys() & rows[1].keys()
    assert 20 < len(shared) < len(rows[1])
    assert all(torch.equal(rows[0][image], rows[1][image]) for image in shared)
    assert not any(rows[1][image].any() for image in rows[1].keys() - shared), "not looked at before the next epoch"


def test_rows_are_carried_by_image() -> None:
    hook = ObjectsHook(build_config({**SMALL, **OBJECTS, "method": "lcr"}), 3)
    now = np.array([7, 2, 9], np.uint64)
    boxes, maps = torch.rand(4, 4), torch.randint(0, 255, (4, *hook.maps.shape[1:]), dtype=torch.uint8)

    def carried(before: torch.Tensor | None, count: int = 4) -> dict[str, torch.Tensor]:
        state = {"hook.boxes": boxes[:count], "hook.maps": maps[:count]}
        carry_rows(hook, state, before, now)
        return state

    found = carried(torch.tensor([2, 5, 7, 8]))
    for name, rows, fresh in (("hook.boxes", boxes, hook.boxes), ("hook.maps", maps, hook.maps)):
        assert torch.equal(found[name][:2], rows[[2, 0]])
        assert torch.equal(found[name][2], fresh[2]), "as in a new run"
        assert torch.equal(carried(None)[name], fresh), "not known whose they are"
        assert torch.equal(carried(None, 3)[name], rows[:3]), "of an earlier version, and nothing changed"
        assert torch.equal(carried(torch.tensor([7, 2, 9]), 3)[name], rows[:3])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lcr", "supervised"])
def test_a_run_of_an_earlier_version_goes_on_without_counts(
    method: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = settings(photos, method), tmp_path / "run"
    at, steps = unfinished(config, out)
    (out / "images.npz").unlink()
    if method == "supervised":
        shutil.copytree(sorted(photos.iterdir())[0], photos / "a fifth")
        with pytest.raises(FineSightError, match=r"learns 4 classes and .* has 5"):
            train(config, out, QUIET)
        return
    change(photos)
    for file in sorted(photos.glob("*/*"))[:20]:
        file.unlink()
    printed = goes_on(config, out, at, steps, lambda: capsys.readouterr().err)
    assert "since this run began" not in printed
    remembered = RunImages.read(out / "images.npz")
    assert remembered is not None
    assert (remembered.steps_per_epoch, len(remembered.paths)) == (steps // 2, 28), "from now on it is known"


# --- what is held out -------------------------------------------------------------------------------------------------


def opened(photos: Path) -> DecodedCache:
    return open_cache(open_source(photos), cache_side(32), progress=False)


def test_what_is_held_out_stays_so(photos: Path, tmp_path: Path) -> None:
    config = settings(photos, "lcr", **{"validation.fraction": 0.25})
    cache, images, held_out = prepare_data(config, QUIET)
    assert np.array_equal(held_out, hold_out(48, config)[1])
    RunImages.of(cache, held_out, 4).write(tmp_path / "images.npz")
    known = RunImages.read(tmp_path / "images.npz")
    assert known is not None
    assert known.changes(cache.source) == ""
    for kept, before in zip(prepare_data(config, QUIET, known=known)[1:], (images, held_out), strict=True):
        assert np.array_equal(kept, before), "nothing changed"

    names = cache.source.paths[held_out].tolist()
    (photos / names[0]).rename(photos / Path(names[0]).parent / "another name.png")
    (photos / names[1]).unlink()
    shutil.copy(photos / cache.source.paths[images[0]], photos / Path(names[0]).parent / "copy.png")
    cache, images, held_out = prepare_data(config, QUIET, known=known)
    assert known.changes(cache.source).startswith("2 new images, 2 gone since")
    now = {*cache.source.paths[held_out].tolist()}
    assert now == {*names[2:], f"{Path(names[0]).parent}/another name.png"}
    assert any(path.endswith("copy.png") for path in cache.source.paths[images].tolist())
    assert sorted([*images, *held_out]) == list(range(48))


def test_classes_keep_their_numbers(photos: Path) -> None:
    cache = opened(photos)
    known = RunImages.of(cache, np.arange(0), 4)
    assert known.relabel(cache) is cache
    change(photos)
    now = opened(photos)
    source = known.relabel(now).source
    assert source.classes == cache.source.classes
    assert source.labels is not None
    for path, label in zip(source.paths.tolist(), source.labels.tolist(), strict=True):
        folder = path.split("/")[0]
        assert label == (-1 if folder == "0 new" else source.classes.index(folder))


def test_a_limited_run_keeps_its_images(photos: Path) -> None:
    config = settings(photos, "lcr", limit_images=20)
    (sorted(photos.glob("*/*"))[3]).write_bytes(b"no image")  # one that may be chosen and cannot be read
    cache, _, held_out = prepare_data(config, QUIET)
    known = RunImages.of(cache, held_out, 2)
    again = prepare_data(config, QUIET, known=known)[0]
    assert again.source.paths.tolist() == cache.source.paths.tolist()
    for file in list(photos.glob("*/*")):
        shutil.copy(file, file.with_name(f"0 {file.name}"))
    (photos / cache.source.paths[5]).unlink()
    more = prepare_data(config, QUIET, known=known)[0].source
    assert np.isin(path_hashes(more), known.paths).sum() == len(known.paths) - 1
    assert len(more) in (19, 20)


def test_damaged_or_missing_memory_is_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "images.npz"
    assert RunImages.read(file) is None
    for content in (b"", b"PK nothing of use"):
        file.write_bytes(content)
        assert RunImages.read(file) is None


# --- batches ----------------------------------------------------------------------------------------------------------


def test_an_epoch_keeps_its_steps(photos: Path) -> None:
    cache = opened(photos)
    more = Batches(cache, np.arange(12), batch_size=5, epochs=2, seed=0, steps_per_epoch=4)
    assert more.total == 8
    epoch = [more.indices(step) for step in range(4)]
    assert np.bincount(np.concatenate(epoch)).tolist().count(2) == 8, "20 places for 12 images"
    assert all(len({*batch.tolist()}) == 5 for batch in epoch)
    fewer = Batches(cache, np.arange(48), batch_size=5, epochs=6, seed=0, steps_per_epoch=2)
    seen = [{*np.concatenate([fewer.indices(step) for step in (e, e + 1)]).tolist()} for e in range(0, 12, 2)]
    assert all(len(epoch) == 10 for epoch in seen)
    assert len(set.union(*seen)) > 30, "every epoch takes others"


# --- as a user does ---------------------------------------------------------------------------------------------------


@pytest.fixture
def odd_birds(tmp_path: Path) -> Path:
    """200 real birds under names that people have, and what else lies in such folders."""
    files = sorted((cub_root() / "images").glob("*/*.jpg"))[::58][:200]
    assert len(files) == 200
    folder = tmp_path / "My birds, été 2023 (копия)"
    folder.mkdir()
    for number, file in enumerate(files):
        odd = (f"bird {number}.JPG", f"Vögel_{number}.jpeg", f"鳥 {number}.jpg", f"[{number}] 'q' & %20.jpg")[
            number % 4
        ]
        with Image.open(file) as image:
            image.convert("RGB").resize((60, 48)).save(folder / odd, format="jpeg")
    (folder / "notes.txt").write_text("seen on Sunday")
    (folder / "broken.jpg").write_bytes(files[0].read_bytes()[:900])
    (folder / "empty.jpg").touch()
    return folder


@pytest.mark.slow
def test_ctrl_c_new_photos_and_the_same_command(odd_birds: Path, tmp_path: Path) -> None:
    in_time(lambda place: stop_and_add_photos(odd_birds, place / "run"), tmp_path)


def stop_and_add_photos(odd_birds: Path, out: Path) -> None:
    words = ("--data", str(odd_birds), "--epochs", "6", "--checkpoint-minutes", "0", *TINY, "--batch-size", "16")
    running = Command("train", "--out", out, *words)
    running.until(lambda: len(checkpoints(out / "checkpoints")) > 1)
    running.send(signal.SIGINT)
    done = running.wait()
    if len(read_metrics(out / "metrics.csv")) == 72:
        raise TooLate
    assert done.code == 130
    assert "Traceback" not in done.err
    photos = sorted(file for file in odd_birds.iterdir() if file.stat().st_size and file.stem != "broken")
    for number, file in enumerate(photos[20:32]):
        with Image.open(file) as image:
            image.rotate(90).save(odd_birds / f"neu {number} ñ.JPG", format="jpeg")
    for file in photos[:3]:
        file.unlink()
    done = trained(out, *words)
    assert "12 new images, 3 gone since this run began: it goes on with the 209 that are there" in done.err
    assert re.search(r"Continuing at step \d+ of 72\.", done.err), done.err
    assert len(read_metrics(out / "metrics.csv")) == 72
    assert "3 files were skipped" in done.err, "two that cannot be read, and notes.txt"


@pytest.mark.slow
def test_a_folder_that_changes_while_training_runs(photos: Path, tmp_path: Path) -> None:
    """What was decoded carries the run, held-out images and the encoder's own resolution included."""
    out = tmp_path / "run"
    validation = ("--test-resolution", "48", "--set", "validation.every_n_epochs=9")
    words = ("--data", photos, "--epochs", "20", *TINY, *validation)
    running = Command("train", "--out", out, *words)
    running.until(lambda: len(read_metrics(out / "metrics.csv")) > 2)
    files = sorted(photos.glob("*/*"))
    for file in files[:40]:
        file.unlink()
    files[-1].write_bytes(b"rewritten while it was used")
    done = running.wait()
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    rows = read_metrics(out / "metrics.csv")
    assert len(rows) == 100
    assert sum(bool(row["val_rank1"]) for row in rows) == 3
    assert RunFolder(out).report.exists()
    shutil.rmtree(photos)
    shutil.rmtree(out / "encoder")
    assert Command("train", "--out", out, *words).wait().code == 2, "a folder that is gone is an error, no traceback"
