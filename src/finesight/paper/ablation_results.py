"""What an ablation leaves: results.csv, results.json, figure.png and, of the projections, their variances."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from finesight.evaluation.metrics import retrieval_metrics
from finesight.features.encoder import Encoder
from finesight.io.atomic import write_atomic
from finesight.io.table import records_text
from finesight.paper.ablation import TRAINING_METRICS, AblationExperiment
from finesight.paper.ablation_figures import describe_data, draw_ablation, projections_figure, scored_images
from finesight.paper.ablations import KEEP_ALL, PAPER_SETTING, paper_column, paper_columns
from finesight.paper.experiment import Run
from finesight.paper.runs import is_finished
from finesight.paper.scores import mean_and_std
from finesight.paper.store import Results
from finesight.plots.style import drawn


def result_rows(experiment: AblationExperiment, results: Results) -> list[dict[str, Any]]:
    """Return a line for every row and seed, all with the same columns; None where there is nothing."""
    paper, lines = paper_columns(experiment.rows), []
    for row in experiment.rows:
        pooling = experiment.pooling(row)
        axis = {} if experiment.ablation.axis is None else {experiment.ablation.axis[0]: row.x}
        for seed in experiment.seeds:
            result = results[row.training][seed]
            names = {"row": row.label, "series": row.series, "training": row.training, "pooling": pooling, "seed": seed}
            scores = _scores(experiment, result["scores"][pooling]) if experiment.labeled else {}
            end = {name: result["end"].get(name) for name in TRAINING_METRICS}
            lines.append({**names, **axis, **scores, **end, **paper[row.label]})
    return lines


def _scores(experiment: AblationExperiment, scores: Mapping[str, Any]) -> dict[str, float | None]:
    inside = {"attention": scores.get("localization", {}).get("inside")} if experiment.objects else {}
    return {metric.key: scores["retrieval"].get(metric.key) for metric in retrieval_metrics()} | inside


def write_results(experiment: AblationExperiment, results: Results, command: str) -> dict[str, Any]:
    """Write tables and figures and return what results.json holds. Without new results, the files stay the same."""
    rows = result_rows(experiment, results)
    used = [results[training][seed] for seed in experiment.seeds for training in experiment.results]
    write_atomic(experiment.out / "results.csv", records_text(rows))
    made = {key: "; ".join(dict.fromkeys(result[key] for result in used)) for key in ("machine", "commit", "date")}
    summary = {
        "ablation": experiment.command,
        "title": experiment.ablation.title,
        "about": experiment.ablation.about,
        "paper": experiment.ablation.paper,
        "data": experiment.data.absolute().name,
        "labelled": experiment.labeled,
        "profile": experiment.profile.name,
        "command": command,
        "seeds": list(experiment.seeds),
        **made,
        "rows": rows,
    }
    write_atomic(experiment.out / "figure.png", drawn(draw_ablation)(experiment, results, rows))
    if KEEP_ALL in experiment.results:
        _write_projections(experiment, results[KEEP_ALL])
    write_atomic(experiment.out / "results.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def _write_projections(experiment: AblationExperiment, results: Mapping[int, Mapping[str, Any]]) -> None:
    """Write ``variances.csv``, and ``projections.png`` of the first seed while its encoder is there."""
    rows = []
    for seed in experiment.seeds:
        variances = results[seed]["variances"]
        order = sorted(range(len(variances)), key=lambda k: -variances[k])
        places = enumerate(order, start=1)
        rows += [{"seed": seed, "place": n, "projection": k, "variance": variances[k]} for n, k in places]
    write_atomic(experiment.out / "variances.csv", records_text(rows))
    run = experiment.folder(Run(KEEP_ALL, experiment.seeds[0]))
    if is_finished(run):
        encoder = Encoder.load(run.root)
        title = f"Projections of highest and lowest variance, seed {experiment.seeds[0]}\n{describe_data(experiment)}"
        images = scored_images(encoder, experiment.source(), experiment.runtime)
        figure = projections_figure(title, encoder, *images, results[experiment.seeds[0]]["variances"])
        write_atomic(experiment.out / "projections.png", figure)


def summary_table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return mean ± std over seeds by row, and the paper's number in a column that names its dataset."""
    labeled, rows = summary["labelled"], summary["rows"]
    titles = {metric.key: metric.title for metric in retrieval_metrics()} | {"attention": "attention on object"}
    shown = titles if labeled else {name: name.replace("_", " ") for name in TRAINING_METRICS}
    papers = {
        paper_column(data, metric): f"paper's {titles[metric]} ({setting})"
        for data, setting in PAPER_SETTING.items()
        for metric in ("rank1", "mAP")
        if labeled and paper_column(data, metric) in rows[0]
    }
    table = []
    for label in dict.fromkeys(row["row"] for row in rows):
        seeds = [row for row in rows if row["row"] == label]
        cells = {"": label, "seeds": str(len(seeds))}
        for column, head in shown.items():
            if column in rows[0]:
                cells[head] = mean_and_std([row[column] for row in seeds if row[column] is not None])
        for column, head in papers.items():
            cells[head] = "" if seeds[0][column] is None else f"{seeds[0][column]:.2f}"
        table.append(cells)
    return table
