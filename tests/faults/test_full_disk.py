"""A full disk: one sentence, the last good state, nothing left over; with room again, the same result as ever."""

from __future__ import annotations

import os
import shutil
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import finesight
from disks import small_disk
from finesight.curation.clean import clean
from finesight.curation.exchange import export
from finesight.data.layouts.lookalikes import LookalikesConfig
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.evaluation.judgments import read_records
from finesight.features.encoder import Encoder
from finesight.features.writing import embed_images
from finesight.report.demo import run_demo
from finesight.search.engines import open_index
from finesight.search.faiss_index import FaissIndex
from finesight.search.notes import Notes
from finesight.search.remote_index import FileFacts, RemoteManifest
from finesight.training.checkpoints import checkpoints, load_checkpoint, save_checkpoint
from indexes import Array, batch, filled_index, small_encoder, units
from processes import TINY, command, refused, succeeded
from serving import make_gallery, web_for
from serving import refused as no_room
from storage import samples_of, web_server, write_tar

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


@pytest.mark.parametrize(
    "name", ["clean", "compare", "demo", "explain", "export", "index", "lookalikes", "push", "up", "labels", "exchange"]
)
def test_every_other_command_that_writes(lcr: Path, birds: Path, tmp_path: Path, name: str) -> None:
    """One sentence with the reason, in the words of the system alone."""
    if name == "compare":
        lcr = Path(shutil.copytree(lcr, tmp_path / "run"))  # scores are kept in it
    filled = tmp_path / "index"
    if name == "labels":
        filled_index(filled, units(200)).close()
        with closing(Notes(filled / "notes.db")) as notes:
            notes.change(range(1, 201), label="siskin")
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
            "demo": ("demo", "--out", out, "--quiet"),
            "up": ("up", birds, "--out", out, "--weights", "random", "--port", "0", "--no-open", "--quiet"),
            "labels": ("labels", "show", filled, "-o", out),
            "exchange": ("labels", "export", birds, "--run", lcr, "--to", "cvat", "-o", out, "--quiet"),
        }
        message = refused(command(*commands[name]), "cannot be written")
        assert message.lower().count("no space left on device") == 1
        assert not left_over(disk.folder)


def fill(folder: Path) -> None:
    """Leave no room on the disk of a folder."""
    with (folder / "full").open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(4096)):
            pass


def test_a_demo_that_is_made_again_keeps_its_results(tmp_path: Path) -> None:
    drawing = LookalikesConfig(species=3, train_per_species=4, test_per_species=3, size=48)
    quick = {"epochs": 1, "batch_size": 8, "views.resolution": 40}
    with small_disk(tmp_path / "disk", ROOM) as disk:
        again = partial(run_demo, disk.folder, 3, progress=False, drawing=drawing, settings=quick)
        again()
        before = {name: (disk.folder / "seed-3" / name).read_bytes() for name in ("results.json", "report.html")}
        fill(disk.folder)
        with pytest.raises(FineSightError, match=r"cannot be written: no space left on device; make room"):
            again()
        for name, content in before.items():
            assert (disk.folder / "seed-3" / name).read_bytes() == content
        assert not left_over(disk.folder)


@pytest.mark.parametrize("tool", ["cvat", "fiftyone", "label-studio"])
def test_files_for_another_tool(birds: Path, tmp_path: Path, tool: str) -> None:
    """There is room when the command begins, and none for all of the files; those of the time before stay."""
    found = clean(birds, Encoder.load(small_encoder(tmp_path / "run")), cache_dir=tmp_path / "cache", progress=False)
    with small_disk(tmp_path / "disk", ROOM) as disk:
        out = disk.folder / "out"
        export(found, tool, out)
        before = {file.name: file.read_bytes() for file in out.iterdir()}
        (disk.folder / "little").write_bytes(bytes(4096))
        fill(disk.folder)
        (disk.folder / "little").unlink()
        with pytest.raises(FineSightError, match=r"cannot be written: no space left on device; make room"):
            export(found, tool, out)
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_answers_of_a_judge(unlabeled: Path, tmp_path: Path) -> None:
    """The answers before are kept; neither an answer nor an export is there by half."""
    with small_disk(tmp_path / "disk", ROOM) as disk:
        runs = small_encoder(disk.folder / "a"), small_encoder(disk.folder / "b", seed=3)
        session = finesight.judge(*runs, unlabeled, images=12)
        session.answer("left")
        file = runs[1] / "judgments.json"
        before = file.read_bytes()
        fill(disk.folder)
        with pytest.raises(FineSightError, match=r"judgments\.json cannot be written: no space left on device"):
            session.answer("right")
        assert file.read_bytes() == before
        judge = ("judge", *runs, "--data", unlabeled, "--images", "12", "--quiet")
        refused(command(*judge, "--export", disk.folder / "clicks.csv"), "clicks.csv cannot be written: no space left")
        assert not left_over(disk.folder)
        (disk.folder / "full").unlink()
        session.answer("right")
        assert [one.choice for one in read_records(file)[0].judgments] == ["left", "right"]


def test_labels_given_on_the_page(tmp_path: Path) -> None:
    """One sentence for the page, and the labels before; with room again, the same server takes them."""
    with small_disk(tmp_path / "disk", ROOM) as disk:
        gallery = make_gallery(disk.folder)
        with web_for(gallery.index) as web:
            ids = [item["id"] for item in web.ask("items")["items"]]
            assert web.post("/api/labels", json={"ids": ids[:1], "label": "wren"}).status_code == 200
            before = web.ask("labels")
            fill(disk.folder)
            wanted = {"ids": ids, "label": "robin", "add_tags": [f"{number:0100d}" for number in range(50)]}
            no_room(web.post("/api/labels", json=wanted), 409, "cannot be saved: the disk is full; make room.")
            assert web.ask("labels") == before
            with closing(Notes(gallery.index.with_name("notes.db"))) as notes:
                assert [note.label for note in notes.all().values()] == ["wren"]
            (disk.folder / "full").unlink()
            assert web.post("/api/labels", json=wanted).status_code == 200
            assert {one["name"]: one["count"] for one in web.ask("labels")["labels"]} == {"robin": len(ids)}


def test_headers_of_tar_files_are_then_read_each_time(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path / "site" / "birds.tar", samples_of(class_folders))
    with small_disk(tmp_path / "disk", 16) as disk, web_server(tmp_path / "site") as url:
        monkeypatch.setenv("FINESIGHT_CACHE", str(disk.folder))
        fill(disk.folder)
        assert len(open_source(f"{url}/birds.tar")) == 48
        assert [file.name for file in disk.folder.rglob("*") if file.is_file()] == ["full"]


def test_the_copy_of_a_remote_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy that was fetched before stays whole, and serves again when there is room."""
    site = tmp_path / "site"
    site.mkdir()

    def publish(version: str, rows: int) -> None:
        filled_index(site / version, units(rows)).close()
        files = {file.relative_to(site / version).as_posix(): file for file in (site / version).rglob("*.*")}
        facts = {name: FileFacts.of(file) for name, file in files.items() if not file.name.startswith(".")}
        (site / "manifest.json").write_text(RemoteManifest(version=version, files=facts).model_dump_json())

    publish("a" * 32, 100)
    with small_disk(tmp_path / "disk", ROOM) as disk, web_server(tmp_path) as url:
        monkeypatch.setenv("FINESIGHT_CACHE", str(disk.folder))
        with closing(open_index(f"{url}/site")) as index:
            assert len(index) == 100
        publish("b" * 32, 300)
        fill(disk.folder)
        with pytest.raises(FineSightError, match=r"cannot be (fetched|written).*no space left on device") as error:
            open_index(f"{url}/site")
        assert str(error.value).count("\n") == 0
        assert not left_over(disk.folder)
        (copy,) = (disk.folder / "indexes").iterdir()
        with closing(FaissIndex(copy)) as index:
            assert len(index) == 100
            assert not len(index.find_damaged(everything=True))
        (disk.folder / "full").unlink()
        with closing(open_index(f"{url}/site")) as index:
            assert len(index) == 300


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
