"""The texts and tables on the page of an explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finesight.io.console import format_count
from finesight.plots.html import Section

MAPS = (
    "mask: what a run's features are pooled by, the common rationale it learned. channel energy: the sum of all "
    "activations, which needs no learning and which a mask has to beat; of networks whose activations have both signs, "
    "the sum of the positive ones. attention of its class token: where the network itself looks in its last block, the "
    "mean over its heads, of vision transformers that have a class token. GradCAM of its loss: the cells by which the "
    "loss of the run's own method would change most, with the image's mirror image as the second view; it is what the "
    "mask was taught by, image by image, and shows what the loss cares about, background included."
)
PROJECTIONS = (
    "The mask is the maximum over these detectors. On the left those whose answer varies most over an image, on the "
    "right those that vary least. Colors are scaled for each map on its own: they compare places within one map, not "
    "maps with each other; the variances do that."
)
ALIKE = (
    "The score is the sum over the cells of the query of what each adds to it, and just so over the cells of the hit. "
    "A cell belongs to the projection that has the maximum there, so that the score is also the sum of the "
    "projections' shares: the mean of what a projection's cells add on both sides. matched is the part of it that they "
    "make with that projection's own cells in the other image. Nothing is estimated."
)


def page_sections(summary: Mapping[str, Any], figures: Mapping[str, bytes], every: Sequence[bytes]) -> list[Section]:
    """Return, in order: the runs side by side, the pair, the projections, every image, runs, skipped files."""
    runs: list[dict[str, Any]] = summary["runs"]
    missing = "\n".join(f"{run['run']}: no GradCAM. {run['no_gradcam']}" for run in runs if run["no_gradcam"])
    shown = f"Explained: {summary['of']}; {summary['explained']:,} could be read."
    words = "\n\n".join(filter(None, [shown, MAPS, missing]))
    first = ("where each run looks, on the same images", figures["figure1.png"])
    parts = [Section("Where they look", words, images=[first])]
    if summary["pair"] is not None:
        pair = summary["pair"]
        query, hit = ("/".join(Path(pair[side]).parts[-2:]) for side in ("query", "hit"))
        words = f"{query} and {hit}: {pair['score']:.4f} by {pair['by']} pooling ({runs[0]['run']})."
        image = ("what made the score, by cells and by projections", figures["similarity.png"])
        shares = [{key: part[key] for key in ("k", "share", "matched")} for part in pair["projections"]]
        parts.append(Section("Why these two are alike", f"{words}\n\n{ALIKE}", shares or None, [image]))
    for run in runs:
        drawn = [file for file in figures if file.startswith("projections")]
        if run["projections"] and drawn:
            file = drawn[[other["run"] for other in runs if other["projections"]].index(run["run"])]
            picture = ("projections of highest and of lowest variance", figures[file])
            table = [{**row, "variance": f"{row['variance']:.3g}"} for row in run["projections"]]
            parts.append(Section(f"Projections of {run['run']}", PROJECTIONS, table, [picture]))
    if every:
        pictures = [(f"images, part {number}", png) for number, png in enumerate(every, start=1)]
        parts.append(Section("More images", "The overlays of every image are in the folder overlays.", images=pictures))
    facts = [{key: run[key] for key in ("run", "method", "pooling", "resolution")} for run in runs]
    parts.append(Section("Runs", table=facts))
    if summary["skipped"]:
        words = f"{format_count(len(summary['skipped']), 'file')} could not be used."
        parts.append(Section("Skipped files", words, table=summary["skipped"]))
    return parts
