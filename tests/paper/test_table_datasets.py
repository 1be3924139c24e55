"""Which dataset of the paper a folder is."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from finesight.data.layouts.layout import official_counts
from finesight.errors import FineSightError
from finesight.paper.published import TABLE_1, paper_results
from finesight.paper.table_datasets import CUB, DATASETS, opened, recognized


def test_the_columns_are_the_papers() -> None:
    assert {dataset.column for dataset in DATASETS.values()} == set(paper_results()[TABLE_1]["Ours"])
    assert {dataset.name for dataset in DATASETS.values()} <= set(paper_results()["_meta"]["datasets"].values())
    assert all(kind == dataset.kind and official_counts(kind) for kind, dataset in DATASETS.items())
    assert [dataset.classes for dataset in DATASETS.values()] == [200, 196, 100]
    assert len({dataset.runs for dataset in DATASETS.values()}) == len(DATASETS)


def test_birds_are_recognized(cub: Path) -> None:
    assert recognized([str(cub)]) == {"cub": cub}
    assert recognized([]) == {}
    assert len(opened(CUB, cub)) == 72


def test_other_data_and_the_same_twice_are_refused(cub: Path, class_folders: Path) -> None:
    with pytest.raises(FineSightError, match=r"of CUB-200-2011, .*, FGVC Aircraft; --data .* is class folders"):
        recognized([str(class_folders)])
    with pytest.raises(FineSightError, match="--data gives CUB-200-2011 twice"):
        recognized([str(cub), str(cub)])
    with pytest.raises(FineSightError, match="does not exist"):
        recognized(["nowhere"])


def test_the_name_of_the_folder_is_no_setting(cub: Path, tmp_path: Path) -> None:
    """Results of a dataset are its results, whatever it is called on this machine."""
    moved = tmp_path / "birds"
    moved.symlink_to(cub)
    one, other = (tiny.bench(place, tmp_path).settings("lcr") for place in (cub, moved))
    assert one == other
    assert one["data"] == "CUB_200_2011"
