"""The paper's numbers, against what its Table 1 prints."""

import pytest

from finesight.paper.published import paper_row

TABLE_1 = {  # rank-1, rank-5, mAP; top-1 with 100, 50 and 20 % of the labels
    "ResNet-50": (48.13, 74.12, 20.11, 68.17, 58.99, 46.54),
    "MoCo v2": (42.72, 69.71, 19.68, 68.30, 60.96, 46.91),
    "Ours": (49.69, 75.23, 24.01, 71.31, 66.52, 55.33),
}


@pytest.mark.parametrize(("method", "printed"), TABLE_1.items())
def test_table_1_on_cub(method: str, printed: tuple[float, ...]) -> None:
    row = paper_row(method)
    retrieval = tuple(row["retrieval"][key] for key in ("rank1", "rank5", "mAP"))
    assert retrieval + tuple(row["linear"][share]["top1"] for share in ("100", "50", "20")) == printed


def test_what_the_abstract_claims() -> None:
    ours, moco = paper_row("Ours")["retrieval"], paper_row("MoCo v2")["retrieval"]
    assert ours["rank1"] - moco["rank1"] == pytest.approx(6.97)
    assert ours["mAP"] - moco["mAP"] == pytest.approx(4.33)


def test_a_row_of_table_3_has_what_that_table_has() -> None:
    row = paper_row("Ours-MultiTask")
    assert row["retrieval"].keys() == {"rank1"}
    assert row["linear"].keys() == {"100"}
    assert row["retrieval"]["rank1"] < paper_row("Ours")["retrieval"]["rank1"]


def test_other_data_sets_and_rows_the_paper_does_not_have() -> None:
    assert paper_row("Ours", "Cars")["retrieval"]["rank1"] != paper_row("Ours")["retrieval"]["rank1"]
    assert paper_row("nobody") == {}
    assert paper_row("Ours", "Flowers") == {}
