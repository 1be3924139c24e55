"""Images where they live: an S3 server, tar and Parquet files, without unpacking or copying them."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs
from PIL import Image

from finesight.data.cache import open_cache
from finesight.data.decode import read_image
from finesight.data.sources import ImageSource, open_source
from finesight.data.store import read_entries
from finesight.errors import FineSightError
from finesight.search.base import Index
from finesight.search.engines import create_index, open_index
from finesight.search.notes import Notes
from indexes import SPACES, batch, meta, small_encoder, units
from milvus_servers import Wire
from processes import TINY, Command, command, refused, succeeded, trained
from storage import BUCKET, fill_bucket, s3_server, samples_of, web_server, write_parquet, write_tar

SIDE = 32


@pytest.fixture(scope="module")
def bucket(class_folders: Path, birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server with class folders, the same split in train and test, and the same in tar and Parquet files."""
    work = tmp_path_factory.mktemp("bucket")
    samples = samples_of(class_folders)
    for number in range(3):
        write_tar(work / "tars" / f"birds-{number:03d}.tar", samples[number::3])
    for split in ("train", "test"):
        write_parquet(work / "rows" / f"{split}-0.parquet", samples_of(birds / split))
    with s3_server() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        for folder in (class_folders, birds, work / "tars", work / "rows"):
            fill_bucket(folder)
        yield f"s3://{BUCKET}"


@pytest.fixture
def shards(class_folders: Path, tmp_path: Path) -> Path:
    """Three tar files."""
    samples = samples_of(class_folders)
    for number in range(3):
        write_tar(tmp_path / "shards" / f"birds-{number:03d}.tar", samples[number::3])
    return tmp_path / "shards"


def classes_of(source: ImageSource) -> list[str]:
    assert source.labels is not None
    return [source.classes[label] for label in source.labels]


def pixels(source: ImageSource, cache: Path) -> list[bytes]:
    decoded = open_cache(source, SIDE, cache_dir=cache, progress=False)
    assert not decoded.skipped
    return [decoded.image(i).tobytes() for i in range(len(decoded))]


# --- what is listed and decoded ---------------------------------------------------------------------------------------


def test_a_bucket_is_listed_and_decoded_as_the_folder(bucket: str, class_folders: Path, tmp_path: Path) -> None:
    here, there = open_source(class_folders), open_source(f"{bucket}/{class_folders.name}")
    assert there.kind == "class folders"
    assert there.paths.tolist() == here.paths.tolist()
    assert classes_of(there) == classes_of(here)
    assert f"{bucket}/{class_folders.name}" in there.describe()
    assert pixels(there, tmp_path / "a") == pixels(here, tmp_path / "b")


def test_splits_of_a_bucket(bucket: str, birds: Path) -> None:
    there = open_source(f"{bucket}/{birds.name}")
    assert there.splits is not None
    assert [int((there.splits == name).sum()) for name in ("train", "test")] == [48, 24]
    assert len(there.classes) == 4


@pytest.mark.parametrize("where", ["tars", "tars/birds-*.tar"])
def test_tar_files_of_a_bucket(bucket: str, where: str, class_folders: Path, tmp_path: Path) -> None:
    here, there = open_source(class_folders), open_source(f"{bucket}/{where}")
    assert there.kind == "shards"
    assert sorted(classes_of(there)) == sorted(classes_of(here))
    assert sorted(pixels(there, tmp_path / "a")) == sorted(pixels(here, tmp_path / "b"))


def test_headers_of_a_tar_file_are_fetched_once(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes them from the cache; those of a file that changed are others."""
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path))
    where = f"{BUCKET}/changing/birds.tar"
    store = s3fs.S3FileSystem()
    store.copy(f"{BUCKET}/tars/birds-000.tar", where)
    assert len(open_source(f"s3://{where}")) == 16
    (kept,) = (tmp_path / "tars").iterdir()
    assert json.loads(kept.read_text()).keys() >= {"00000.png", "00000.cls"}
    write_tar(tmp_path / "two.tar", [("a", b"", "x"), ("b", b"", "x")])
    store.put_file(str(tmp_path / "two.tar"), where)
    assert len(open_source(f"s3://{where}")) == 2
    assert len(list((tmp_path / "tars").iterdir())) == 2


def test_parquet_files_of_a_bucket(bucket: str, birds: Path, tmp_path: Path) -> None:
    there = open_source(f"{bucket}/rows")
    assert there.splits is not None
    train = there.split("train")
    here = open_source(birds).split("train")
    assert classes_of(train) == classes_of(here)
    assert pixels(train, tmp_path / "a") == pixels(here, tmp_path / "b")


def test_tar_files_of_a_folder(shards: Path, class_folders: Path, tmp_path: Path) -> None:
    source = open_source(shards)
    assert source.kind == "shards"
    assert len(open_source(shards / "birds-001.tar")) == 16
    assert sorted(pixels(source, tmp_path / "a")) == sorted(pixels(open_source(class_folders), tmp_path / "b"))
    assert sorted(file.name for file in shards.iterdir()) == [f"birds-00{n}.tar" for n in range(3)], "unpacked"


def test_a_changed_shard_is_decoded_again(shards: Path, tmp_path: Path) -> None:
    before = pixels(open_source(shards), tmp_path / "cache")
    with_other_order = [(f"{n:05d}", image, label) for n, (_, image, label) in enumerate(_samples(shards)[::-1])]
    write_tar(shards / "birds-000.tar", with_other_order)
    after = pixels(open_source(shards), tmp_path / "cache")
    assert sorted(after) == sorted(before)
    assert after != before


def _samples(shards: Path) -> list[tuple[str, bytes, str]]:
    import tarfile

    with tarfile.open(shards / "birds-000.tar") as archive:
        contents = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
    names = sorted({name.partition(".")[0] for name in contents})
    return [(name, contents[f"{name}.png"], contents[f"{name}.cls"].decode()) for name in names]


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_what_cannot_be_opened(bucket: str, tmp_path: Path) -> None:
    for where, words in (
        (f"{bucket}/nothing", "no image in|is empty"),
        ("s3://no-such-bucket/birds", "cannot be read"),
        (f"{bucket}/tars/none.tar", "no such file"),
    ):
        with pytest.raises(FineSightError, match=words):
            open_source(where)
    (tmp_path / "bad.tar").write_bytes(b"not a tar file" * 100)
    with pytest.raises(FineSightError, match="damaged tar file"):
        open_source(tmp_path / "bad.tar")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(FineSightError, match="damaged Parquet file"):
        open_source(tmp_path / "bad.parquet")


def test_an_object_that_vanished_is_skipped(bucket: str, class_folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(class_folders, tmp_path / "vanishing"))
    fill_bucket(folder)
    source = open_source(f"{bucket}/vanishing")
    s3fs.S3FileSystem().rm(f"{BUCKET}/vanishing/{source.paths[3]}")
    decoded = open_cache(source, SIDE, cache_dir=tmp_path / "cache", progress=False)
    assert len(decoded) == 47
    assert [path for path, _ in decoded.skipped] == [source.paths[3]]


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_from_a_bucket_is_training_from_the_folder(bucket: str, class_folders: Path, tmp_path: Path) -> None:
    """The images come from tar files; they are in another order there, so the folder is given as a list."""
    one, two = tmp_path / "one", tmp_path / "two"
    options = ("--epochs", "1", *TINY)
    trained(one, "--data", class_folders, *options)
    trained(two, "--data", f"{bucket}/{class_folders.name}", *options)
    assert (one / "metrics.csv").read_text() == (two / "metrics.csv").read_text()
    assert f"data: {bucket}" in (two / "config.yaml").read_text()


@pytest.mark.slow
def test_an_index_in_a_bucket(bucket: str, class_folders: Path, tmp_path: Path) -> None:
    """Built from tar files, sent, fetched on a machine that has never seen it, updated, and refused when damaged."""
    index, data, run = f"{bucket}/indexes/mine", f"{bucket}/tars", small_encoder(tmp_path / "run")
    first, second = tmp_path / "first", tmp_path / "second"
    built = succeeded(command("index", run, data, "--index", index, "--json", FINESIGHT_CACHE=str(first)))
    assert json.loads(built.out)["added"] == 48
    again = succeeded(command("index", run, data, "--index", index, "--json", FINESIGHT_CACHE=str(second)))
    assert json.loads(again.out)["kept"] == 48
    query = next(class_folders.glob("*/*.png"))
    found = succeeded(command("search", index, query, "--json", FINESIGHT_CACHE=str(second)))
    assert json.loads(found.out)["results"][0]["hits"][0]["score"] > 0.999
    store = s3fs.S3FileSystem()
    (vectors,) = [name for name in store.find(f"{BUCKET}/indexes/mine") if "vectors" in name][:1]
    store.pipe_file(vectors, b"\1" + store.cat_file(vectors)[1:])
    message = refused(command("search", index, query, "--json", FINESIGHT_CACHE=str(tmp_path / "third")))
    assert "damaged" in message
    assert "checksum" in message


@pytest.mark.slow
def test_a_writer_is_killed_and_a_server_vanishes(bucket: str, class_folders: Path, tmp_path: Path) -> None:
    """In the middle of sending, and of fetching: what was sent before is whole, and the next writer cleans up."""
    where, run, images = f"{bucket}/indexes/{tmp_path.name}", small_encoder(tmp_path / "run"), tmp_path / "images"
    shutil.copytree(class_folders, images)
    port, store = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]), s3fs.S3FileSystem()
    index = ("index", run, images, "--index", where, "--quiet")

    def found() -> dict[str, Any]:
        """What a machine finds that has never seen the index."""
        cache = str(tmp_path / f"cache-{uuid.uuid4().hex}")
        done = succeeded(command("search", where, query, "-k", "1", "--json", FINESIGHT_CACHE=cache))
        return dict(json.loads(done.out)["results"][0]["hits"][0])

    def versions() -> set[str]:
        store.invalidate_cache()
        return {name.split("/")[3] for name in store.find(f"{BUCKET}/indexes/{tmp_path.name}")} - {"manifest.json"}

    @contextmanager
    def wire_to_it(**options: bool) -> Iterator[tuple[Wire, dict[str, str], int]]:
        """A wire, what leads a command to it, and half of the size of the index."""
        wire, cache = Wire(port, **options), str(tmp_path / f"cache-{uuid.uuid4().hex}")
        leads = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{wire.port}", "AWS_MAX_ATTEMPTS": "1", "FINESIGHT_CACHE": cache}
        try:
            yield wire, leads, store.du(f"{BUCKET}/indexes/{tmp_path.name}") // 2
        finally:
            wire.close()

    query = next(images.glob("*/*.png"))
    succeeded(command(*index))
    (first,), before = versions(), found()
    newest = shutil.copy(query, images / query.parent.name / "newest.png")
    with wire_to_it() as (wire, leads, half):
        wire.hold_after(half)
        writer = Command(*index, **leads)
        writer.until(wire.holds.is_set)
        writer.send(signal.SIGKILL)
        assert writer.wait().code == -signal.SIGKILL
    assert len(versions()) == 2, "a part of another version"
    assert found() == before
    with wire_to_it() as (wire, leads, half):
        wire.cut_after(half)
        done = command(*index, **leads)
        assert done.code == 2, done.err
        assert f"The index was not sent to {where}: " in done.err
        assert done.err.count("\n") == 1, "one sentence"
        assert not wire.is_due
    assert found() == before
    with wire_to_it(answers=True) as (wire, leads, half):
        wire.cut_after(half)
        refused(command("search", where, query, **leads), f"of the index {where} cannot be fetched: ")
        assert not wire.is_due
        assert not list((Path(leads["FINESIGHT_CACHE"]) / "indexes").iterdir())
    query = Path(newest)
    assert json.loads(succeeded(command(*index, "--json")).out)["added"] == 1
    assert found()["score"] > 0.999
    (now,) = versions()
    assert now != first


def opened(where: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The index as a machine with this cache has it."""
    monkeypatch.setenv("FINESIGHT_CACHE", str(cache))
    return open_index(where)


def test_two_writers_of_an_index_in_a_bucket(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes later is told so, and sends nothing; also if both send at the same moment."""
    where, encoder = f"{bucket}/indexes/shared", small_encoder(tmp_path) / "encoder"
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "first"))
    index = create_index(where, meta(), encoder)
    index.add(batch(list(range(5)), units(5)))
    index.close()
    one, two = (opened(where, tmp_path / name, monkeypatch) for name in ("one", "two"))
    one.remove(np.array([0]))
    two.remove(np.array([1, 2]))
    one.close()
    with pytest.raises(FineSightError, match=r"Another process changed the index .* nothing was sent"):
        two.close()
    assert opened(where, tmp_path / "three", monkeypatch).list_items().ids.tolist() == [1, 2, 3, 4]
    for number in range(3):
        writers = [opened(where, tmp_path / f"{name}-{number}", monkeypatch) for name in ("four", "five")]
        for writer in writers:
            writer.remove(np.array([number + 1]))
        with ThreadPoolExecutor() as pool:
            failures = [ended.exception() for ended in [pool.submit(writer.close) for writer in writers]]
        assert [type(failure) for failure in failures if failure] == [FineSightError]
    assert opened(where, tmp_path / "six", monkeypatch).list_items().ids.tolist() == [4]
    versions = {name.split("/")[3] for name in s3fs.S3FileSystem().find(f"{BUCKET}/indexes/shared")}
    assert len(versions) == 2, "the manifest and one version"


def test_labels_of_an_index_in_a_bucket_stay(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the index is opened again, and where another machine changed it meanwhile."""
    where, encoder = f"{bucket}/indexes/labeled", small_encoder(tmp_path) / "encoder"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "writer"))
    with closing(create_index(where, meta(), encoder)) as index:
        index.add(batch(list(range(5)), units(5)))
    index = opened(where, tmp_path / "here", monkeypatch)
    with closing(index), closing(Notes(index.notes_file())) as notes:
        notes.change([1, 2], label="wren")
    for change in (False, True):
        if change:
            with closing(opened(where, tmp_path / "there", monkeypatch)) as index:
                index.remove(np.array([0]))
        index = opened(where, tmp_path / "here", monkeypatch)
        with closing(index), closing(Notes(index.notes_file())) as notes:
            assert {item: note.label for item, note in notes.all().items()} == {1: "wren", 2: "wren"}
    assert not [name for name in s3fs.S3FileSystem().find(f"{BUCKET}/indexes/labeled") if "notes" in name]


def test_an_index_behind_a_web_address(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a bucket holds, served by a web server: it is read, and not changed. A wrong manifest is a sentence."""
    place, encoder = tmp_path / "site" / "birds", small_encoder(tmp_path) / "encoder"
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "writer"))
    with closing(create_index(f"{bucket}/indexes/web", meta(), encoder)) as index:
        index.add(batch(list(range(5)), units(5)))
    s3fs.S3FileSystem().get(f"{BUCKET}/indexes/web", str(place), recursive=True)
    with web_server(place.parent) as url:
        index = opened(f"{url}/birds", tmp_path / "reader", monkeypatch)
        assert index.search(units(5), 1, SPACES[0])[1].tolist() == [[0], [1], [2], [3], [4]]
        index.remove(np.array([0]))
        with pytest.raises(FineSightError, match=r"The index was not sent to .* It is whole in"):
            index.close()
        manifest = json.loads((place / "manifest.json").read_text())
        file, facts = next(iter(manifest["files"].items()))
        for wrong in (
            b"not JSON",
            b"[" * 100_000,
            b"[]",
            {**manifest, "version": ""},  # a writer removes the version before its own: this would be all of it
            {**manifest, "version": "../other"},
            {**manifest, "files": [file]},
            {**manifest, "files": {file: {**facts, "blake2b": None}}},
            *({**manifest, "files": {name: facts}} for name in ("../outside", "/outside", ".", "", "a\0b")),
        ):
            (place / "manifest.json").write_bytes(wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode())
            with pytest.raises(FineSightError, match=r"manifest\.json is damaged, or not of an index"):
                opened(f"{url}/birds", tmp_path / "other", monkeypatch)
    assert not list(tmp_path.rglob("outside"))


# --- pictures of the server -------------------------------------------------------------------------------------------


def test_the_server_shows_them(bucket: str, shards: Path, class_folders: Path, tmp_path: Path) -> None:
    """From a bucket, from Parquet files of a bucket and from tar files of a folder; and nothing outside of these."""
    from serving import indexed, refused, web_for

    expected = {read_image(file).getpixel((5, 5)) for file in class_folders.glob("*/*.png")}
    for place in (f"{bucket}/{class_folders.name}", f"{bucket}/rows", str(shards)):
        index = indexed(small_encoder(tmp_path / f"run-{place.rpartition('/')[2]}"), place)
        with web_for(index, tmp_path / "thumbnails") as web:
            items = web.ask("items")["items"]
            assert len(items) in (48, 72)
            for kind in ("thumb", "image"):
                shown = web.get(f"/api/items/{items[0]['id']}/{kind}")
                assert (shown.status_code, shown.headers["content-type"]) == (200, "image/jpeg")
                red = np.array(Image.open(io.BytesIO(shown.content)).getpixel((5, 5)))
                assert min(np.abs(red - np.array(one)).max() for one in expected) < 40
    (shards / "birds-000.tar").rename(shards / "gone.tar")
    with web_for(index, tmp_path / "other") as web:
        gone = next(item for item in items if item["path"].startswith("birds-000"))
        refused(web.get(f"/api/items/{gone['id']}/image"), 503, "cannot be read now")
        (shards / "birds-000.tar").symlink_to(class_folders.parent / "elsewhere.tar")
        write_tar(class_folders.parent / "elsewhere.tar", samples_of(class_folders))
        refused(web.get(f"/api/items/{gone['id']}/image"), 403, "outside the folder")


# --- a small disk -----------------------------------------------------------------------------------------------------


def test_the_cache_stays_within_its_budget(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    source = open_source(class_folders)
    open_cache(source.select(np.arange(20)), SIDE, cache_dir=cache, progress=False)
    monkeypatch.setenv("FINESIGHT_CACHE_GB", str(30 * SIDE * SIDE * 3 * 1.5 / 1e9))
    open_cache(source.select(np.arange(20, 40)), SIDE, cache_dir=cache, progress=False)
    (folder,) = cache.glob("v1-side*")
    assert len(read_entries(folder).keys) == 20, "those of before had to go"
    with pytest.raises(FineSightError, match="FINESIGHT_CACHE_GB allows"):
        open_cache(source, SIDE, cache_dir=cache, progress=False)
    monkeypatch.setenv("FINESIGHT_CACHE_GB", "many")
    with pytest.raises(FineSightError, match="a number of gigabytes"):
        open_cache(source, SIDE, cache_dir=cache, progress=False)


def test_embedding_takes_turns_in_a_small_cache(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finesight import api
    from finesight.features.writing import embed_images

    encoder = api.load(small_encoder(tmp_path / "run"), exact=True)
    embed_images(encoder, class_folders, tmp_path / "whole.npz", cache_dir=tmp_path / "a", progress=False)
    side = encoder.config.framing.scale.side
    monkeypatch.setenv("FINESIGHT_CACHE_GB", str(13 * side * side * 3 * 1.5 / 1e9))
    embed_images(encoder, class_folders, tmp_path / "turns.npz", cache_dir=tmp_path / "b", progress=False)
    whole, turns = (np.load(tmp_path / f"{name}.npz") for name in ("whole", "turns"))
    assert turns["paths"].tolist() == whole["paths"].tolist()
    np.testing.assert_array_equal(turns["features"], whole["features"])
    used = sum(file.stat().st_size for file in (tmp_path / "b").rglob("pixels.bin"))
    assert used <= 13 * side * side * 3 * 1.5
