"""The demo on a small drawing, and what the committed runs of the real one say."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch

import finesight
from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.report import demo
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.train import train

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "demo"


def committed() -> list[dict]:
    return [json.loads((RESULTS / f"seed-{seed}.json").read_text()) for seed in range(5)]


def test_the_demo_leaves_scores_and_a_report_and_continues(tmp_path):
    small = LookalikesConfig(species=4, train_per_species=8, test_per_species=4, size=48)
    quick = {"epochs": 1, "batch_size": 8, "views.resolution": 40}
    run = partial(demo.run_demo, tmp_path, 3, progress=False, drawing=small, settings=quick)
    first = run()
    assert [row["system"] for row in first.table] == list(demo.SYSTEMS)
    written = json.loads((tmp_path / "seed-3" / "results.json").read_text())
    assert written["scores"].keys() == demo.SYSTEMS.keys()
    for scores in written["scores"].values():
        assert 0 <= scores["retrieval"]["rank1"] <= 100
        assert 0 < scores["background"]["chance"] < 100
        assert {"inside", "pointing"} <= scores["localization"].keys()
    plain = written["scores"]["MoCo v2"]["localization"]
    assert plain["inside"] == plain["object_area"]  # an average looks everywhere alike
    page = first.report.read_text()
    assert all(system in page for system in demo.SYSTEMS)
    encoder = tmp_path / "seed-3" / "lcr" / "encoder" / "encoder.safetensors"
    stamp = encoder.stat().st_mtime_ns
    again = run()
    assert encoder.stat().st_mtime_ns == stamp  # nothing was trained again
    assert again.results["scores"] == first.results["scores"]


def test_without_gradient_from_the_branch_lcr_trains_the_encoder_of_moco(tmp_path):
    """What lets one training stand for both in the demo."""
    data = make_lookalikes(tmp_path / "data", LookalikesConfig(species=4, train_per_species=8, size=48))
    quick = {**demo.SETTINGS, "epochs": 1, "batch_size": 8, "views.resolution": 40, "data": str(data.root)}
    weights = []
    for method, own in (("moco-v2", {}), ("lcr", demo.RATIONALE), ("lcr", {"rationale.encoder_gradient": 0.05})):
        out = tmp_path / f"run-{len(weights)}"
        train(build_config({**quick, **own, "method": method}), out, RuntimeConfig(progress=False))
        weights.append(finesight.load(out).backbone.state_dict())
    moco, lcr, mixed = weights
    assert all(torch.equal(moco[name], lcr[name]) for name in moco)
    assert not all(torch.equal(moco[name], mixed[name]) for name in moco)  # 5 % of the gradient does change it


@pytest.mark.parametrize("measure", [("retrieval", "rank1"), ("localization", "inside")])
def test_lcr_is_ahead_of_moco_in_at_least_four_of_the_five_committed_runs(measure):
    part, key = measure
    runs = [run["scores"] for run in committed()]
    assert sum(run["LCR"][part][key] > run["MoCo v2"][part][key] for run in runs) >= 4


def test_an_untrained_network_scores_poorly_and_the_background_tempts_moco():
    for run in committed():
        scores = run["scores"]
        assert scores["untrained"]["retrieval"]["rank1"] < 6
        background = scores["MoCo v2"]["background"]
        assert background["rank1"] > 2 * background["chance"]


def test_the_page_of_the_demo_shows_the_committed_numbers():
    text = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
    for name in demo.SYSTEMS:
        row = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", text, re.MULTILINE)
        assert row, name
        means = [cell.split("±")[0] for cell in row.group(1).split("|")]
        shown = [float(cell) for cell in means]
        scores = [run["scores"][name] for run in committed()]
        expected = [
            sum(get(s) for s in scores) / 5
            for get in (
                lambda s: s["retrieval"]["rank1"],
                lambda s: s["retrieval"]["mAP"],
                lambda s: s["localization"]["inside"],
                lambda s: s["background"]["rank1"],
            )
        ]
        assert shown == pytest.approx(expected, abs=0.051), name
