"""What the rationale adds to each objective: the numbers of the results, paired by seed, and a figure of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from finesight.paper.markdown import PAPER_PARTS, paper_blocks
from finesight.paper.store import ResultStore
from finesight.paper.summary import summary_figure, summary_rows
from finesight.plots.style import ACCENT, INK
from png import count, decode

Found = dict[str, dict[int, dict[str, Any]]]
GAIN = "gain over the best without"


def scored(**rows: list[float | None]) -> Found:
    """Results of rows (``_`` for ``-``) with a rank-1 for each seed; None: this seed was not made."""
    return {
        name.replace("_", "-"): {
            seed: {"retrieval": {"rank1": number}} for seed, number in enumerate(numbers) if number is not None
        }
        for name, numbers in rows.items()
    }


def test_a_line_for_each_network_that_has_results() -> None:
    cub = scored(
        frozen=[30.0],
        frozen_gem=[35.0],
        moco_v2=[31.0, 33.0],
        moco_v2_energy_gem=[40.0, 44.0],
        lcr=[43.0, 45.0],
        byol_gentle_gem=[50.0],
        byol_gentle_lcr=[49.0],
    )
    lines = summary_rows({"cub": cub, "cars": scored(simsiam=[10.0])})
    assert [line["rank-1"] for line in lines] == [
        "CUB: ImageNet weights",
        "CUB: MoCo v2",
        "CUB: BYOL, gentle optimizer",
        "Cars: SimSiam",
    ]
    frozen, moco, byol, simsiam = ({key: cell for key, cell in line.items() if key != "rank-1"} for line in lines)
    empty = dict.fromkeys(("average", "GeM", "energy mask in GeM", "rationale in GeM", GAIN), "–")
    assert frozen == {**empty, "average": "30.00", "GeM": "35.00"}
    assert moco["rationale in GeM"] == "44.00 ± 1.41"
    assert moco[GAIN] == "+2.00 ± 1.41", "3 and 1, over energy in GeM"
    assert byol == {**empty, "GeM": "50.00", "rationale in GeM": "49.00", GAIN: "-1.00"}
    assert simsiam == {**empty, "average": "10.00"}


def test_the_systems_of_table_3_stand_below_those_of_table_2() -> None:
    cub = scored(multitask_gem=[45.0], contrastive_crop_energy_gem=[50.0], dino=[30.0], moco_bilinear=[41.0])
    cub["lcr+contrastive-crop"] = scored(x=[52.0])["x"]
    dino, crop, multitask, bilinear = summary_rows({"cub": cub})
    assert [dino["rank-1"], crop["rank-1"], multitask["rank-1"], bilinear["rank-1"]] == [
        "CUB: DINO",
        "CUB: ContrastiveCrop",
        "CUB: MultiTask",
        "CUB: MoCo v2-Bilinear",
    ]
    assert (crop["rationale in GeM"], crop[GAIN]) == ("52.00", "+2.00")
    assert (multitask["GeM"], multitask[GAIN]) == ("45.00", "–")
    assert {key for key, cell in bilinear.items() if cell == "41.00"} == {"a pooling of its own"}
    assert dino["a pooling of its own"] == "–"


def test_gains_are_of_seeds_that_have_both() -> None:
    lines = summary_rows({"cub": scored(moco_v2_gem=[40.0, None, 42.0], lcr=[41.0, 90.0, 44.0])})
    assert lines[0][GAIN] == "+1.50 ± 0.71"
    assert summary_rows({"cub": scored(moco_v2_gem=[40.0, None], lcr=[None, 90.0])})[0][GAIN] == "–"


def test_the_figure_has_dots_for_all() -> None:
    cub = scored(moco_v2=[31.0], moco_v2_gem=[35.0], lcr=[40.0], simclr=[20.0])
    pixels = decode(summary_figure({"cub": cub}))
    assert count(pixels, ACCENT) > 100
    assert count(pixels, INK) > 100
    assert decode(summary_figure({"cub": scored(moco_v2=[31.0])})).shape[0] < pixels.shape[0]
    assert decode(summary_figure({})).shape[0] < 200, "a sentence in place of axes"


@pytest.mark.parametrize("profile", ["cpu-50", "cpu-200"])
def test_a_page_shows_the_datasets_that_have_results(profile: str) -> None:
    results = ResultStore(Path(__file__).resolve().parents[2] / "results" / "cub" / profile).read()
    blocks = paper_blocks({"cub": results, "cars": {}}, profile)
    assert list(blocks) == [f"{profile}:{part}" for part in PAPER_PARTS]
    text = "\n".join(blocks.values())
    assert "CUB: MoCo v2" in text
    assert "Cars:" not in text
    assert "Aircraft:" not in text
    letters = re.findall(r"^- \((\w)\)", blocks[f"{profile}:made"], flags=re.M)
    tables = "\n".join(blocks[f"{profile}:table{n}"] for n in (1, 2, 3))
    assert set(letters) == set(re.findall(r"\((\w)\)[^|]* \|$", tables, flags=re.M))
    assert len(letters) == len(set(letters)), "one list for all tables"
    assert set(paper_blocks({}, profile).values()) == {"(no results yet)"}
