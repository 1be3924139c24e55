"""The figures of the ablations: what is in them, from made-up results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from finesight.paper.ablation import TRAINING_METRICS, AblationExperiment, open_ablation
from finesight.paper.ablation_figures import (
    Panel,
    describe_data,
    draw_ablation,
    draw_bars,
    draw_lines,
    draw_projections,
    epoch_panels,
    row_panel,
)
from finesight.paper.ablation_results import result_rows
from finesight.paper.store import Results

GRAY = np.full((24, 24, 3), 128, np.uint8)


def opened(name: str, data: Path, out: Path, seeds: Sequence[int] = (0, 1)) -> AblationExperiment:
    return open_ablation(name, str(data), out, seeds=seeds, profile="drawn", given={"epochs": 4})


def made_up(job: AblationExperiment) -> Results:
    """Numbers as a run would leave them, another for every training, pooling and seed."""
    results: Results = {}
    for t, training in enumerate(job.ablation.trainings):
        for seed in job.seeds:
            poolings = [job.pooling(row) for row in job.rows if row.training == training]
            scores = {
                name: {
                    "retrieval": {"rank1": 20.0 + 3 * t + p + seed, "rank5": 60.0, "mAP": 10.0 + t + p + seed},
                    "localization": {"inside": 40.0},
                }
                for p, name in enumerate(poolings)
            }
            curve = [(epoch, 10.0 + t * epoch + seed) for epoch in range(1, 5)]
            epochs = {"val_rank1": curve, "val_mAP": curve} if job.labeled else {}
            epochs |= {"kl": curve, "mask_entropy": curve}
            end = {name: 0.5 + 0.1 * t + seed for name in TRAINING_METRICS}
            results.setdefault(training, {})[seed] = {"scores": scores, "end": end, "epochs": epochs}
    return results


def draw(job: AblationExperiment) -> Figure:
    results = made_up(job)
    return draw_ablation(job, results, result_rows(job, results))


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize(
    ("name", "axis", "ticks", "names"),
    [
        (
            "k-sweep",
            "K, the number of projections",
            [2**k for k in range(1, 9)],
            ["LCR", "average pooling", "GeM pooling"],
        ),
        ("nu", "ν, the weight of L_KL", [0.001, 0.01, 0.1, 1], ["LCR", "average pooling"]),
        ("dim", "dimension of the embedding", [64, 128, 256, 512, 1024], ["LCR", "average pooling"]),
        (
            "mask-power",
            "power of the mask",
            [0.5, 1, 2, 3, 4, 8],
            ["LCR", "average pooling", "GeM pooling", "channel energy in GeM"],
        ),
    ],
)
def test_lines_over_what_is_varied(
    birds: Path,
    tmp_path: Path,
    name: str,
    axis: str,
    ticks: list[float],
    names: list[str],
) -> None:
    job = opened(name, birds, tmp_path)
    figure = draw(job)
    title = figure.get_suptitle()
    assert title.startswith(job.ablation.title)
    assert "drawn look-alike birds, 4 classes, test_resnet at 80 px, 4 epochs" in title
    assert [axes.get_ylabel() for axes in figure.axes] == ["rank-1 (%)", "mAP (%)"]
    for axes in figure.axes:
        assert axes.get_xlabel() == axis
        assert axes.get_xscale() == "log"
        assert axes.get_xticks().tolist() == ticks
    assert legend(figure) == names
    handles = figure.legends[0].get_lines()
    assert len({handle.get_color() for handle in handles}) == len(names), "one can be told from another"
    assert figure.legends[0].get_title().get_text() == "mean and range over 2 seeds"


def test_the_line_goes_through_the_means(birds: Path, tmp_path: Path) -> None:
    job = opened("nu", birds, tmp_path)
    axes = draw(job).axes[0]
    line = next(line for line in axes.lines if line.get_label() == "LCR")
    assert line.get_xdata().tolist() == [0.001, 0.01, 0.1, 1]  # type: ignore[union-attr]
    assert line.get_ydata().tolist() == [29.5, 26.5, 23.5, 20.5]  # type: ignore[union-attr]


def test_what_has_no_k_is_level(birds: Path, tmp_path: Path) -> None:
    job = opened("k-sweep", birds, tmp_path)
    found = row_panel(result_rows(job, made_up(job)), "K", "rank1")
    assert list(found.lines) == ["LCR"]
    assert found.levels == {"average pooling": [28, 29], "GeM pooling": [29, 30]}
    assert found.lines["LCR"][8] == [22, 23]


@pytest.mark.parametrize("name", ["branch", "reading"])
def test_bars_in_the_order_of_the_rows(birds: Path, tmp_path: Path, name: str) -> None:
    job = opened(name, birds, tmp_path)
    figure = draw(job)
    assert [axes.get_xlabel() for axes in figure.axes] == ["rank-1 (%)", "mAP (%)"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [row.label for row in job.ablation.rows]
    assert len(figure.axes[0].patches) == len(job.ablation.rows)
    assert figure.get_supxlabel() == "blue: LCR as it is by default; mean and range over 2 seeds"


def test_curves_over_epochs_say_when_projections_were_chosen(birds: Path, tmp_path: Path) -> None:
    figure = draw(opened("projections", birds, tmp_path, seeds=(5,)))
    assert [axes.get_ylabel() for axes in figure.axes] == ["held-out rank-1 (%)", "held-out mAP (%)"]
    axes = figure.axes[0]
    assert axes.get_xlabel() == "epoch"
    assert [text.get_text() for text in axes.texts] == ["8 of 32 are kept"]
    upright = [line for line in axes.lines if len(set(line.get_xdata())) == 1]  # type: ignore[arg-type]
    assert [list(line.get_xdata()) for line in upright] == [[2, 2]]  # type: ignore[arg-type]
    assert legend(figure) == ["all projections", "those of highest variance", "as many others, at random"]
    assert figure.legends[0].get_title().get_text() == "one seed (5)"


@pytest.mark.parametrize("name", ["k-sweep", "branch", "projections"])
def test_without_labels_the_figure_shows_the_training(unlabeled: Path, tmp_path: Path, name: str) -> None:
    job = opened(name, unlabeled, tmp_path)
    figure = draw(job)
    labels = {axes.get_xlabel() if name == "branch" else axes.get_ylabel() for axes in figure.axes}
    assert labels == {"mask entropy (1: uniform)", "KL to GradCAM (nats)"}
    assert describe_data(job).startswith("flat, test_resnet")
    assert "%" not in "".join(labels)


def test_too_few_held_out_images_leave_the_training_s_own_curves(birds: Path, tmp_path: Path) -> None:
    job = opened("projections", birds, tmp_path)
    results = made_up(job)
    for seeds in results.values():
        del seeds[0]["epochs"]["val_rank1"]
    panels = epoch_panels(job, results)
    assert [panel.label for panel in panels] == ["KL to GradCAM (nats)", "mask entropy (1: uniform)"]


def test_nothing_to_draw_is_a_sentence() -> None:
    for figure in (draw_lines("title\ndata", "x", [Panel("y", {}, {})], "note"), draw_bars("title\ndata", {}, "note")):
        assert [text.get_text() for text in figure.texts] == ["There is nothing to draw yet."]
    figure = draw_bars("title\ndata", {"rank-1 (%)": {"a": [1.0], "b": []}}, "note")
    assert [text.get_text() for text in figure.axes[0].texts] == [" 1.0", " –"]


@pytest.mark.parametrize(("count", "shown"), [(32, 6), (6, 6), (5, 5), (4, 4), (1, 1)])
def test_the_sheet_has_the_ends_of_the_order(count: int, shown: int) -> None:
    rng = np.random.default_rng(0)
    variances = rng.permutation(count) / 10.0
    answers = rng.normal(size=(2, count, 3, 3)).astype(np.float32)
    figure = draw_projections("what\non what", [GRAY, GRAY], answers, variances.tolist())
    heads = [axes.get_title() for axes in figure.axes[: 1 + shown]]
    assert len(figure.axes) == 2 * (1 + shown)
    assert heads[0] == "image"
    places = [int(head.split()[1]) for head in heads[1:]]
    assert places == [*range(1, min(3, shown) + 1), *range(count - (shown - min(3, shown)) + 1, count + 1)]
    for head in heads[1:]:
        k = int(head.split("projection ")[1].split()[0])
        assert head.endswith(f"variance {variances[k]:.2g}")
    assert figure.get_suptitle() == "what\non what"


def test_a_silent_projection_is_drawn_and_each_column_has_one_scale() -> None:
    answers = np.zeros((2, 2, 3, 3), np.float32)
    answers[0, 0, 1, 1] = 1.0
    figure = draw_projections("t\nd", [GRAY, GRAY], answers, [0.1, 0.0])
    (_, hot, silent), (_, cold, _) = figure.axes[:3], figure.axes[3:]
    pictures = [np.asarray(axes.images[0].get_array()) for axes in (hot, cold, silent)]
    assert np.ptp(pictures[0].astype(int).sum(2)) > 50
    assert np.ptp(pictures[1].astype(int).sum(2)) == 0, "nothing in this image, on the scale of the other"
    assert np.array_equal(pictures[1], pictures[2])
