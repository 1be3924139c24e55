"""A run as an object: what it was made with, how it went, what it is worth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from finesight.evaluation.score_table import score_table
from finesight.explain.explainer import Explainer, Explanation
from finesight.features.encoder import Encoder, ImageLike
from finesight.plots.figures import curves
from finesight.plots.html import Section, html_fragment
from finesight.report.run_report import training_curves
from finesight.report.verdict import verdict_sections
from finesight.search.build import IndexUpdate
from finesight.search.hits import Hits
from finesight.search.run_index import index_images
from finesight.search.searcher import search_images
from finesight.training.dotted_keys import flat
from finesight.training.progress import read_progress
from finesight.training.run_folder import RunFolder
from finesight.training.verdict import Verdict, read_verdict

SHOWN = 6  # curves in a notebook


class Run:
    """A folder that ``finesight train`` or ``finesight up`` made. In a notebook it shows verdict, scores and curves.

    Examples:
        >>> run = finesight.open_run("runs/birds")
        >>> run.settings["method"]
        >>> run.search("bird.jpg", k=5)
    """

    def __init__(self, path: str | Path) -> None:
        """Open the run in the folder ``path``; raise ``FineSightError`` if that is no run."""
        self.folder = RunFolder(Path(path))
        self.settings: dict[str, Any] = flat(self.folder.config())  # every setting, with dots in their names

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.folder.root

    @property
    def is_finished(self) -> bool:
        """Whether it was trained to its end."""
        return self.folder.is_finished

    @property
    def verdict(self) -> Verdict | None:
        """Whether training helped, as it was found last; None where nothing was trained or compared."""
        return read_verdict(self.folder)

    @property
    def scores(self) -> dict[str, Any] | None:
        """What ``finesight evaluate`` found last; None before that."""
        file = self.folder.evaluation
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    @property
    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """The (step, value) points of everything that was measured during training, by name."""
        return training_curves(self.folder)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that the run keeps, loaded when it is first asked for."""
        return Encoder.load(self.path)

    @cached_property
    def explainer(self) -> Explainer:
        """What shows where the run looks, loaded when it is first asked for."""
        return Explainer(self.encoder, self.folder)

    def index(self, images: str | Path | None = None, **options: Any) -> IndexUpdate:
        """Make the run's index, or bring it up to date; see ``finesight.index_images``.

        By default the images are those that the run was trained on.
        """
        return index_images(self.path, self.settings["data"] if images is None else images, **options)

    def search(self, picture: ImageLike, k: int = 10, **options: Any) -> Hits:
        """Return the images of the run's index that look most like a picture; see ``finesight.search_images``."""
        return search_images(self.path, picture, k, **options)

    def explain(self, images: ImageLike | Tensor | Sequence[ImageLike]) -> Explanation:
        """Return where the run looks in these images."""
        return self.explainer(images)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.settings['method']}, {self._state()})"

    def _state(self) -> str:
        """Return how far it is, in words."""
        if self.is_finished:
            return "finished"
        progress = read_progress(self.folder.progress)
        return str(progress["words"]) if progress else "not finished"

    def _repr_html_(self) -> str:
        sections = [Section("Run", f"{self.settings['method']} on {self.settings['data']}, {self._state()}.")]
        sections += verdict_sections(self.folder)
        if (scores := self.scores) is not None:
            sections.append(Section("Scores", table=score_table({self.path.name: scores}, intervals=True)))
        if found := self.curves:
            first = dict(list(found.items())[:SHOWN])
            words = f"{len(first)} of {len(found)} curves; report.html has all." if len(first) < len(found) else ""
            sections.append(Section("Training", words, images=[("curves over the steps", curves(first))]))
        settings = [{"setting": key, "value": json.dumps(value)} for key, value in self.settings.items()]
        return html_fragment(self.path.name, [*sections, Section("Settings", table=settings)])
