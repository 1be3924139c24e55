"""A full disk: one sentence, the last good state, nothing left over; with room again, the same result as ever."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from disks import small_disk
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.features.writing import embed_images
from finesight.search.faiss_index import FaissIndex
from finesight.training.checkpoints import checkpoints, load_checkpoint, save_checkpoint
from indexes import Array, batch, filled_index, units
from processes import TINY, command, refused, succeeded

ROOM = 200_000  # KiB


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if ".tmp" in path.name]


def test_a_checkpoint_leaves_the_one_before_and_no_scratch(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        folder = disk.folder / "checkpoints"
        save_checkpoint(folder, 1, {"w": torch.zeros(100_000)})
        with pytest.raises(FineSightError, match=r"step-00000002\.pt cannot be written: no space left") as caught:
            save_checkpoint(folder, 2, {"w": torch.zeros(1_000_000)})
        assert isinstance(caught.value, OSError), "callers may catch it as what it is"
        assert os.listdir(folder) == ["step-00000001.pt"]
        found = load_checkpoint(folder)
        assert found is not None
        assert found[0].name == "step-00000001.pt"


@pytest.mark.parametrize("kib", [4, 16, 6000], ids=["config", "list-of-images", "second-checkpoint"])
def test_training_stops_with_a_sentence_and_goes_on_when_there_is_room(
    lcr: Path, birds: Path, tmp_path: Path, kib: int
) -> None:
    with small_disk(tmp_path / "disk", kib) as disk:
        out = disk.folder / "run"
        train = ("train", "--data", birds, "--out", out, "--epochs", "2", "--checkpoint-minutes", "0", *TINY)
        message = refused(command(*train), "cannot be written: no space left on device; make room")
        assert not left_over(disk.folder)
        if checkpoints(out / "checkpoints"):
            assert "continues from step-00000001.pt, the last good checkpoint" in message
        disk.resize(ROOM)
        succeeded(command(*train))
        weights = "encoder/encoder.safetensors"
        assert (out / weights).read_bytes() == (lcr / weights).read_bytes()


def test_features_are_refused_before_the_work_or_kept_elsewhere(lcr: Path, birds: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        out = disk.folder / "features.npz"
        message = refused(
            command("embed", lcr, birds, "-o", out, "--quiet"), "features.npz cannot be written", "MB free"
        )
        assert "kept in" not in message, "the work was not done in vain"
        assert not list(disk.folder.iterdir())
        # The estimate for a CSV is what it takes at least: here the disk turns out to be too small at the end.
        encoder = Encoder.load(lcr)
        disk.resize(4 + 72 * encoder.feature_width("average") * 8 // 1024)
        with pytest.raises(FineSightError, match="The features are kept in") as error:
            embed_images(
                encoder, birds, disk.folder / "f.csv", pooling="average", cache_dir=tmp_path / "cache", progress=False
            )
        kept = Path(str(error.value).partition("kept in ")[2].partition(": move")[0])
        assert len(kept.read_text().splitlines()) == 1 + 72
        assert kept.parent == tmp_path / "cache"
        assert not left_over(disk.folder)


def test_tables_of_clusters(tmp_path: Path) -> None:
    filled_index(tmp_path / "index", units(40)).close()
    with small_disk(tmp_path / "disk", 4) as disk:
        (disk.folder / "full").write_bytes(bytes(4096))
        out = disk.folder / "found"
        for name in ("clusters", "duplicates"):
            refused(command(name, tmp_path / "index", "-o", out, "--quiet"), f"{name}.csv cannot be written: no space")
        assert not left_over(disk.folder)


@pytest.mark.parametrize("name", ["clean", "compare", "explain", "export", "index", "lookalikes", "push"])
def test_every_other_command_that_writes(lcr: Path, birds: Path, tmp_path: Path, name: str) -> None:
    """One sentence with the reason, in the words of the system alone."""
    if name == "compare":
        lcr = Path(shutil.copytree(lcr, tmp_path / "run"))  # scores are kept in it
    with small_disk(tmp_path / "disk", 4) as disk:
        out = disk.folder / "out"
        commands: dict[str, tuple[str | Path, ...]] = {
            "clean": ("clean", birds, "--run", lcr, "-o", out, "--quiet"),
            "compare": ("compare", lcr, lcr, "--pooling-b", "average", "--data", birds, "--out", out, "--quiet"),
            "explain": ("explain", lcr, birds, "-o", out, "--count", "2", "--quiet"),
            "export": ("export", lcr, disk.folder / "model.safetensors"),
            "index": ("index", lcr, birds, "--index", out, "--quiet"),
            "lookalikes": ("lookalikes", out, "--species", "3"),
            "push": ("push", lcr, "birds/lcr", "--dry-run", out),
        }
        message = refused(command(*commands[name]), "cannot be written")
        assert message.lower().count("no space left on device") == 1
        assert not left_over(disk.folder)


def add_all(index: FaissIndex, vectors: Array) -> None:
    for start in range(500, len(vectors), 500):
        index.add(batch(list(range(start + 1, start + 501)), vectors[start : start + 500]))


def test_an_index_keeps_what_it_has(tmp_path: Path) -> None:
    vectors = units(3000)
    with small_disk(tmp_path / "disk", 400) as disk:
        index = filled_index(disk.folder / "index", vectors[:500])
        with pytest.raises(FineSightError, match=r"cannot be (written|used)"):
            add_all(index, vectors)
        index.close()
        disk.resize(ROOM)
        with_room = FaissIndex(disk.folder / "index")
        have = len(with_room)
        assert have >= 500
        assert not len(with_room.find_damaged(everything=True))
        with_room.add(batch(list(range(have + 1, 3001)), vectors[have:]))
        with_room.finish()
        assert len(with_room) == 3000
        assert np.array_equal(with_room.vectors(np.arange(1, 3001), "rationale-gem"), vectors)


@pytest.mark.parametrize("kib", [4, 64])
def test_the_cache_of_decoded_images(lcr: Path, birds: Path, tmp_path: Path, kib: int) -> None:
    with small_disk(tmp_path / "disk", kib) as disk:
        embed = ("embed", lcr, birds, "-o", tmp_path / "f.npz", "--cache-dir", disk.folder / "cache", "--quiet")
        refused(command(*embed), "disk of" if kib < 100 else "")
        disk.resize(ROOM)
        succeeded(command(*embed))


@pytest.mark.parametrize("name", ["embed", "per-class", "clusters"])
def test_a_folder_that_may_not_be_written_is_refused_first(lcr: Path, birds: Path, tmp_path: Path, name: str) -> None:
    if os.geteuid() == 0:  # root may write everywhere but on a disk that is mounted read-only
        with small_disk(tmp_path / "locked", 64) as disk:
            disk.make_read_only()
            _refused_at_once(name, lcr, birds, tmp_path)
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
        _refused_at_once(name, lcr, birds, tmp_path)


def _refused_at_once(name: str, lcr: Path, birds: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    if name == "clusters":
        filled_index(tmp_path / "index", units(20)).close()
    commands = {
        "embed": ("embed", lcr, birds, "-o", locked / "f.npz", "--quiet"),
        "per-class": (
            "evaluate",
            shutil.copytree(lcr, tmp_path / "run"),
            "--data",
            birds,
            "--per-class",
            locked / "c.csv",
        ),
        "clusters": ("clusters", tmp_path / "index", "-o", locked, "--quiet"),
    }
    refused(command(*commands[name]), "cannot be written", "check its permissions, or choose another place")
