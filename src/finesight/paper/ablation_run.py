"""Run an ablation: train what is missing, score it, write what was found. The same call continues."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from finesight.data.sources import ImageSource
from finesight.evaluation.evaluate import evaluate_poolings
from finesight.evaluation.metrics import retrieval_metrics
from finesight.features.encoder import Encoder
from finesight.io.atomic import write_atomic
from finesight.io.console import console
from finesight.paper.ablation_figures import (
    ablation_figure,
    data_words,
    projection_variances,
    projections_figure,
    scored_images,
)
from finesight.paper.ablation_study import Study
from finesight.paper.ablations import KEEP_ALL, paper_columns
from finesight.paper.machine import commit, machine
from finesight.paper.networks import by_epoch, finished, settings, trained
from finesight.paper.results import read_json
from finesight.version import __version__

LABEL_FREE = ("loss", "kl", "kl_target_uniform", "mask_entropy", "embedding_spread", "effective_rank")
CURVES = ("val_rank1", "val_mAP", "kl", "mask_entropy")

Record = dict[str, Any]
Records = dict[tuple[str, int], Record]  # (training, seed) -> what it gave


# --- running ----------------------------------------------------------------------------------------------------------


def run(study: Study) -> Records:
    """Train and score what has no record yet; each is written as soon as it is known."""
    made = {"commit": commit(), "version": __version__, "machine": machine()}  # now: the source may change meanwhile
    source, records = study.source(), {}
    for seed in study.seeds:
        for training in study.ablation.trainings:
            record = _known(study, training, seed)
            if record is None:
                console.rule(f"{study.name}: {training}, seed {seed}")
                record = _found(study, training, seed, source) | {"date": time.strftime("%Y-%m-%d")} | made
                write_atomic(study.record(training, seed), (json.dumps(record, indent=2) + "\n").encode())
            records[training, seed] = record
    return records


def _poolings(study: Study, training: str) -> list[str]:
    return list(dict.fromkeys(study.pooling(row) for row in study.rows if row.training == training))


def _known(study: Study, training: str, seed: int) -> Record | None:
    """None unless it has all that is asked."""
    file = study.record(training, seed)
    if not file.exists():
        return None
    record = read_json(file)
    wanted = _poolings(study, training) if study.labeled else []
    whole = {"scores", "end", "epochs", *(["variances"] if training == KEEP_ALL else [])} <= record.keys()
    return record if whole and {*wanted} <= record["scores"].keys() else None


def _found(study: Study, training: str, seed: int, source: ImageSource) -> Record:
    config, folder = study.config(training, seed), study.run(training, seed)
    encoder = trained(folder, config, study.runtime)
    epochs = by_epoch(folder)
    record = {
        "training": training,
        "seed": seed,
        "settings": settings(config),
        "scores": _scores(study, training, encoder, source) if study.labeled else {},
        "end": {name: epochs[name][-1][1] for name in LABEL_FREE if name in epochs},
        "epochs": {name: epochs[name] for name in CURVES if name in epochs},
    }
    if training == KEEP_ALL:
        record["variances"] = projection_variances(encoder, *scored_images(encoder, source, study.runtime))
    return record


def _scores(study: Study, training: str, encoder: Encoder, source: ImageSource) -> dict[str, Any]:
    """One pass over the images for all rows of a network."""
    runtime, poolings = study.runtime, _poolings(study, training)
    found = evaluate_poolings(
        encoder,
        source,
        poolings,
        linear=False,
        cache_dir=runtime.cache_dir,
        workers=runtime.workers,
        progress=runtime.progress,
    )
    return {pooling: found[pooling].scores for pooling in poolings}


# --- what is written --------------------------------------------------------------------------------------------------


def result_rows(study: Study, records: Records) -> list[dict[str, Any]]:
    """One a row and seed, all with the same columns; None where there is nothing."""
    paper, rows = paper_columns(study.rows), []
    for row in study.rows:
        pooling = study.pooling(row)
        place = {} if study.ablation.axis is None else {study.ablation.axis[0]: row.x}
        for seed in study.seeds:
            record = records[row.training, seed]
            names = {"row": row.words, "series": row.series, "training": row.training, "pooling": pooling, "seed": seed}
            scores = _score_columns(study, record["scores"][pooling]) if study.labeled else {}
            end = {name: record["end"].get(name) for name in LABEL_FREE}
            rows.append({**names, **place, **scores, **end, **paper[row.words]})
    return rows


def _score_columns(study: Study, scores: Mapping[str, Any]) -> dict[str, float | None]:
    where = {"attention": scores.get("localization", {}).get("inside")} if study.objects else {}
    return {metric.key: scores["retrieval"].get(metric.key) for metric in retrieval_metrics()} | where


def write(study: Study, records: Records, command: str) -> dict[str, Any]:
    """Tables and figures; called again with nothing new, they come out the same."""
    rows = result_rows(study, records)
    write_atomic(study.out / "results.csv", _csv(rows))
    agreed = {key: "; ".join(dict.fromkeys(r[key] for r in records.values())) for key in ("machine", "commit", "date")}
    results = {
        "ablation": study.name,
        "title": study.ablation.title,
        "about": study.ablation.about,
        "paper": study.ablation.paper,
        "data": study.data.absolute().name,
        "labelled": study.labeled,
        "profile": study.profile.name,
        "command": command,
        "seeds": list(study.seeds),
        **agreed,
        "rows": rows,
    }
    write_atomic(study.out / "figure.png", ablation_figure(study, records, rows))
    if KEEP_ALL in study.ablation.trainings:
        _write_projections(study, records)
    write_atomic(study.out / "results.json", (json.dumps(results, indent=2) + "\n").encode())
    return results


def _write_projections(study: Study, records: Records) -> None:
    """``variances.csv``, and ``projections.png`` of the first seed while its network is there."""
    rows = []
    for seed in study.seeds:
        variances = records[KEEP_ALL, seed]["variances"]
        order = sorted(range(len(variances)), key=lambda k: -variances[k])
        places = enumerate(order, start=1)
        rows += [{"seed": seed, "place": n, "projection": k, "variance": variances[k]} for n, k in places]
    write_atomic(study.out / "variances.csv", _csv(rows))
    first = study.seeds[0]
    if finished(study.run(KEEP_ALL, first)):
        encoder = Encoder.load(study.run(KEEP_ALL, first).root)
        title = f"Projections of highest and lowest variance, seed {first}\n{data_words(study)}"
        images = scored_images(encoder, study.source(), study.runtime)
        write_atomic(
            study.out / "projections.png",
            projections_figure(title, encoder, *images, records[KEEP_ALL, first]["variances"]),
        )


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
