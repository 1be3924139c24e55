"""Damaged tar and Parquet files, and manifests of indexes that lie elsewhere: what they hold, or a sentence."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from finesight.data.decode import read_image_and_size
from finesight.data.places import read_place
from finesight.data.sources import open_source
from finesight.errors import FineSightError, SkipImage
from finesight.search.engines import open_index
from finesight.search.remote_index import FileFacts, RemoteManifest
from fuzzing import any_json, damage, damages, fuzzed, with_other_value, within_bounds
from indexes import SPACES, filled_index, meta, units
from serving import drawn
from storage import web_server, write_parquet, write_tar

MOST = 1 << 20  # bytes of an image, as the decoder asks
SAMPLES = [(f"{number:05d}", drawn(seed=number), f"bird {number % 3}") for number in range(8)]
Changes = list[tuple[str, float, bytes]]
numbers = count()  # a file has a new name in each example: what is known of one is kept by its name and time


# --- images in other files --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("containers")
    write_tar(folder / "a.tar", SAMPLES)
    write_parquet(folder / "a.parquet", SAMPLES)
    plain = pa.table({"jpg": [image for _, image, _ in SAMPLES], "label": [0, 1] * 4})
    names = {b"huggingface": b'{"info": {"features": {"label": {"names": ["wren", "robin"]}}}}'}
    pq.write_table(plain.replace_schema_metadata(names), folder / "plain.parquet", compression="none")
    pq.write_table(plain.select(["jpg"]), folder / "unlabeled.parquet")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def images_in(name: str, content: bytes, folder: Path) -> int:
    """How many pictures of the file can be seen; 0 with a sentence."""
    file = folder / f"{next(numbers)}-{name}"
    file.write_bytes(content)
    seen = 0
    with within_bounds(), suppress(FineSightError):
        source = open_source(file)
        for number in range(min(len(source), 20)):
            with suppress(SkipImage):
                picture = read_image_and_size(io.BytesIO(read_place(source.file(number), most=MOST)), 16)[0]
                seen += min(picture.size) > 0
    file.unlink()
    return seen


@pytest.mark.parametrize("name", ["a.tar", "a.parquet", "plain.parquet"])
def test_whole_files_are_read(containers: dict[str, bytes], name: str, tmp_path: Path) -> None:
    assert images_in(name, containers[name], tmp_path) == 8


@fuzzed
@given(changes=damages())
@example(changes=[("put", 0.0, b"\xff" * 512)])
def test_tar_files(containers: dict[str, bytes], tmp_path: Path, changes: Changes) -> None:
    images_in("a.tar", damage(containers["a.tar"], changes), tmp_path)


@fuzzed
@given(
    header=st.integers(0, 15),
    field=st.sampled_from(
        [(0, 100), (100, 24), (124, 12), (136, 12), (148, 8), (156, 1), (157, 100), (257, 8), (345, 155)]
    ),
    value=st.one_of(
        st.binary(max_size=155),
        st.sampled_from(
            [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"-0000000001\0", b"g", b"x", b"L", b"S"]
        ),
    ),
)
def test_headers_of_tar_files(
    containers: dict[str, bytes], tmp_path: Path, header: int, field: tuple[int, int], value: bytes
) -> None:
    """With sums that are right, so that what they say is believed."""
    content, start = bytearray(containers["a.tar"]), 0
    for _ in range(header):
        start += 512 + -(-int(content[start + 124 : start + 135], 8) // 512) * 512
    at, width = start + field[0], field[1]
    content[at : at + width] = value[:width].ljust(width, b"\0")
    total = sum(content[start : start + 148]) + 8 * 32 + sum(content[start + 156 : start + 512])
    content[start + 148 : start + 156] = b"%06o\0 " % total
    images_in("a.tar", bytes(content), tmp_path)


@fuzzed
@given(name=st.sampled_from(["a.parquet", "plain.parquet"]), changes=damages(), from_end=st.booleans())
def test_parquet_files(
    containers: dict[str, bytes], tmp_path: Path, name: str, changes: Changes, from_end: bool
) -> None:
    """Also in the table at the end, which says where everything is."""
    content = containers[name]
    whole, table = (content[:-1200], content[-1200:]) if from_end else (b"", content)
    images_in(name, whole + damage(table, changes), tmp_path)


def test_a_parquet_file_with_more_rows_than_bytes(containers: dict[str, bytes], tmp_path: Path) -> None:
    """Each row would be listed: 2⁴⁰ of them would take all memory."""
    content = containers["unlabeled.parquet"]
    table = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    assert table.count(b"\x16\x10\x19") == 1, "8 rows, as Thrift writes it"
    table = table.replace(b"\x16\x10\x19", b"\x16\x80\x80\x80\x80\x80\x40\x19")
    (tmp_path / "many.parquet").write_bytes(content[:4] + table + len(table).to_bytes(4, "little") + b"PAR1")
    with within_bounds(), pytest.raises(FineSightError, match="damaged Parquet file"):
        open_source(tmp_path / "many.parquet")


# --- manifests --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """The address of an index behind a web server, its manifest, and what that should hold."""
    folder, version = tmp_path_factory.mktemp("site"), "a" * 32
    filled_index(folder / version, units(4)).close()
    files = [file for file in (folder / version).rglob("*") if file.is_file() and not file.name.startswith(".")]
    facts = {file.relative_to(folder / version).as_posix(): FileFacts.of(file) for file in files}
    manifest = RemoteManifest(version=version, files=facts).model_dump()
    with web_server(folder) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINESIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield url, folder / "manifest.json", manifest


def opened(url: str, file: Path, content: bytes) -> int:
    """How many images the index has; 0 with a sentence."""
    file.write_bytes(content)
    with within_bounds(), suppress(FineSightError), closing(open_index(url)) as index:
        return len(index)
    return 0


def test_a_whole_remote_manifest_is_read(site: tuple[str, Path, dict[str, Any]]) -> None:
    url, file, manifest = site
    assert opened(url, file, json.dumps(manifest).encode()) == 4


@fuzzed
@given(place=st.floats(0, 1), value=any_json)
@example(place=1.0, value=10**30)
def test_values_of_a_remote_manifest(site: tuple[str, Path, dict[str, Any]], place: float, value: object) -> None:
    url, file, manifest = site
    opened(url, file, json.dumps(with_other_value(manifest, place, value)).encode())


@fuzzed
@given(changes=damages())
def test_bytes_of_a_remote_manifest(site: tuple[str, Path, dict[str, Any]], changes: Changes) -> None:
    url, file, manifest = site
    opened(url, file, damage(json.dumps(manifest).encode(), changes))


@pytest.fixture(scope="module")
def entry() -> dict[str, Any]:
    """What Milvus keeps of a writer."""
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    from finesight.search.milvus_manifest import BEAT, OWNER, STATE, Manifest

    names = dict.fromkeys(SPACES, "birds__a")
    state = Manifest(collections=names, rows=90, dead=((3, 5),), holes=((40, 60),), items=68, time=7, facts={})
    owner = {"machine": "another", "process": 1, "started": "1"}
    return {
        "description": {"writer": "w", "meta": meta().model_dump(mode="json")},
        STATE: state.model_dump(mode="json"),
        OWNER: owner,
        BEAT: "0",
    }


class Told:
    """A client of a server that tells this of its only writer."""

    def __init__(self, content: dict[str, str]) -> None:
        self.content = content

    def list_collections(self, **_: object) -> list[str]:
        return ["birds__fs_e1"]

    def describe_collection(self, *_: object, **__: object) -> dict[str, Any]:
        return {"description": self.content["description"], "properties": self.content}


def read_entry(content: dict[str, str]) -> int:
    """How many rows its state has; 0 with a sentence."""
    from finesight.search.base import IndexMeta
    from finesight.search.milvus_client import Address
    from finesight.search.milvus_manifest import ManifestLog, require_dead

    log = ManifestLog(Told(content), Address.parse("milvus://127.0.0.1:9/birds"), 1.0)
    with within_bounds(), suppress(FineSightError):
        found = log.newest()
        assert found is not None
        IndexMeta.parse(found.meta, "The index")
        assert len(found.manifest.visible) < 100_000
        if found.owner:
            require_dead(log, found, 0.01)
        return found.manifest.rows
    return 0


@fuzzed
@given(data=st.data(), place=st.floats(0, 1), value=any_json)
def test_a_manifest_in_milvus(entry: dict[str, Any], data: st.DataObject, place: float, value: object) -> None:
    whole = {name: part if isinstance(part, str) else json.dumps(part) for name, part in entry.items()}
    assert read_entry(whole) == 90
    name = data.draw(st.sampled_from(sorted(entry)))
    if data.draw(st.booleans()):
        read_entry({**whole, name: json.dumps(with_other_value(entry[name], place, value))})
    else:
        changed = damage(whole[name].encode(), data.draw(damages()))
        read_entry({**whole, name: changed.decode("utf-8", "replace")})
