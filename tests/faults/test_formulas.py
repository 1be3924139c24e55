"""No table that a command writes holds a cell that a spreadsheet would run, whatever files and classes are called."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from indexes import small_encoder
from processes import command, succeeded
from serving import drawn

NAMES = ("=cmd|' C calc'!A0.png", "+1+1.png", "-2+3.png", "@SUM(A1).png", "plain.png")
FORMULA = re.compile(r"[=+\-@\t\r](?!\d*\.?\d+([eE][+-]?\d+)?$)")  # a number is none


def cells(file: Path) -> list[str]:
    with file.open(newline="") as stream:
        return [cell for row in csv.reader(stream) for cell in row]


def test_no_table_of_a_command_has_a_formula(tmp_path: Path) -> None:
    images, run = tmp_path / "images", small_encoder(tmp_path / "run")
    for split in ("train", "test"):
        for number, label in enumerate(("=1+1", "@home")):
            (images / split / label).mkdir(parents=True)
            for place, name in enumerate(NAMES):
                seed = number * len(NAMES) + place - (name == "plain.png")  # the last two are the same picture
                (images / split / label / name).write_bytes(drawn(size=(40, 40), seed=seed))
    (images / "train" / "=1+1" / "=broken.png").write_bytes(b"nothing")
    flat = images / "train" / "=1+1"
    features, found = tmp_path / "features.csv", tmp_path / "found"
    for words in (
        ("embed", run, flat, "-o", features, "--quiet"),
        ("evaluate", run, "--data", images, "--per-class", tmp_path / "classes.csv", "--quiet"),
        ("index", run, flat, "--index", tmp_path / "index", "--quiet"),
        ("clusters", tmp_path / "index", "-o", found, "--count", "2", "--quiet"),
        ("duplicates", tmp_path / "index", "-o", found, "--quiet"),
    ):
        succeeded(command(*words))
    tables = sorted(tmp_path.rglob("*.csv"))
    written = {file.name for file in tables}
    assert {"features.csv", "classes.csv", "clusters.csv", "duplicates.csv", "skipped.csv"} <= written, written
    for file in tables:
        assert not [cell for cell in cells(file) if FORMULA.match(cell)], file.name
    assert any(NAMES[0] in cell for cell in cells(features)), "they are named nevertheless"
    # Reading a table back undoes it.
    table = found / "clusters.csv"
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        row["label"] = "bird"
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    succeeded(command("clusters", tmp_path / "index", "--apply", table, "-o", tmp_path / "labeled.csv"))
    done = succeeded(command("datasets", "check", tmp_path / "labeled.csv"))
    assert "5 images" in done.out + done.err, done
