"""The report of a run: what was learned, how well it does, and pictures of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache
from finesight.evaluation.evaluate import Evaluation
from finesight.evaluation.metrics import Metric, metrics_of, retrieval_metrics
from finesight.evaluation.per_class import as_csv
from finesight.evaluation.protocols import setting_words
from finesight.evaluation.retrieval import neighbors
from finesight.evaluation.score_table import score_table
from finesight.features.encoder import Encoder, pixels, projection_responses
from finesight.io.atomic import explain_write_errors, remove_orphans, write_atomic
from finesight.io.console import format_count
from finesight.io.table import read_table
from finesight.plots.figures import curves
from finesight.plots.html import Section, build_report
from finesight.plots.sheets import RetrievalRow, attention_overlays, projections, retrieval_rows
from finesight.report.verdict import verdict_sections
from finesight.training.dotted_keys import flat
from finesight.training.metrics_log import metric_series
from finesight.training.run_folder import RunFolder
from finesight.training.train import metric_words

PICTURES = 6
NEIGHBORS = 7
CURVES = (
    "A spread near 0 or an effective rank near 1 means collapse: every image gets the same embedding. Apart from that, "
    "these curves do not say whether the features become better: good and harmful trainings look alike. Information is "
    "how far a map is from saying nothing (KL from uniform, in nats); a mask entropy of 1 is attention everywhere. "
    "Only the held-out scores use labels."
)


def write_run_report(run: RunFolder, encoder: Encoder, evaluation: Evaluation | None, cache: DecodedCache) -> None:
    """Write ``report.html`` in the run folder, with scores and search results if the run has been evaluated."""
    shown = evaluation.test if evaluation is not None else np.arange(len(cache))
    settings = [{"setting": key, "value": json.dumps(value)} for key, value in flat(run.config()).items()]
    sections = [
        *verdict_sections(run),
        *([_scores(run, evaluation)] if evaluation is not None else []),
        Section("Training", CURVES, images=[("curves over the steps", curves(training_curves(run)))]),
        *([_searches(evaluation), *_group_sections(evaluation)] if evaluation is not None else []),
        *picture_sections(encoder, cache, shown),
        _skipped(run),
        Section("Settings", "What was run (config.yaml).", table=settings),
    ]
    build_report(run.report, title=f"FineSight: {run.root.name}", sections=sections)


def record_evaluation(folder: Path, encoder: Encoder, evaluation: Evaluation) -> None:
    """Write the scores into the run folder and its report; do nothing for an encoder folder on its own."""
    run = RunFolder(folder)
    if not run.config_file.exists():
        return
    with explain_write_errors(run.root):
        remove_orphans(run.evaluation, run.classes, run.report)
    write_atomic(run.evaluation, json.dumps(evaluation.scores, indent=2) + "\n")
    write_atomic(run.classes, as_csv(evaluation.classes))
    write_run_report(run, encoder, evaluation, evaluation.cache)


def picture_sections(encoder: Encoder, cache: DecodedCache, shown: NDArray[np.int64]) -> list[Section]:
    """Return sections with the attention on a few images and, where there is a branch, its projections."""
    chosen = shown[np.linspace(0, len(shown) - 1, min(PICTURES, len(shown))).round().astype(int)]
    views = encoder.cached_views(cache, chosen)
    pictures = [pixels(encoder, view) for view in views]
    masks = encoder.encode(views, ()).attention.numpy()
    title = "rationale" if encoder.branch is not None else "channel energy"
    overlay = attention_overlays(pictures, [[mask] for mask in masks], [title])
    words = "Where the encoder looks when it makes the feature of an image."
    sections = [Section("Attention", words, images=[(f"attention: {title}", overlay)])]
    if encoder.branch is not None:
        responses = projection_responses(encoder, views)
        variances = responses.var(axis=(2, 3)).mean(axis=0)
        figure = projections(pictures, responses, variances)
        sections.append(
            Section(
                f"The {responses.shape[1]} projections",
                "Each projection is one detector; those whose answer varies most over an image come first. The "
                "attention is their maximum.",
                images=[("projections by variance", figure)],
            )
        )
    return sections


def search_rows(evaluation: Evaluation, count: int = PICTURES) -> list[RetrievalRow]:
    """Return a few queries spread over the test images, each with its nearest neighbors."""
    features, cache = evaluation.extracted.features[evaluation.pooling], evaluation.cache
    source = cache.source
    queries = np.linspace(0, len(features) - 1, min(count, len(features))).round().astype(int)
    found, scores = neighbors(features, queries, min(NEIGHBORS, len(features) - 1))

    def name(i: int) -> str:
        label = int(source.labels[i]) if source.labels is not None else -1
        return source.classes[label] if label >= 0 else ""

    rows = []
    for query, hits, similarity in zip(evaluation.test[queries], evaluation.test[found], scores, strict=True):
        names = [name(int(hit)) for hit in hits]
        own = name(int(query))
        rows.append(
            RetrievalRow(
                query=cache.image(int(query)),
                neighbors=[cache.image(int(hit)) for hit in hits],
                right=[other == own if other and own else None for other in names],
                name=own,
                names=names,
                scores=[float(s) for s in similarity],
            )
        )
    return rows


def super_table(scores: Mapping[str, Any]) -> list[dict[str, object]]:
    """Return a row for each super-category."""
    titles = {metric.key: metric.head() for metric in retrieval_metrics()}
    titles |= {f"{key}_own": f"{title}, own gallery" for key, title in titles.items()}
    return [{titles.get(key, key): value for key, value in row.items()} for row in scores["super_categories"]]


def class_table(rows: Sequence[Mapping[str, Any]], scores: Mapping[str, Any]) -> list[dict[str, object]]:
    """Return a row for each class, in the order given; ``scores`` are those of all classes together."""
    titles = {"test_images": "test images"} | {
        metric.column.format(variant): metric.head(variant)
        for metric in metrics_of(Metric)
        for variant in ("", *scores.get(metric.family, ()))
    }
    return [{titles.get(key, key): value for key, value in row.items()} for row in rows]


def _scores(run: RunFolder, evaluation: Evaluation) -> Section:
    setting, found = evaluation.scores["setting"], evaluation.scores["retrieval"]
    meanings = []
    for metric in metrics_of(Metric):
        variants = list(metric.shown_scores(evaluation.scores)) if metric.shown and metric.words else []
        meanings += [f"{metric.head(variant)}: {metric.words}." for variant, _ in variants[:1]]
    text = (
        f"{found['queries']} images each search all others ({setting['pooling']} pooling, {setting['split']} split). "
        f"{' '.join(meanings)}\n\n{setting_words(evaluation.scores)}"
    )
    return Section("Scores", text, table=score_table({run.root.name: evaluation.scores}, intervals=True))


def _group_sections(evaluation: Evaluation) -> list[Section]:
    """Return tables of the scores by super-category, where the dataset has them, and by class."""
    sections = []
    if "super_categories" in evaluation.scores:
        words = (
            "Queries of each super-category. They search all images; under 'own gallery', those of their own "
            "super-category only."
        )
        sections.append(Section("Super-categories", words, table=super_table(evaluation.scores)))
    if evaluation.classes:
        words = "The classes whose images find each other worst come first. Scores in percent."
        sections.append(Section("Classes", words, table=class_table(evaluation.classes, evaluation.scores)))
    return sections


def training_curves(run: RunFolder) -> dict[str, list[tuple[float, float]]]:
    """Return the (step, value) points of every logged metric, named by its words, or by its key if it has none."""
    series, words = metric_series(run.metrics_file), metric_words(run.config().method)
    order = [*(name for name in words if name in series), *(name for name in series if name not in words)]
    return {words.get(name, name): series[name] for name in order}


def _searches(evaluation: Evaluation) -> Section:
    words = "The image on the left searches the test images; the nearest come first."
    rows = retrieval_rows(search_rows(evaluation))
    return Section("Search results", words, images=[("query and nearest images", rows)])


def _skipped(run: RunFolder) -> Section:
    rows: Sequence[dict[str, str]] = []
    if run.skipped.exists():
        rows = read_table(run.skipped)
    words = f"{format_count(len(rows), 'file')} could not be used." if rows else "Every file could be used."
    return Section("Skipped files", words, table=rows or None)
