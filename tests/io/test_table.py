"""Tables: whole, read back as they were, and with nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finesight.data.lists import read_list
from finesight.data.store import write_skipped
from finesight.evaluation.per_class import as_csv
from finesight.io.atomic import WriteError
from finesight.io.table import FORMULA, guard, read_table, records_text, table_text, unguard, write_table

EVIL = ("=cmd|' /C calc'!A0.png", "+1+1.png", "-2+3.png", "@SUM(A1).png", "\t=1.png", "'=already.png", "''-twice.png")


@pytest.mark.parametrize("name", EVIL)
def test_no_cell_begins_like_a_formula_and_reading_undoes_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / "t.csv"
    write_table(file, ("path", "score"), [(name, -0.5), ("plain.png", "-0.5")])
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert not rows[0]["path"].startswith(FORMULA)
    assert [row["score"] for row in rows] == ["-0.5", "-0.5"], "numbers stay numbers"
    assert [row["path"] for row in read_table(file)] == [name, "plain.png"]


@given(st.text(alphabet=st.sampled_from("'=+-@\t\r\nab.,;\"é 1"), max_size=8))
def test_every_text_comes_back(text: str) -> None:
    assert unguard(guard(text)) == text


def test_lists_of_skipped_files_and_of_classes_are_guarded(tmp_path: Path) -> None:
    write_skipped([(EVIL[0], "=reason")], tmp_path / "skipped.csv")
    lines = (tmp_path / "skipped.csv").read_text().splitlines()
    assert lines[1].startswith("'=cmd")
    assert as_csv([{"class": "=1+1", "rank1": 2.5}]).splitlines() == ["class,rank1", "'=1+1,2.50"]
    assert records_text([{"a": "@x", "b": None}]) == "a,b\n'@x,\n"
    assert table_text(("=head",), [("x",)]) == "'=head\nx\n"


def test_a_list_of_images_is_read_without_the_guard(tmp_path: Path) -> None:
    file = tmp_path / "labeled.csv"
    write_table(file, ("path", "label"), [("=a.png", "@home"), ("b.png", "-1"), ("c.png", "plain")])
    found = read_list(file)
    assert found.paths == ["=a.png", "b.png", "c.png"]
    assert found.labels == ["@home", "-1", "plain"]


def test_as_a_spreadsheet_saves_it(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes("\ufeffcluster;label;path\r\n0;'=x;\"a;b.png\"\r\n1;'=y\r\n".encode())
    rows = read_table(file)
    assert rows == [{"cluster": "0", "label": "=x", "path": "a;b.png"}, {"cluster": "1", "label": "=y", "path": ""}]


def test_a_table_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    write_table(file, ("a",), [(1,)])

    def rows():
        yield (2,)
        raise OSError(28, "No space left on device")

    with pytest.raises(WriteError, match=r"t\.csv cannot be written: no space left on device; make room"):
        write_table(file, ("a",), rows())
    assert file.read_text() == "a\n1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
