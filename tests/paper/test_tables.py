"""The paper's tables: its numbers as printed, ours as measured, marks that say how, nothing where nothing was run."""

from __future__ import annotations

import copy
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from finesight.errors import FineSightError
from finesight.methods.base import METHODS
from finesight.paper.datasets import CUB, DATASETS
from finesight.paper.footnotes import make_footnote
from finesight.paper.profiles import PROFILES
from finesight.paper.published import paper_results, paper_row
from finesight.paper.rows import TRAININGS
from finesight.paper.selection import find_row
from finesight.paper.store import Results, ResultStore
from finesight.paper.tables import (
    EMPTY,
    TABLES,
    Cell,
    DatasetResults,
    as_json,
    footnotes,
    notes,
    summarize,
    table_cells,
    table_rows,
)

ROOT = Path(__file__).resolve().parents[2]
PRINTED = json.loads((ROOT / "src/finesight/paper/paper_results.json").read_text(encoding="utf-8"))


def committed(profile: str) -> dict[str, Results]:
    return {kind: ResultStore(ROOT / "results" / kind / profile).read() for kind in DATASETS}


def raw(profile: str, system: str) -> list[dict[str, Any]]:
    folder = ROOT / "results" / "cub" / profile
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"{system}-seed[0-9].json"))]


def made(system: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A result as a training of this system would leave it: one of MoCo v2's, renamed."""
    result = copy.deepcopy(raw("cpu-50", "moco-v2")[0])
    own = {"method": system, "network": system, "trained_as": system, "seed": seed, "seconds": 3600.0, "health": None}
    return {**result, **own, **changes}


def cell(table: str, found: DatasetResults, system: str, column: str = "CUB") -> Cell:
    return next(c for c in table_cells(TABLES[table], found) if (c.name, c.dataset.column) == (system, column))


def text(table: str, found: DatasetResults, system: str, column: str, dataset: str = "CUB") -> str:
    known = TABLES[table]
    rows = table_rows(known, table_cells(known, found))
    head = f"{dataset}: {known.rows[system]}"
    return next(row[column] for row in rows if row[""] == head and row["ours is"] == system)


# --- the paper's ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_all_rows_of_the_paper_and_each_is_that_system(name: str) -> None:
    table = TABLES[name]
    assert set(table.rows.values()) == set(paper_results()[table.label])
    for system, row in table.rows.items():
        assert find_row(system).paper == row
        assert system in ("lcr-paper", "multitask") or METHODS[system].paper == row


def test_the_papers_numbers_are_as_printed() -> None:
    """rank-1, rank-5, mAP; top-1 with 100, 50 and 20 % of the labels; and what the abstract claims."""
    printed = {
        "ResNet-50": (48.13, 74.12, 20.11, 68.17, 58.99, 46.54),
        "MoCo v2": (42.72, 69.71, 19.68, 68.30, 60.96, 46.91),
        "Ours": (49.69, 75.23, 24.01, 71.31, 66.52, 55.33),
    }
    for method, numbers in printed.items():
        row = paper_row(method)
        shown = [row["retrieval"][key] for key in ("rank1", "rank5", "mAP")]
        assert (*shown, *(row["linear"][share]["top1"] for share in ("100", "50", "20"))) == numbers
    ours, moco = paper_row("Ours")["retrieval"], paper_row("MoCo v2")["retrieval"]
    assert (ours["rank1"] - moco["rank1"], ours["mAP"] - moco["mAP"]) == (pytest.approx(6.97), pytest.approx(4.33))
    short = paper_row("Ours-MultiTask")  # a row of Table 3
    assert (short["retrieval"].keys(), short["linear"].keys()) == ({"rank1"}, {"100"})
    assert paper_row("nobody") == paper_row("Ours", "Flowers") == {}


def test_another_method_is_a_row_without_a_number_of_the_paper() -> None:
    found = {"cub": {"lewel-byol": {0: made("lewel-byol")}}}
    first = table_cells(TABLES["table3"], found, ["lewel-byol"])[0]
    line = table_rows(TABLES["table3"], [first])[0]
    assert line[""] == "CUB: lewel-byol"
    assert line["rank-1"] == f"{EMPTY} / {first.numbers['rank1'][0]:.2f}"


@pytest.mark.parametrize("dataset", ["CUB", "Cars", "Aircraft"])
def test_nothing_was_run_yet(dataset: str) -> None:
    one = PRINTED["tab:classifiaction_and_retrieval"]["MoCo v2"][dataset]
    two = PRINTED["tab:comp_4SSL"]["DINO"][dataset]["top1"]
    three = PRINTED["tab:comparison_with_crop_table"]["LEWEL"][dataset]
    assert text("table1", {}, "moco-v2", "top-5, 20 %", dataset) == f"{one['classification']['20']['top5']:.2f} / –"
    assert text("table1", {}, "moco-v2", "mAP", dataset) == f"{one['retrieval']['mAP']:.2f} / –"
    assert text("table2", {}, "dino", "top-1", dataset) == f"{two['bs32']:.2f} / {two['bs128']:.2f} / –"
    assert text("table2", {}, "supervised", "hours", dataset) == "– / –"
    assert text("table3", {}, "lewel", "rank-1", dataset) == f"{three['rank1']:.2f} / –"
    assert text("table3", {}, "lcr-dual-pooling", "top-1", dataset) == "collapse / –"
    assert text("table3", {}, "dilo", "rank-1", dataset) == "– / –"
    for table in TABLES.values():
        assert not notes(table_cells(table, {}))
        for row in table_rows(table, table_cells(table, {})):
            assert row["made"] == EMPTY
            assert all(row[column.words].endswith(f"/ {EMPTY}") for column in table.columns)


def test_time_and_memory_are_those_of_cub_alone() -> None:
    assert text("table2", {}, "simclr", "hours") == "2.50 / 2.50 / –"
    assert text("table2", {}, "simclr", "peak memory (GB)") == "7.10 / 23.80 / –"
    assert text("table2", {}, "simclr", "hours", "Cars") == "– / –"


# --- ours -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["cpu-50", "cpu-200"])
@pytest.mark.parametrize("system", ["frozen", "moco-v2", "lcr", "lcr-paper"])
def test_what_the_birds_bench_measured_is_shown(profile: str, system: str) -> None:
    found, results = committed(profile), raw(profile, system)
    assert results
    numbers = [result["retrieval"]["rank1"] for result in results]
    tops = [result["linear"]["50"]["top5"] for result in results]
    shown = cell("table1", found, system)
    for key, values in {"rank1": numbers, "linear50_top5": tops}.items():
        assert shown.numbers[key] == values
        sd = pytest.approx(statistics.stdev(values)) if len(values) > 1 else None
        assert summarize(values) == {"mean": pytest.approx(statistics.mean(values)), "sd": sd, "n": len(values)}
    if system != "frozen":
        assert cell("table3", found, system).numbers["rank1"] == shown.numbers["rank1"]
        assert cell("table2", found, system).numbers["top1"] == shown.numbers["linear100_top1"]


def test_time_is_not_told_of_a_network_that_anothers_training_gave() -> None:
    found = committed("cpu-50")
    assert raw("cpu-50", "moco-v2")[0]["trained_as"] == "lcr"
    shared, own = (cell("table2", found, name).numbers for name in ("moco-v2", "lcr"))
    assert shared["hours"] == shared["memory"] == []
    assert own["hours"] == pytest.approx([r["seconds"] / 3600 for r in raw("cpu-50", "lcr")])
    assert own["memory"] == pytest.approx([r["peak_memory_mb"] * 2**20 / 1e9 for r in raw("cpu-50", "lcr")])


def test_the_averaged_network_of_lcr_is_not_the_papers_second_task() -> None:
    """Nothing of that branch reaches the encoder: it is MoCo v2, and the row of the table stays empty."""
    found = {"cub": {"lcr-multitask": {0: made("lcr-multitask")}}}
    assert cell("table3", found, "multitask").footnote is None


def test_a_row_without_probes_has_gaps() -> None:
    result = made("byol", linear=None)
    found = {"cub": {"byol": {0: result}}}
    assert text("table2", found, "byol", "top-1").endswith(f" / {EMPTY}")
    assert text("table2", found, "byol", "hours") == "4.00 / 4.00 / 1.00"


@pytest.mark.parametrize(
    ("collapsed", "start"),
    [
        ((False, False), "12.00"),
        ((True, False), "collapse, 1 of 2 seeds (12.00"),
        ((True, True), "collapse (12.00"),
    ],
)
def test_a_collapse_is_said_with_what_was_measured(collapsed: tuple[bool, ...], start: str) -> None:
    seeds = {}
    for seed, flag in enumerate(collapsed):
        health = {"embedding_spread": 0.01, "effective_rank": 1.0, "collapsed": flag}
        seeds[seed] = made("lcr-dual-pooling", seed, retrieval={"rank1": 11.0 + 2 * seed}, health=health)
    found = {"cub": {"lcr-dual-pooling": seeds}}
    assert text("table3", found, "lcr-dual-pooling", "rank-1").startswith(f"collapse / {start} ± 1.41")
    assert cell("table3", found, "lcr-dual-pooling").as_json()["ours"]["collapsed"] == sum(collapsed)


def test_only_some_rows_and_seeds() -> None:
    found, table = committed("cpu-50"), TABLES["table1"]
    some = table_cells(table, found, ["lcr"], [1, 2])
    assert [c.name for c in some] == ["lcr"] * len(DATASETS)
    assert some[0].footnote is not None
    assert some[0].footnote.seeds == (1, 2)
    assert table_cells(table, found, ["lcr"], [7])[0].footnote is None


# --- marks ------------------------------------------------------------------------------------------------------------


def test_a_mark_says_how_it_was_made_and_what_not_to_compare() -> None:
    found = committed("cpu-50")
    known = table_cells(TABLES["table1"], found)
    assert list(footnotes(known)) == ["a", "b", "c"]
    frozen, trained, literal = notes(known)
    assert "divided by the mask's sum" in literal
    for words in ("(a) profile cpu-50", "50 of 200 classes (1,500 train, 1,389 test images)", "nothing trained"):
        assert words in frozen
    assert "epochs" not in frozen
    result = raw("cpu-50", "lcr")[0]
    for words in (
        "trained at 128 px, tested at 224 px, 4 epochs, batch 32, queue 750, 3 stages frozen",
        "weights resnet50_imagenet_caffe.safetensors",
        "seeds 0, 1, 2",
        result["commit"][:7],
        result["date"],
        result["machine"],
        "Not the paper's resolution, epochs, queue,",
        "classes: not to be compared with its numbers.",
    ):
        assert words in trained
    assert text("table1", found, "frozen", "made") == "(a)"
    assert text("table1", found, "lcr", "made") == "(b) 3 seeds"


def test_all_classes_are_no_difference_and_the_papers_own_setting_has_no_warning() -> None:
    setting = cell("table1", committed("cpu-200"), "lcr").footnote
    assert setting is not None
    assert "classes" not in setting.differs
    assert "all 200 classes" in setting.words()
    facts = PROFILES["paper"].facts(PROFILES["paper"].config(TRAININGS["lcr"], data="-", seed=0), 65536)
    settings = {"backbone.weights": "imagenet"}
    images = {"train": 5994, "test": 5794}
    result = made("lcr", classes=200, profile=facts, settings=settings, images=images)
    setting = make_footnote(CUB, "lcr", [result])
    assert setting.differs == []
    assert "Not the paper's" not in setting.words()
    assert "queue" not in make_footnote(CUB, "byol", [made("byol", profile=facts | {"queue": None})]).differs


def test_seeds_of_different_settings_have_no_mean() -> None:
    other = made("byol", 1)
    other["profile"] = {**other["profile"], "epochs": 8}
    words = r"CUB-200-2011, byol: seed 1 beside seed 0 has other settings:\n  epochs: 4 then, 8 now"
    with pytest.raises(FineSightError, match=words):
        cell("table2", {"cub": {"byol": {0: made("byol"), 1: other}}}, "byol")


def test_the_queue_parts_marks() -> None:
    without = made("byol")
    without["profile"] = {**without["profile"], "queue": None}
    found = {"cub": {"moco-v2": {0: made("moco-v2")}, "byol": {0: without}}}
    assert [note.count("no queue") for note in notes(table_cells(TABLES["table2"], found))] == [1, 0]


# --- as JSON and in the docs ------------------------------------------------------------------------------------------


def test_json_has_rows_then_datasets() -> None:
    found = committed("cpu-50")
    tree = json.loads(json.dumps(as_json(TABLES["table2"], "cpu-50", table_cells(TABLES["table2"], found))))
    assert tree["table"] == "table2"
    assert set(tree["rows"]) == {*TABLES["table2"].rows, "moco-v2-gem", "moco-v2-energy-gem"}  # controls that were run
    assert tree["rows"]["dino"]["Cars"] == {
        "row": "DINO",
        "paper": {
            **{"top1": {"bs32": 9.27, "bs128": 10.51}, "rank1": None, "mAP": None},
            **{"hours": {"bs32": None}, "memory": {"bs32": None}},
        },
        "ours": None,
    }
    assert tree["rows"]["supervised"]["CUB"]["paper"]["top1"] == 81.34
    ours = tree["rows"]["lcr"]["CUB"]["ours"]
    assert ours["top1"]["n"] == 3
    assert ours["setting"]["epochs"] == 4
    assert ours["setting"]["seeds"] == [0, 1, 2]
    assert "classes" in ours["setting"]["differs_from_paper"]


def test_a_part_of_the_images_and_small_ones_are_marked() -> None:
    """Stanford Cars as mirrors have it lacks a few images; of CUB there are all."""
    own = {"classes": 196, "images": {"train": 8137, "test": 8033}, "image_side": 128}
    note = make_footnote(DATASETS["cars"], "lcr", [made("lcr", **own)])
    assert "all 196 classes (8,137 of 8,144 train, 8,033 of 8,041 test images, short side 128 px)" in note.words()
    assert note.differs[-2:] == ["number of images", "size of the images"]
    whole = {"classes": 196, "images": {"train": 8144, "test": 8041}, "image_side": 256}
    note = make_footnote(DATASETS["cars"], "lcr", [made("lcr", **whole)])
    assert "all 196 classes (8,144 train, 8,041 test images)" in note.words()
    assert not {"number of images", "size of the images"} & set(note.differs)


@pytest.mark.parametrize(("hue", "words"), [(0.1, "strongly"), (0.02, "mildly")])
def test_how_views_change_the_colors_is_said(hue: float, words: str) -> None:
    result = made("lcr")
    result["settings"]["views.hue"] = hue
    note = make_footnote(CUB, "lcr", [result])
    assert f"colors changed {words}" in note.words()
    assert ("color changes" in note.differs) == (words == "mildly")


def test_controls_that_the_paper_does_not_have_stand_behind_their_objective_once_they_were_run() -> None:
    found = {"cub": {"simclr-gem": {0: made("simclr-gem")}, "dilo-boxes": {0: made("dilo-boxes")}}}
    names = [c.name for c in table_cells(TABLES["table2"], found) if c.dataset is CUB]
    assert names == [*list(TABLES["table2"].rows)[:3], "simclr-gem", *list(TABLES["table2"].rows)[3:]]
    assert "simclr-gem" not in [c.name for c in table_cells(TABLES["table2"], {})]
    shown = table_rows(TABLES["table2"], table_cells(TABLES["table2"], found, ["simclr-gem"]))[0]
    assert shown[""] == "CUB: SimCLR, GeM"
    assert shown["rank-1"] == f"{EMPTY} / {made('moco-v2')['retrieval']['rank1']:.2f}"
    third = {c.name: c for c in table_cells(TABLES["table3"], found) if c.dataset is CUB}
    assert third["dilo-boxes"].numbers["rank1"]
    assert set(TABLES["table2"].all_rows) >= {"byol-lcr", "vicreg-gentle-lcr", "moco-v2-energy-gem", "dino-lcr"}


def test_what_was_divided_by_the_masks_sum_is_marked_and_not_averaged_with_sums() -> None:
    old = made("lcr-paper")
    old["settings"] |= {"rationale.variant": "paper"}
    new = copy.deepcopy(old) | {"seed": 1}
    new["settings"]["rationale.mask_total"] = "sum"
    words = "linear probes of features that are divided by the mask's sum"
    assert words in make_footnote(CUB, "lcr-paper", [old]).words()
    assert words not in make_footnote(CUB, "lcr-paper", [new]).words()
    assert words not in make_footnote(CUB, "moco-v2", [made("moco-v2")]).words()
    with pytest.raises(FineSightError, match="seed 1 beside seed 0"):
        make_footnote(CUB, "lcr-paper", [old, new])
