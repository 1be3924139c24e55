"""Explanations of many images by one run or several, written to a folder: overlays, figures, a page and a summary.

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
from finesight.explain.explainer import Explainer, Explanation
from finesight.explain.html_page import sections
from finesight.explain.inputs import Picked, spaced
from finesight.explain.output import Names, make_folder, write
from finesight.explain.pair import explain_pair
from finesight.explain.panels import high_and_low, ranked, side_by_side
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
class Looked:
    """What is kept of a run while images go by."""

    explainer: Explainer
    folder: str  # of its overlays, below the output
    names: Names = field(default_factory=Names)  # of its overlays
    shown: list[Explanation] = field(default_factory=list)  # one an image
    images: int = 0
    variances: NDArray[np.float64] | None = None  # (K,) summed over images
    wins: NDArray[np.float64] | None = None  # (K,) share of cells, summed over images

    def add(self, explanation: Explanation, keep: Sequence[bool]) -> None:
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
        every = range(branch.projections)
        return [k for k in every if branch.kept[k]] if isinstance(branch.kept, Tensor) else list(every)

    def projections(self) -> list[dict[str, Any]]:
        """Of all images explained, highest variance first."""
        if self.variances is None:
            return []
        order, _ = ranked(self.variances, self.kept, len(self.kept), 0)
        return [
            {
                "projection": k,
                "variance": float(self.variances[k]) / self.images,
                "cells won": None if self.wins is None else float(self.wins[k]) / self.images,
            }
            for k in order
        ]


def explain_folder(runs: dict[str, Explainer], picked: Picked, out: Path, options: Options) -> dict[str, Any]:
    """Everything, into ``out``; -> the summary, which is also written there as ``summary.json``."""
    make_folder(out)
    pair = None
    if options.pair is not None:  # before the work: its files may be wrong
        pair = explain_pair(next(iter(runs.values())).encoder, options.pair, picked.root, options.by)
    folders = Names()
    looked = {name: Looked(explainer, folders.safe(name)) for name, explainer in runs.items()}
    images, skipped, words = _overlays(looked, picked, out, options)
    figures = _figures(looked, words, options)
    if pair is not None:
        figures["similarity.png"] = pair[1]
    for file, png in figures.items():
        write(out / file, png)
    summary = {
        "runs": [_facts(name, one) for name, one in looked.items()],
        "explained": len(images),
        "of": picked.choice,
        "skipped": [{"path": path, "reason": reason} for path, reason in skipped],
        "figures": sorted(figures),
        "pair": None if pair is None else pair[0],
        "images": images,
    }
    title = f"FineSight: where {' and '.join(looked)} look" + ("s" if len(looked) == 1 else "")
    build_report(out / "index.html", title=title, sections=sections(summary, figures, _more(looked, words)))
    write(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


Skipped = list[tuple[str, str]]
Words = list[tuple[str, str]]


def _overlays(
    looked: dict[str, Looked], picked: Picked, out: Path, options: Options
) -> tuple[list[dict[str, Any]], Skipped, Words]:
    """Write them group by group. -> the images explained, the files skipped, and the words of the images kept."""
    wanted = set(spaced(len(picked), PAGE).tolist())
    images: list[dict[str, Any]] = []
    skipped: Skipped = []
    words: Words = []
    encoders = [one.explainer.encoder for one in looked.values()]
    for group in grouped(_read(picked, encoders, skipped, options.progress), GROUP):
        places = [place for place, _ in group]
        keep = [place in wanted for place in places]
        files: dict[str, list[list[str]]] = {}
        for number, (name, one) in enumerate(looked.items()):
            views = torch.cat([own[number] for _, own in group])
            explanation = one.explainer(views, [picked.names[place] for place in places])
            one.add(explanation, keep)
            side = max(SMALLEST, one.explainer.encoder.config.resolution)
            folder = out / "overlays" / one.folder
            saved = explanation.save(folder, projections=options.top, side=side, names=one.names)
            files[name] = [[f"overlays/{one.folder}/{file}" for file in own] for own in saved]
        words += [picked.words(place) for place, kept in zip(places, keep, strict=True) if kept]
        for i, place in enumerate(places):
            own = {name: listed[i] for name, listed in files.items()}
            images.append({"path": str(picked.files[place]), "class": picked.classes[place] or None, "overlays": own})
    if not images:
        path, reason = skipped[-1]
        raise FineSightError(f"None of the {len(picked):,} images can be read, {path} for one: {reason}.")
    return images, [*picked.skipped, *skipped], words


Item = tuple[int, list[Tensor]]  # place among the picked, and its view for each run


def _read(picked: Picked, encoders: list[Encoder], skipped: Skipped, progress: bool) -> Iterator[Item]:
    """Readable images one by one; why others are not goes to ``skipped``."""
    for place, file in track(enumerate(picked.files), len(picked), "explaining", show=progress):
        try:
            views = [picture_view(file, encoder.config.resolution).pixels for encoder in encoders]
            yield place, [encoder.normalize(view[None]) for encoder, view in zip(encoders, views, strict=True)]
        except SkipImage as skip:
            skipped.append((str(file), str(skip)))


def grouped(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    """Groups of ``size``; the last is one larger rather than leave a single image, of which some losses say nothing."""
    group: list[Item] = []
    for item in items:
        if len(group) > size:
            yield group[:size]
            group = group[size:]
        group.append(item)
    if group:
        yield group


def _figures(looked: dict[str, Looked], words: Words, options: Options) -> dict[str, bytes]:
    few = spaced(len(words), FIGURE).tolist()
    rows = {name: [one.shown[i] for i in few] for name, one in looked.items()}
    figures = {"figure1.png": side_by_side(rows, [words[i] for i in few])}
    for name, one in looked.items():
        if one.variances is not None and options.top + options.lowest:
            chosen = ranked(one.variances, one.kept, options.top, options.lowest)
            file = "projections.png" if len(looked) == 1 else f"projections-{one.folder}.png"
            figures[file] = high_and_low(rows[name], one.variances / one.images, *chosen)
    return figures


def _facts(name: str, looked: Looked) -> dict[str, Any]:
    config = looked.explainer.encoder.config
    has_gradcam = any(one.gradcam is not None for one in looked.shown)
    return {
        "run": name,
        "method": config.method,
        "pooling": config.pooling,
        "resolution": config.resolution,
        "gradcam": has_gradcam,
        "no_gradcam": "" if has_gradcam else looked.explainer.no_gradcam,
        "projections": looked.projections(),
    }


def _more(looked: dict[str, Looked], words: Words) -> list[bytes]:
    """All images the page has, in figures of a few rows; none where the first figure shows them already."""
    if len(words) <= FIGURE:
        return []
    parts = [slice(start, start + FIGURE) for start in range(0, len(words), FIGURE)]
    return [side_by_side({name: one.shown[few] for name, one in looked.items()}, words[few]) for few in parts]
