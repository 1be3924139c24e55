"""Tables inside a page: only the marked blocks change, and the docs show what the results say."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import pytest

from finesight.errors import FineSightError
from finesight.paper.ablation_results import summary_table
from finesight.paper.ablations import ABLATIONS
from finesight.paper.benchmark import Benchmark
from finesight.paper.datasets import DATASETS
from finesight.paper.markdown import (
    PARTS,
    bird_blocks,
    check_page,
    markdown_table,
    paper_blocks,
    update_page,
    update_text,
)
from finesight.paper.rows import BIRD_ROWS
from finesight.paper.scores import METRICS, difference_rows, score_rows
from finesight.paper.store import ResultStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "results" / "cub", ROOT / "docs" / "results.md"
NEW = {"cpu-50:scores": "| new |", "cpu-50:gains": "| gains |"}


def marked(name: str, body: str = "old\n") -> str:
    return f"<!-- bench:{name} -->\n{body}<!-- /bench -->"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_a_table() -> None:
    rows = [{"system": "a | b", "rank-1": "1.00 ± 0.10"}, {"system": "c", "rank-1": "–"}]
    assert markdown_table(rows).split("\n") == [
        "| system | rank-1 |",
        "| :--- | ---: |",
        "| a \\| b | 1.00 ± 0.10 |",
        "| c | – |",
    ]
    assert markdown_table([]) == "(no results yet)"


def test_only_the_blocks_of_the_profile_change() -> None:
    text = f"# Title\n{marked('cpu-50:scores')}\nwords <!-- a comment -->\n{marked('cpu-200:scores')}\n\nend"
    expected = text.replace(marked("cpu-50:scores"), "<!-- bench:cpu-50:scores -->\n\n| new |\n\n<!-- /bench -->")
    assert update_text(text, NEW) == expected
    assert update_text(expected, NEW) == expected


def test_a_block_may_come_twice_and_be_empty() -> None:
    text = f"{marked('cpu-50:gains', '')}{marked('cpu-50:gains')}"
    assert update_text(text, NEW).count("| gains |") == 2
    assert "old" not in update_text(text, NEW)


@pytest.mark.parametrize("text", ["", "words", marked("cpu-200:scores"), "<!-- bench -->\n<!-- /bench -->"])
def test_a_page_without_a_block_of_the_profile_is_refused(text: str) -> None:
    with pytest.raises(FineSightError, match=r"no block to update: put <!-- bench:cpu-50:scores --> or <!-- bench:cpu"):
        update_text(text, NEW)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!-- bench:cpu-50:scores -->\nold", "scores --> has no end"),
        (f"<!-- bench:cpu-50:scores -->\nkeep this\n{marked('cpu-50:gains')}", "scores --> has no end"),
        (f"{marked('cpu-50:scores')}<!-- bench:cpu-200:gains -->", "gains --> has no end"),
        (marked("cpu-50:score") + marked("cpu-50:gains"), "bench:cpu-50:score -->: there is no such table"),
    ],
)
def test_a_block_without_end_or_misspelled_is_refused(text: str, words: str) -> None:
    with pytest.raises(FineSightError, match=words):
        update_text(text, NEW)


def test_the_blocks_of_a_bench(done: Benchmark) -> None:
    results = done.store.read()
    found = bird_blocks(done.store, results, "cpu-50")
    assert list(found) == [f"cpu-50:{part}" for part in PARTS]
    scores = found["cpu-50:scores"].split("\n")
    assert cells(scores[0]) == ["system", "seeds", *METRICS]
    listed = [name for name in BIRD_ROWS if not name.startswith("lcr-k")]
    assert [cells(line)[0] for line in scores[2:]] == [BIRD_ROWS[name].label for name in listed]
    row = next(row for row in score_rows(results) if row["name"] == "lcr")
    assert cells(scores[2 + listed.index("lcr")]) == [cell for key, cell in row.items() if key != "name"]
    gains = found["cpu-50:gains"].split("\n")
    assert cells(gains[0]) == ["compared with", *METRICS]
    assert len(gains) - 2 == len(difference_rows(done.store, results)) == len(listed) - 1


def test_a_page_is_updated_once(done: Benchmark, tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", done.store.read()
    page.write_text(f"before é\n{marked('cpu-50:scores')}\r\nbehind", encoding="utf-8", newline="")
    assert update_page(page, bird_blocks(done.store, results, "cpu-50"))
    text = page.read_bytes().decode()
    assert text.startswith("before é\n<!-- bench:cpu-50:scores -->\n\n| system |")
    assert text.endswith("|\n\n<!-- /bench -->\r\nbehind")
    stamp = page.stat().st_mtime_ns
    assert not update_page(page, bird_blocks(done.store, results, "cpu-50"))
    assert page.stat().st_mtime_ns == stamp
    assert [file.name for file in tmp_path.iterdir()] == ["page.md"]


def test_a_page_is_checked_before_anything_long(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    other = marked("cpu-200:scores").encode()
    for content, words in ((None, "cannot be read"), (b"\xff\xfe", "cannot be read"), (other, "There is no block")):
        if content is not None:
            page.write_bytes(content)
        with pytest.raises(FineSightError, match=rf"page\.md:? {words}"):
            check_page(page, "cpu-50")
    check_page(page, "cpu-200")
    assert page.read_text() == marked("cpu-200:scores")


@pytest.mark.parametrize(
    ("profile", "page"),
    [
        *((profile, page) for profile in ("cpu-50", "cpu-200") for page in ("results.md", "tables.md")),
        ("cpu-200-320px", "results.md"),
        ("cpu-200-resnet18", "results.md"),
    ],
)
def test_the_docs_show_the_committed_results(profile: str, page: str) -> None:
    store, text = ResultStore(RESULTS / profile), (PAGE.parent / page).read_text(encoding="utf-8")
    results = store.read()
    if page == "results.md":
        blocks = bird_blocks(store, results, profile)
    else:
        blocks = paper_blocks({kind: ResultStore(RESULTS.parent / kind / profile).read() for kind in DATASETS}, profile)
    command = f"finesight bench {'birds' if page == 'results.md' else 'table1'} --profile {profile} --show"
    assert update_text(text, blocks) == text, f"run `{command} --update docs/{page}`"
    for name in blocks:
        assert f"<!-- bench:{name} -->" in text


ABLATION_RESULTS = ROOT / "results" / "ablations"


@pytest.mark.parametrize(
    "folder",
    sorted(file.parent for file in ABLATION_RESULTS.glob("**/results.json")),
    ids=lambda folder: str(folder.relative_to(ABLATION_RESULTS)),
)
def test_the_page_of_ablations_shows_the_committed_results(folder: Path) -> None:
    text = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
    summary = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert summary["ablation"] == folder.name
    assert markdown_table(summary_table(summary)) in text
    assert f"    {summary['command']}\n" in text
    picture = f"ablation-{'-'.join(folder.relative_to(ABLATION_RESULTS).parts)}.png"
    assert f"](img/{picture})" in text
    assert (ROOT / "docs" / "img" / picture).stat().st_size > 10_000
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file))
    rows = summary["rows"]
    assert listed == [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]


def test_every_ablation_has_results() -> None:
    """Of the drawn birds all that the paper has; the power of the mask, which it does not vary, of real birds."""
    drawn, birds = (
        {file.parent.name for file in ABLATION_RESULTS.glob(f"{place}*/results.json")} for place in ("", "birds/")
    )
    assert drawn == {*ABLATIONS} - {"mask-power"}
    assert birds >= {"mask-power"}


@pytest.mark.parametrize(
    ("words", "row", "profile"),
    [
        ("MoCo v2, average pooling |", "moco-v2", "cpu-200"),
        ("MoCo v2, the best pooling without a rationale |", "moco-v2-energy-gem", "cpu-200"),
        ("LCR |", "lcr", "cpu-200"),
        ("LCR, tested at 320 px", "lcr", "cpu-200-320px"),
    ],
)
def test_the_short_table_shows_the_committed_numbers(words: str, row: str, profile: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Summary")[2]
    line = next(line for line in section.splitlines() if line.startswith(f"| {words}"))
    shown = [[float(number) for number in cell.split("±")] for cell in line.split("|")[2:-1]]
    seeds = ResultStore(RESULTS / profile).read()[row].values()
    for cell, values in zip(
        shown,
        (
            [seed["retrieval"]["rank1"] for seed in seeds],
            [seed["retrieval"]["mAP"] for seed in seeds],
            [seed["linear"]["20"]["top1"] for seed in seeds],
        ),
        strict=True,
    ):
        spread = [statistics.stdev(values)] if len(values) > 1 else []
        assert cell == pytest.approx([statistics.mean(values), *spread], abs=0.051)
