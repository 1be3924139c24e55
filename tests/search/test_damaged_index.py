"""Damaged indexes are named, never used in silence, and made good where that is possible; one process writes."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder import Encoder
from finesight.search.base import NewItems
from finesight.search.build import open_or_create, update_index
from finesight.search.faiss_index import FaissIndex
from indexes import SPACES, batch, contents, empty_index, filled_index, item, small_encoder, units
from processes import command, refused, succeeded

ROWS = 40


def run_sql(*statements: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with sqlite3.connect(file) as db:
            for statement in statements:
                db.execute(statement)
        db.close()

    return change


def flip_pages(file: Path) -> None:
    content = bytearray(file.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 64] = b"\xa5" * 64
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "pages": flip_pages,
    "text": lambda file: file.write_bytes(b"this is not a database" * 100),
    "no-items": run_sql("DROP TABLE items"),
    "no-state": run_sql("DELETE FROM state"),
    "other-schema": run_sql("DROP TABLE items", "CREATE TABLE items (id INTEGER, name TEXT)"),
    "other-types": run_sql("UPDATE items SET path = id, mask = 'x', mask_width = 0"),
    "texts-as-counters": run_sql("UPDATE state SET rows = 'many'"),
    "too-many-rows": run_sql("UPDATE state SET rows = 1000000000000000"),
    "fewer-rows": run_sql("UPDATE state SET rows = 3"),
    "rows-that-are-not-there": run_sql("UPDATE items SET row = row + 1000000"),
    "negative-rows": run_sql("UPDATE items SET row = -row - 1"),
    "structures": run_sql("DELETE FROM structures", "INSERT INTO structures VALUES ('average', '{\"a\": [[')"),
    "structures-of-another-version": run_sql("INSERT OR REPLACE INTO structures VALUES ('average', '{\"speed\": 3}')"),
    "folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_catalog_is_a_sentence(tmp_path: Path, damage: str) -> None:
    filled_index(tmp_path / "index", units(ROWS)).close()
    DAMAGES[damage](tmp_path / "index" / "items.db")
    with pytest.raises(FineSightError, match=r"damaged|cannot be used"):
        use(tmp_path / "index")


def use(folder: Path) -> FaissIndex:
    """Everything that reads an index, but for the full check."""
    index = FaissIndex.open(folder)
    listed = index.list_items()
    index.search(units(2), 3, SPACES[0])
    index.items(listed.ids.tolist())
    list(index.blocks(SPACES[1]))
    index.facts()
    return index


def test_a_full_search_of_the_catalog_finds_what_no_query_reads(tmp_path: Path) -> None:
    filled_index(tmp_path / "index", units(ROWS)).close()
    run_sql("PRAGMA writable_schema = 1", "DELETE FROM sqlite_master WHERE name = 'items_by_row'")(
        tmp_path / "index" / "items.db"
    )
    with pytest.raises(FineSightError, match="is damaged"):
        use(tmp_path / "index").find_damaged(everything=True)


@pytest.mark.parametrize(
    "change",
    [
        {"resolution": -5},
        {"resolution": 10**9},
        {"dimension": 0},
        {"dimension": 10**12},
        {"spaces": []},
        {"spaces": ["../../secret"]},
        {"crop_pct": 0},
    ],
)
def test_impossible_numbers_in_the_description(tmp_path: Path, change: dict[str, object]) -> None:
    filled_index(tmp_path / "index", units(ROWS)).close()
    file = tmp_path / "index" / "index.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(FineSightError, match="damaged or of another version"):
        FaissIndex.open(tmp_path / "index")


# --- vectors ----------------------------------------------------------------------------------------------------------


def damage_rows(folder: Path, rows: list[int], value: bytes = b"\x01", space: str = SPACES[0]) -> None:
    (file,) = folder.glob(f"vectors-*/{space}.f32")
    with file.open("r+b") as stream:
        width = file.stat().st_size // ROWS
        for row in rows:
            stream.seek(row * width + 4)
            stream.write(value)


@pytest.mark.parametrize("space", SPACES)
def test_a_flipped_byte_is_reported_and_its_image_left_out(
    tmp_path: Path, space: str, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = units(ROWS)
    filled_index(tmp_path / "index", vectors).close()
    damage_rows(tmp_path / "index", [3, 17], space=space)
    index = FaissIndex.open(tmp_path / "index")
    scores, ids = index.search(vectors[3:4], ROWS, SPACES[0])
    assert sorted(ids[0][ids[0] >= 0].tolist()) == [n for n in range(1, ROWS + 1) if n not in (4, 18)]
    assert np.isfinite(scores).all()
    assert index.find_damaged().tolist() == [4, 18]
    said = " ".join(capsys.readouterr().err.split())
    assert "2 images of 40" in said
    assert said.count("Damaged") == 1, "told once"


def test_half_of_them_not_numbers_in_an_index_without_checksums(tmp_path: Path) -> None:
    """As earlier versions made them: they open, and what is not a number is found all the same."""
    vectors = units(ROWS)
    filled_index(tmp_path / "index", vectors).close()
    run_sql("DROP TABLE IF EXISTS sums")(tmp_path / "index" / "items.db")
    damage_rows(tmp_path / "index", list(range(0, ROWS, 2)), np.float32(np.nan).tobytes())
    index = FaissIndex.open(tmp_path / "index")
    _, ids = index.search(vectors[1:2], 3, SPACES[0])
    assert ids[0, 0] == 2, "there were no hits at all"
    assert len(index.find_damaged()) == len(index) == ROWS // 2
    index.add(batch([1], vectors[:1]))  # it can be written to, and then has a checksum for what is new
    assert 1 not in index.find_damaged(everything=True)


def test_checksums_follow_their_rows(tmp_path: Path) -> None:
    vectors = units(ROWS)
    index = filled_index(tmp_path / "index", vectors)
    index.remove(np.arange(1, 21))
    index.finish()  # the other half moves to the first rows
    assert not len(index.find_damaged(everything=True))
    index.close()
    (file,) = (tmp_path / "index").glob(f"vectors-*/{SPACES[0]}.f32")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert FaissIndex.open(tmp_path / "index").find_damaged().tolist() == [ROWS]


def test_a_changed_item_is_found_by_a_full_check(tmp_path: Path) -> None:
    filled_index(tmp_path / "index", units(ROWS)).close()
    run_sql("UPDATE items SET mask = zeroblob(48) WHERE id = 5", "UPDATE items SET width = 7 WHERE id = 9")(
        tmp_path / "index" / "items.db"
    )
    assert FaissIndex.open(tmp_path / "index").find_damaged(everything=True).tolist() == [5, 9]


def test_a_damaged_structure_is_noticed_by_its_checksum(tmp_path: Path) -> None:
    vectors = units(2000, clusters=20)
    filled_index(tmp_path / "index", vectors, exact_numbers=1000).close()
    for file in (tmp_path / "index").glob("*.faiss"):
        content = bytearray(file.read_bytes())
        content[-100] ^= 1  # of the rows that it keeps: FAISS itself notices a damaged graph
        file.write_bytes(content)
    index = FaissIndex.open(tmp_path / "index")
    assert index.facts()["kind"] == "exact"
    assert index.search(vectors[:50], 1, SPACES[0])[1][:, 0].tolist() == list(range(1, 51))


def test_features_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    index = empty_index(tmp_path / "index")
    vectors = units(3)
    vectors[1, 5] = np.nan
    with pytest.raises(FineSightError, match=r"features of 'images/00008\.jpg' .* are not numbers"):
        index.add(NewItems([item(7), item(8), item(9)], {name: vectors for name in SPACES}))
    assert len(index) == 0


def test_an_encoder_of_no_numbers_makes_no_index(unlabeled: Path, tmp_path: Path) -> None:
    run = small_encoder(tmp_path / "run")
    encoder = Encoder.load(run)
    with torch.no_grad():
        next(encoder.backbone.parameters()).fill_(float("nan"))
    encoder.save(run / "encoder")
    refused(command("index", run, unlabeled, "--quiet"), "are not numbers", "weights of the encoder are damaged")


def test_the_index_command_makes_damaged_vectors_anew(unlabeled: Path, tmp_path: Path) -> None:
    run = small_encoder(tmp_path / "run")
    make = ("index", run, unlabeled, "--quiet", "--exact")
    succeeded(command(*make))
    whole = contents(FaissIndex.open(run))
    (file,) = (run / "index").glob(f"vectors-*/{SPACES[0]}.f32")
    content = bytearray(file.read_bytes())
    content[10] ^= 0xFF
    file.write_bytes(content)
    done = succeeded(command(*make, "--verify", "--json"))
    assert "1 image of 24" in " ".join(done.err.split())
    facts = json.loads(done.out)
    assert (facts["changed"], facts["kept"], facts["items"]) == (1, 23, 24)
    assert contents(FaissIndex.open(run)) == whole


def test_damaged_vectors_of_a_vanished_image_go(unlabeled: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unlabeled, tmp_path / "images"))
    run = small_encoder(tmp_path / "run")
    embedder = TorchEmbedder.load(run)
    index = open_or_create(run / "index", embedder, run, folder)
    update_index(index, embedder, folder)
    index.close()
    (file,) = (run / "index").glob(f"vectors-*/{SPACES[0]}.f32")
    file.write_bytes(bytes(len(file.read_bytes())))  # all of them
    gone = sorted(folder.glob("image-*.png"))[:6]
    for image in gone:
        image.unlink()
    index = open_or_create(run / "index", embedder, run, folder)
    update = update_index(index, embedder, folder)
    assert (update.removed, update.changed, len(index)) == (6, 18, 18)
    assert not len(index.find_damaged(everything=True))


# --- one writer -------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_before_it_embeds_anything(unlabeled: Path, tmp_path: Path) -> None:
    run = small_encoder(tmp_path / "run")
    embedder = TorchEmbedder.load(run)
    first, second = (open_or_create(run / "index", embedder, run, unlabeled) for _ in range(2))
    embedded: list[int] = []

    class Counting(TorchEmbedder):
        def encode(self, views, regions=None):  # type: ignore[no-untyped-def]
            embedded.append(len(views))
            return super().encode(views, regions)

    def other_writer() -> bool:
        with pytest.raises(FineSightError, match="Another process is writing to the index"):
            update_index(second, Counting.load(run), unlabeled)
        return False

    update = update_index(first, embedder, unlabeled, stop=other_writer)
    assert update.added == 24
    assert not embedded
    assert update_index(second, Counting.load(run), unlabeled).kept == 24, "after it, there is nothing left to do"
    assert not embedded
