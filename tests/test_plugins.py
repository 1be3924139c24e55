"""A package outside the tree adds a method, a dataset layout, a metric and a pooling; every command shows them.

The method is the one that CONTRIBUTING.md walks through, taken from that page word by word.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from processes import Finished, command, environment, finesight

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
GROUPS = {
    "finesight.methods": "align_uniform",
    "finesight.datasets": "toy_layout",
    "finesight.metrics": "toy_metric",
    "finesight.poolings": "toy_pooling",
}
POOLING = '''
"""The largest value of each channel."""

from finesight.nn.poolings import Pooling, register_pooling


@register_pooling
class Max(Pooling):
    name = "max"
    words = "the largest of all cells"

    def __call__(self, phi, masks, responses=None, region=None):
        return phi.amax((2, 3))
'''
LAYOUT = '''
"""Pictures in folders named CLASS_SPLIT, with a file that says what they are."""

import numpy as np

from finesight.data.layouts.layout import DatasetLayout, DirectoryTree, OfficialCounts, register_layout
from finesight.data.sources import ImageSource


@register_layout
class Toy(DatasetLayout):
    name = "toy"
    title = "Toy Birds"
    download = "nothing, the tests make it"
    homepage = "https://example.org/toy"
    trees = (DirectoryTree("toy", (("toy.txt", "one line"),)),)
    official = OfficialCounts(train=24, test=12, classes=2)

    def open(self, root):
        files = sorted(root.glob("*_*/*.png"))
        parts = [file.parent.name.split("_") for file in files]
        classes = tuple(sorted({name for name, _ in parts}))
        return ImageSource(
            root,
            self.name,
            np.array([str(file.relative_to(root)) for file in files]),
            np.array([classes.index(name) for name, _ in parts]),
            classes,
            np.array([split for _, split in parts]),
        )
'''
METRIC = '''
"""R-precision: the share of the class among as many nearest images as the class has others."""

import numpy as np

from finesight.evaluation.metrics import RetrievalMetric, metric


@metric
class RPrecision(RetrievalMetric):
    key, title = "r_precision", "R-precision"
    words = "the share of the class among as many nearest images as the class has others"

    def value(self, positions, gallery):
        return float(np.mean(positions <= len(positions)))
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the package and what an installer would write beside it."""
    folder = tmp_path_factory.mktemp("site")
    [method] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, code in zip(GROUPS.values(), (method, LAYOUT, METRIC, POOLING), strict=True):
        (folder / f"{name}.py").write_text(code)
    info = folder / "align_uniform-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: align-uniform\nVersion: 0.1.0\n")
    entries = "".join(f"[{group}]\n{module} = {module}\n" for group, module in GROUPS.items())
    (info / "entry_points.txt").write_text(entries)
    return folder


@pytest.fixture(scope="module")
def toy(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay drawn birds out as the toy dataset: 2 classes, 12 train and 6 test images each."""
    root = tmp_path_factory.mktemp("toy-data")
    (root / "toy.txt").write_text("toy birds\n")
    for split in ("train", "test"):
        for number, species in enumerate(sorted((birds / split).iterdir())[:2]):
            (root / f"{'ab'[number]}_{split}").mkdir()
            for file in sorted(species.glob("*.png")):
                with Image.open(file) as image:
                    image.save(root / f"{'ab'[number]}_{split}" / file.name)
    return root


@pytest.fixture(scope="module")
def run(plugin: Path, toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the method of the page on the toy dataset."""
    out = tmp_path_factory.mktemp("runs") / "toy"
    network = ("--backbone", "test_resnet", "--weights", "random", "--resolution", "32", "--output-stride", "8")
    length = ("--epochs", "2", "--batch-size", "8", "--log-every", "1", "--quiet")
    finished(plugin, "train", "--data", f"toy:{toy}", "--method", "align-uniform-lcr", "--out", out, *network, *length)
    return out


def finished(plugin: Path, *args: str | Path) -> Finished:
    """Run a command with the package installed; it must succeed."""
    done = command(*args, PYTHONPATH=str(plugin))
    assert done.code == 0, done.err
    return done


def test_methods_lists_it(plugin: Path) -> None:
    assert "views close, images spread over the sphere" in finished(plugin, "methods").out
    assert "align-uniform-lcr" in json.loads(finished(plugin, "methods", "--json").out)
    assert "align-uniform" not in command("methods").out


def test_datasets_know_the_layout(plugin: Path, toy: Path) -> None:
    assert "Toy Birds" in finished(plugin, "datasets").out
    assert "toy.txt" in finished(plugin, "datasets", "show", "toy").out
    assert "toy" in finished(plugin, "inspect", toy).out
    verified = json.loads(finished(plugin, "datasets", "verify", toy, "--json").out)
    assert (verified["dataset"], verified["complete"]) == ("toy", True)


def test_training_writes_its_metrics_and_the_report_draws_them(plugin: Path, run: Path) -> None:
    header = (run / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"alignment_distance", "uniformity", "kl"} <= set(header)
    assert "method: align-uniform-lcr" in (run / "config.yaml").read_text()
    assert (run / "report.html").exists()
    code = (
        "import sys; from pathlib import Path; from finesight.report.run_report import training_curves; "
        "from finesight.training.run_folder import RunFolder; print(*training_curves(RunFolder(Path(sys.argv[1]))))"
    )
    env = environment(PYTHONPATH=os.pathsep.join([str(plugin), *sys.path]))
    done = subprocess.run([sys.executable, "-c", code, run], capture_output=True, text=True, env=env, check=True)
    assert "distance of two views" in done.stdout
    assert "uniformity" in done.stdout


def test_evaluate_scores_the_metric_and_the_report_shows_it(plugin: Path, run: Path, toy: Path) -> None:
    scores = json.loads(finished(plugin, "evaluate", run, "--data", toy, "--json", "--quiet").out)
    assert 0 <= scores["retrieval"]["r_precision"] <= 100
    low, high = scores["ci"]["retrieval"]["r_precision"]
    assert low <= scores["retrieval"]["r_precision"] <= high
    assert "R-precision" in finished(plugin, "evaluate", run, "--data", toy, "--quiet").out
    assert "R-precision" in (run / "report.html").read_text()


def test_compare_has_the_metric(plugin: Path, run: Path, toy: Path) -> None:
    compared = finished(plugin, "compare", run, run, "--data", toy, "--json", "--quiet").out
    assert "r_precision" in compared


def test_embed_takes_the_pooling(plugin: Path, run: Path, toy: Path, tmp_path: Path) -> None:
    """In a fresh process: the command line lists poolings when it is imported."""
    path = os.pathsep.join([str(plugin), *sys.path])
    done = finesight("embed", run, toy, "-o", tmp_path / "max.npz", "--pooling", "max", "--quiet", PYTHONPATH=path)
    assert done.code == 0, done.err
    finished(plugin, "embed", run, toy, "-o", tmp_path / "average.npz", "--pooling", "average", "--quiet")
    largest, average = (np.load(tmp_path / f"{name}.npz")["features"] for name in ("max", "average"))
    assert (largest >= average).all()
    assert (largest > average).any()


def test_explain_shows_the_gradcam_of_its_loss(plugin: Path, run: Path, toy: Path, tmp_path: Path) -> None:
    finished(plugin, "explain", run, toy, "-o", tmp_path / "why", "--quiet")
    assert (tmp_path / "why" / "index.html").exists() or any((tmp_path / "why").glob("*.html"))


def test_the_bench_runs_the_method_and_has_a_column_of_the_metric(plugin: Path, toy: Path, tmp_path: Path) -> None:
    network = ("backbone.name=test_resnet", "backbone.weights=random", "backbone.output_stride=8")
    settings = ("method=align-uniform-lcr", "epochs=1", "batch_size=8", "views.resolution=32", *network)
    options = [word for setting in settings for word in ("--set", setting)]
    finished(plugin, "bench", "k-sweep", "--data", toy, "--out", tmp_path / "bench", *options, "--quiet")
    with (tmp_path / "bench" / "results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows
    assert all(0 <= float(row["r_precision"]) <= 100 for row in rows)
