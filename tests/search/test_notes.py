"""Labels, tags and groups in a file of their own: kept, taken back, read by two at a time, refused where read-only."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.search.faiss_index import FaissIndex
from finesight.search.groupings import Group, Grouping, NoSuchGroup
from finesight.search.notes import Note, Notes, NotesReadOnly, NotTheLastChange
from indexes import meta, small_encoder


def test_labels_and_tags_are_kept_and_taken_back(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes.db")
    assert notes.all() == {}
    assert not notes.file.exists()  # reading makes no file
    first, changed = notes.change([1, 2, 3], label="wren", add=["sharp"])
    assert changed == [1, 2, 3]
    second, changed = notes.change([2, 3], label="", add=["b", "a"], remove=["sharp"])
    assert changed == [2, 3]
    wanted = {1: Note("wren", ("sharp",)), 2: Note("", ("a", "b")), 3: Note("", ("a", "b"))}
    assert notes.all() == wanted
    assert notes.change([2], add=["a"]) == (None, [])  # it has it already
    notes.close()
    notes = Notes(notes.file)
    assert notes.all() == wanted
    assert first is not None
    assert second is not None
    with pytest.raises(NotTheLastChange):
        notes.undo(first)
    assert notes.undo(second) == [2, 3]
    assert notes.undo(first) == [1, 2, 3]
    assert notes.all() == {}
    assert notes.last_change() is None


def test_two_open_files_see_each_other(tmp_path: Path) -> None:
    one, two = Notes(tmp_path / "notes.db"), Notes(tmp_path / "notes.db")
    assert two.all() == {}
    one.change([7], label="a")
    assert two.all() == {7: Note("a")}
    two.change([7], label="b")
    assert one.all() == {7: Note("b")}
    one.keep("search", "x", {"address": "?q=1"})
    assert two.kept("search") == {"x": {"address": "?q=1"}}
    two.keep("search", "x", None)
    assert one.kept("search") == {}


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotesReadOnly, match="cannot be saved"):
        Notes(tmp_path / "file" / "notes.db").change([1], label="a")
    (tmp_path / "damaged.db").write_bytes(b"not a database, but long enough to be read as the head of one" * 20)
    with pytest.raises(FineSightError, match="cannot be used"):
        Notes(tmp_path / "damaged.db").all()


def test_an_index_that_is_made_anew_keeps_its_notes(tmp_path: Path) -> None:
    run = small_encoder(tmp_path / "run")
    for where in (tmp_path / "index", run / "index", run / "frozen" / "index"):
        index = FaissIndex.create(where, meta(), run / "encoder")
        Notes(index.notes_file()).change([5], label="kept")
        file = index.notes_file()
        index.close()
        for path in where.iterdir():
            if path != file and path.is_file():
                os.unlink(path)
        again = FaissIndex.create(where, meta(), run / "encoder")
        assert again.notes_file() == file
        assert Notes(file).all()[5].label == "kept"
        again.close()
    assert (run / "notes.db").is_file()  # of both indexes of the run


def test_groups(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes.db")
    assert Grouping.load(notes) is None
    start = Grouping(tuple(Group(n, np.arange(10 * n, 10 * n + 5)) for n in range(3)), next_number=3).save(notes)
    named = start.rename(1, "wren").merge([0, 1]).save(notes)
    loaded = Grouping.load(notes)
    assert loaded is not None
    assert [(one.number, one.name, len(one.ids)) for one in loaded.groups] == [(0, "wren", 10), (2, "", 5)]
    moved = loaded.move([20, 21, 3], None, "new")
    assert {one.number: sorted(one.ids.tolist()) for one in moved.groups} == {
        3: [3, 20, 21],
        0: [0, 1, 2, 4, 10, 11, 12, 13, 14],
        2: [22, 23, 24],
    }
    assert [one.number for one in moved.move([22, 23, 24], 0).groups] == [3, 0]  # an empty group is gone
    with pytest.raises(NoSuchGroup):
        moved.rename(9, "x")
    with pytest.raises(FineSightError, match="Two groups"):
        moved.merge([0])
    with pytest.raises(NotTheLastChange):
        notes.drop_grouping(start.version)
    notes.drop_grouping(named.version)
    back = Grouping.load(notes)
    assert back is not None
    assert [one.number for one in back.groups] == [0, 1, 2]
