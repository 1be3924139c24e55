"""Every metric that a run logs is drawn in its report, under the words of whoever computes it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import ImageSource
from finesight.plots.figures import curves
from finesight.report.run_report import training_curves
from finesight.report.train import train_and_report
from finesight.training.config import RuntimeConfig, build_config
from finesight.training.config_file import write_yaml
from finesight.training.run_folder import RunFolder
from small import SMALL, small_settings


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> ImageSource:
    settings = LookalikesConfig(species=2, train_per_species=4, test_per_species=2, size=40)
    return make_lookalikes(tmp_path_factory.mktemp("curves") / "birds", settings)


def finished(method: str, birds: ImageSource, folder: Path) -> RunFolder:
    given = {"data": str(birds.root), "method": method, "validation.fraction": 0.0, "epochs": 1}
    runtime = RuntimeConfig(cache_dir=folder / "cache", progress=False, log_every=1)
    return train_and_report(build_config(SMALL | small_settings(method) | given), folder / "run", runtime)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("cvsa", ["similarity, same image", "similarity, other images", "misfit of object and similarity (KL)"]),
        (
            "lewel",
            ["similarity, same image", "similarity, other images", "similarity, aligned vectors", "map entropy"],
        ),
    ],
)
def test_the_report_draws_the_methods_own_metrics(
    method: str, words: list[str], birds: ImageSource, tmp_path: Path
) -> None:
    run = finished(method, birds, tmp_path)
    drawn = training_curves(run)
    health = ["embedding spread", "effective rank"]
    assert list(drawn) == ["total loss", "the method's loss", *words, *health, "learning rate"]
    assert all([step for step, _ in points] == [0] for points in drawn.values())
    assert base64.b64encode(curves(drawn)).decode() in run.report.read_text(encoding="utf-8")


def test_a_metric_that_nobody_describes_is_drawn_under_its_key(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write_yaml(build_config({"data": "x", "method": "byol-lcr"}), run.config_file)
    run.metrics_file.write_text("step,epoch,loss,lr,kl,surprise\n0,0.0,1.0,0.1,2.0,0.25\n")
    drawn = training_curves(run)
    assert list(drawn) == ["total loss", "attention misfit (KL)", "learning rate", "surprise"]
    assert drawn["surprise"] == [(0.0, 0.25)]
