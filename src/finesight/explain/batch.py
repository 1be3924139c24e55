"""Explain many images by one run or several, and write overlays, figures, a page and a summary to a folder.

Images stream: a group at a time is read, explained and written. Only those that figures and page show are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finesight.errors import FineSightError, SkipImage
from finesight.explain.contributions import open_view, similarity
from finesight.explain.explainer import Explainer, Explanation, SafeNames, make_folder, write_file
from finesight.explain.html_page import page_sections
from finesight.explain.inputs import Selection, spaced
from finesight.explain.panels import high_and_low, rank_projections, side_by_side, similarity_figure
from finesight.features.encoder import Encoder
from finesight.features.preprocess import picture_view
from finesight.io.progress import track
from finesight.plots.html import build_report

GROUP = 16  # images explained at once: the batch of losses that have one
FIGURE = 8  # rows of a figure
PAGE = 48  # images the page shows
SMALLEST = 256  # pixels of an overlay, also of small views


@dataclass(frozen=True)
class Options:
    top: int = 3  # projections of highest variance: in the figure, and of each image as overlays
    lowest: int = 3
    pair: tuple[Path, Path] | None = None
    by: str | None = None  # pooling of the pair; None: the run's own
    progress: bool = True


@dataclass
class ExplainedRun:
    """What is kept of a run while images go by."""

    explainer: Explainer
    folder: str  # of its overlays, below the output
    names: SafeNames = field(default_factory=SafeNames)  # of its overlays
    shown: list[Explanation] = field(default_factory=list)  # one an image
    images: int = 0
    variances: NDArray[np.float64] | None = None  # (K,) summed over images
    wins: NDArray[np.float64] | None = None  # (K,) share of cells, summed over images

    def add(self, explanation: Explanation, keep: Sequence[bool]) -> None:
        """Count a group of images, and keep those that are to be shown."""
        self.shown += [explanation.row(i) for i, kept in enumerate(keep) if kept]
        self.images += len(explanation)
        if explanation.variances is not None:
            summed = explanation.variances.astype(np.float64).sum(0)
            self.variances = summed if self.variances is None else self.variances + summed
        if explanation.winners is not None and explanation.responses is not None:
            count = np.bincount(explanation.winners.ravel(), minlength=explanation.responses.shape[1])
            shares = count / explanation.winners[0].size
            self.wins = shares if self.wins is None else self.wins + shares

    @property
    def kept(self) -> list[int]:
        """The projections that take part in the maximum."""
        branch = self.explainer.encoder.branch
        if branch is None:
            return []
        return [k for k in range(branch.projections) if not isinstance(branch.kept, Tensor) or branch.kept[k]]

    def summary(self, name: str) -> dict[str, Any]:
        config = self.explainer.encoder.config
        has_gradcam = any(one.gradcam is not None for one in self.shown)
        return {
            "run": name,
            "method": config.method,
            "pooling": config.pooling,
            "resolution": config.resolution,
            "gradcam": has_gradcam,
            "no_gradcam": "" if has_gradcam else self.explainer.no_gradcam,
            "projections": self._projections(),
        }

    def _projections(self) -> list[dict[str, Any]]:
        """Return the projections' means over all images, highest variance first."""
        if self.variances is None:
            return []
        order, _ = rank_projections(self.variances, self.kept, len(self.kept), 0)
        return [
            {
                "projection": k,
                "variance": float(self.variances[k]) / self.images,
                "cells won": None if self.wins is None else float(self.wins[k]) / self.images,
            }
            for k in order
        ]


def explain_folder(explainers: dict[str, Explainer], images: Selection, out: Path, options: Options) -> dict[str, Any]:
    """Write everything into ``out``; return the summary, which is also written there as ``summary.json``."""
    make_folder(out)
    pair = None
    if options.pair is not None:  # before the work: its files may be wrong
        first = next(iter(explainers.values())).encoder
        pair = explain_pair(first, options.pair, images.root, options.by)
    folders = SafeNames()
    runs = {name: ExplainedRun(explainer, folders.add(name)) for name, explainer in explainers.items()}
    explained, skipped, words = _write_overlays(runs, images, out, options)
    figures = _figures(runs, words, options)
    if pair is not None:
        figures["similarity.png"] = pair[1]
    for file, png in figures.items():
        write_file(out / file, png)
    summary = {
        "runs": [run.summary(name) for name, run in runs.items()],
        "explained": len(explained),
        "of": images.choice,
        "skipped": [{"path": path, "reason": reason} for path, reason in skipped],
        "figures": sorted(figures),
        "pair": None if pair is None else pair[0],
        "images": explained,
    }
    title = f"FineSight: where {' and '.join(runs)} look" + ("s" if len(runs) == 1 else "")
    build_report(out / "index.html", title=title, sections=page_sections(summary, figures, _more(runs, words)))
    write_file(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def explain_pair(
    encoder: Encoder, files: tuple[Path, Path], root: Path, by: str | None
) -> tuple[dict[str, Any], bytes]:
    """Return why two images are alike, as numbers and as a figure; files are as given or relative to ``root``."""
    query, hit = (_find_file(file, root) for file in files)
    views = open_view(encoder, query), open_view(encoder, hit)
    score = similarity(encoder, *views, by)
    names = [f"{file.absolute().parent.name}/{file.stem}" for file in (query, hit)]
    keys = ("k", "share", "query_share", "hit_share", "matched")
    numbers = {
        "query": str(query),
        "hit": str(hit),
        "by": score.by,
        "score": score.score,
        "query_map": score.query_map.tolist(),
        "hit_map": score.hit_map.tolist(),
        "projections": [{key: getattr(part, key) for key in keys} for part in score.projections],
    }
    return numbers, similarity_figure(score, (views[0].pixels, views[1].pixels), (names[0], names[1]))


def _find_file(file: Path, root: Path) -> Path:
    for place in (file.expanduser(), root / file):
        if place.is_file():
            return place
    raise FineSightError(f"--pair: there is no file {file}.")


Skipped = list[tuple[str, str]]  # path, reason
Words = list[tuple[str, str]]  # class, name
Item = tuple[int, list[Tensor]]  # index into the selection, and its view for each run


def _write_overlays(
    runs: dict[str, ExplainedRun], images: Selection, out: Path, options: Options
) -> tuple[list[dict[str, Any]], Skipped, Words]:
    """Explain the images group by group; return those explained, the files skipped, and the words of those kept."""
    shown = set(spaced(len(images), PAGE).tolist())
    explained: list[dict[str, Any]] = []
    skipped: Skipped = []
    words: Words = []
    encoders = [run.explainer.encoder for run in runs.values()]
    for group in split_groups(_read_views(images, encoders, skipped, options.progress), GROUP):
        indices = [index for index, _ in group]
        keep = [index in shown for index in indices]
        files: dict[str, list[list[str]]] = {}
        for number, (name, run) in enumerate(runs.items()):
            views = torch.cat([own[number] for _, own in group])
            explanation = run.explainer(views, [images.names[index] for index in indices])
            run.add(explanation, keep)
            side = max(SMALLEST, run.explainer.encoder.config.resolution)
            folder = out / "overlays" / run.folder
            saved = explanation.save(folder, projections=options.top, side=side, names=run.names)
            files[name] = [[f"overlays/{run.folder}/{file}" for file in own] for own in saved]
        words += [images.words(index) for index, kept in zip(indices, keep, strict=True) if kept]
        for i, index in enumerate(indices):
            own = {name: listed[i] for name, listed in files.items()}
            facts = {"path": str(images.files[index]), "class": images.classes[index] or None}
            explained.append({**facts, "overlays": own})
    if not explained:
        path, reason = skipped[-1]
        raise FineSightError(f"None of the {len(images):,} images can be read, {path} for one: {reason}.")
    return explained, [*images.skipped, *skipped], words


def _read_views(images: Selection, encoders: list[Encoder], skipped: Skipped, progress: bool) -> Iterator[Item]:
    """Yield readable images one by one, and add the others to ``skipped``."""
    for index, file in track(enumerate(images.files), len(images), "explaining", show=progress):
        try:
            pixels = [picture_view(file, encoder.config.framing).pixels for encoder in encoders]
        except SkipImage as skip:
            skipped.append((str(file), str(skip)))
        else:
            yield index, [encoder.normalize(view[None]) for encoder, view in zip(encoders, pixels, strict=True)]


def split_groups(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    """Yield groups of ``size``; the last is one larger if a single image would be left, too few for some losses."""
    group: list[Item] = []
    for item in items:
        if len(group) > size:
            yield group[:size]
            group = group[size:]
        group.append(item)
    if group:
        yield group


def _figures(runs: dict[str, ExplainedRun], words: Words, options: Options) -> dict[str, bytes]:
    few = spaced(len(words), FIGURE).tolist()
    rows = {name: [run.shown[i] for i in few] for name, run in runs.items()}
    figures = {"figure1.png": side_by_side(rows, [words[i] for i in few])}
    for name, run in runs.items():
        if run.variances is not None and options.top + options.lowest:
            chosen = rank_projections(run.variances, run.kept, options.top, options.lowest)
            file = "projections.png" if len(runs) == 1 else f"projections-{run.folder}.png"
            figures[file] = high_and_low(rows[name], run.variances / run.images, *chosen)
    return figures


def _more(runs: dict[str, ExplainedRun], words: Words) -> list[bytes]:
    """Return figures of all images the page has, a few rows each; none where the first figure shows them already."""
    if len(words) <= FIGURE:
        return []
    parts = [slice(start, start + FIGURE) for start in range(0, len(words), FIGURE)]
    return [side_by_side({name: run.shown[few] for name, run in runs.items()}, words[few]) for few in parts]
