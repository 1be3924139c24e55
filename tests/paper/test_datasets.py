"""Rows, datasets and the paper's names for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from finesight.data.layouts.layout import official_counts
from finesight.errors import FineSightError
from finesight.methods.base import METHODS
from finesight.nn.poolings import find_pooling
from finesight.paper.datasets import CUB, DATASETS, open_dataset, recognize_datasets
from finesight.paper.published import TABLE_1, paper_results, paper_row
from finesight.paper.rows import BIRD_ROWS, MORE_ROWS, PROJECTIONS, TABLE_ROWS, TRAININGS, UNTRAINED, WITH_RATIONALE
from finesight.paper.scores import COMPARED, CURVE, OURS
from finesight.paper.selection import find_row, is_frozen, select_rows

# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BIRD_ROWS)
def test_a_row_is_made_of_what_there_is(name: str) -> None:
    row = BIRD_ROWS[name]
    assert name.startswith(row.training)
    assert "," not in name, "names are given with commas"
    entry = TRAININGS.get(row.training)
    assert (entry.method if entry else row.training) in METHODS
    pooling = find_pooling(row.pooling)
    if pooling.needs_branch:
        assert row.training.startswith("lcr")
    if ":" in row.pooling:
        branch = row.pooling.partition(":")[2].removesuffix("-gem")
        assert branch == UNTRAINED or int(branch) in PROJECTIONS
    if row.paper is not None:
        assert {"retrieval", "linear"} <= paper_row(row.paper).keys()


def test_rows_differ_and_the_curve_is_lcr_with_another_k() -> None:
    assert len({row.label for row in BIRD_ROWS.values()}) == len(BIRD_ROWS)
    assert len({(row.training, row.pooling) for row in BIRD_ROWS.values()}) == len(BIRD_ROWS)
    assert {OURS, *COMPARED, *CURVE.values()} == set(BIRD_ROWS)
    assert [BIRD_ROWS[name].pooling for name in CURVE.values()] == [f"rationale:{k}-gem" for k in PROJECTIONS]
    assert not any(BIRD_ROWS[name].probe for name in CURVE.values())


def test_every_registered_method_is_a_row() -> None:
    for name, method in METHODS.items():
        row = find_row(name)
        assert is_frozen(row.training) == (method.objective is None)
        assert name in BIRD_ROWS or (row.training, row.label, row.paper) == (name, method.about, method.paper)
    assert (find_row("byol").pooling, find_row("byol-lcr").pooling) == ("average", "rationale-gem")
    assert find_row("multitask").paper == METHODS["lcr-multitask"].paper == "Ours-MultiTask"


@pytest.mark.parametrize("name", TABLE_ROWS)
def test_a_control_of_the_tables_is_made_of_what_there_is(name: str) -> None:
    row = TABLE_ROWS[name]
    assert find_row(name) is row
    assert not is_frozen(row.training)
    assert row.paper is None or row.paper in paper_results()[TABLE_1]
    with_branch = row.training in WITH_RATIONALE.values() or name.endswith("-own")
    assert find_pooling(row.pooling).needs_branch == with_branch == name.endswith(("-lcr", "-own"))
    assert sum(name in rows for rows in MORE_ROWS.values()) == (0 if name.endswith("-own") else 1)


def test_every_objective_has_the_rationale_and_the_same_controls() -> None:
    """As MoCo v2 has; whoever steps by LARS has them once more with the gentle optimizer."""
    own = {"moco-v2": "lcr", "contrastive-crop": "lcr+contrastive-crop"}
    for plain, more in WITH_RATIONALE.items():
        names = [plain, f"{plain}-gem", f"{plain}-energy-gem", own.get(plain, f"{plain}-lcr")]
        rows = [find_row(name) for name in names]
        assert [row.training for row in rows] == [plain, plain, plain, more]
        assert [row.pooling for row in rows] == ["average", "gem", "energy-gem", "rationale-gem"]


def test_selected_rows_keep_the_order_of_the_table() -> None:
    assert select_rows([]) == BIRD_ROWS
    assert list(select_rows(["byol", "lcr", "frozen", "lcr"])) == ["frozen", "lcr", "byol"]
    assert list(select_rows([], ["vicreg", "lcr"])) == ["vicreg", "lcr"]
    with pytest.raises(FineSightError, match=r"There is no method 'moco-v3'. Nearest: .*moco-v2"):
        select_rows(["frozen", "moco-v3"])
    with pytest.raises(FineSightError, match="frozen-energy-gem"):  # nothing is near: all are named
        select_rows(["§"])


# --- datasets ---------------------------------------------------------------------------------------------------------


def test_the_columns_are_the_papers() -> None:
    assert {dataset.column for dataset in DATASETS.values()} == set(paper_results()[TABLE_1]["Ours"])
    assert {dataset.name for dataset in DATASETS.values()} <= set(paper_results()["_meta"]["datasets"].values())
    assert all(kind == dataset.kind and official_counts(kind) for kind, dataset in DATASETS.items())
    assert [dataset.classes for dataset in DATASETS.values()] == [200, 196, 100]
    assert len({dataset.runs for dataset in DATASETS.values()}) == len(DATASETS)


def test_birds_are_recognized_whatever_their_folder_is_called(cub: Path, tmp_path: Path) -> None:
    assert recognize_datasets([]) == {}
    assert recognize_datasets([str(cub)]) == {"cub": cub}
    source = open_dataset(CUB, cub)
    assert "72 images, 4 classes, 48 train + 24 test, boxes, 1 part" in source.describe()
    moved = tmp_path / "birds"
    moved.symlink_to(cub)
    one, other = (tiny.bench(place, tmp_path).settings("lcr") for place in (cub, moved))
    assert one == other
    assert one["data"] == "CUB_200_2011"


def test_other_data_and_the_same_twice_are_refused(cub: Path, class_folders: Path) -> None:
    with pytest.raises(FineSightError, match=r"of CUB-200-2011, .*, FGVC Aircraft; --data .* is class folders"):
        recognize_datasets([str(class_folders)])
    with pytest.raises(FineSightError, match="--data gives CUB-200-2011 twice"):
        recognize_datasets([str(cub), str(cub)])
    with pytest.raises(FineSightError, match="does not exist"):
        recognize_datasets(["nowhere"])
