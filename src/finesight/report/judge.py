"""Judge two candidates in a notebook or a terminal: the question as a picture, and the answers as methods."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from finesight.data.decode import read_image_and_size
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError, SkipImage
from finesight.evaluation.judging import Decision, Judging, Question
from finesight.evaluation.judgments import Record, as_csv
from finesight.io.atomic import write_atomic
from finesight.io.console import format_count
from finesight.report.verdict import renew_verdict
from finesight.training.config import RuntimeConfig
from finesight.training.run_folder import RunFolder

SIDE, EDGE, TITLE = 360, 12, 26  # pixels of a picture, between pictures, and of the words above
PAPER, INK, FAINT = "#ffffff", "#22262b", "#b6bcc4"


class Judge:
    """Ask which of two images is more like a query, without telling whose they are.

    Examples:
        >>> judge = finesight.judge("runs/birds")
        >>> judge  # shows the question
        >>> judge.answer("left")  # or "right", "both", "neither"; shows the next
        >>> judge.decision
    """

    def __init__(
        self, judging: Judging, source: ImageSource, *, on_end: Callable[[Decision], object] | None = None
    ) -> None:
        """Ask about the images of ``source``; ``on_end`` is called when judging ends, or goes on after that."""
        self.judging, self.source, self._on_end = judging, source, on_end

    @property
    def decision(self) -> Decision:
        """What the answers say so far."""
        return self.judging.decision

    def next(self) -> Question | None:
        """Return the question that is asked; None when the answer is known."""
        return self.judging.question

    def answer(self, choice: str) -> Judge:
        """Take "left", "right", "both" or "neither"; what it returns shows the next question."""
        before = self.decision.state
        self._tell(before, self.judging.answer(choice))
        return self

    def undo(self) -> Judge:
        """Take back the last answer."""
        before = self.decision.state
        self._tell(before, self.judging.undo())
        return self

    def export(self, file: str | Path) -> None:
        """Write all answers to a .csv or .json file."""
        export_record(self.judging.record, Path(file))

    def sheet(self, question: Question) -> Image.Image:
        """Draw the query with the two answers at its right."""
        images = {"query": question.query, "left": question.left, "right": question.right}
        sheet = Image.new("RGB", (EDGE + len(images) * (SIDE + EDGE), TITLE + SIDE + EDGE), PAPER)
        pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
        for column, (words, image) in enumerate(images.items()):
            left = EDGE + column * (SIDE + EDGE)
            picture = self._read(image)
            pen.text((left, 5), words, INK, font=font)
            sheet.paste(picture, (left + (SIDE - picture.width) // 2, TITLE + (SIDE - picture.height) // 2))
        return sheet

    def _read(self, image: int) -> Image.Image:
        try:
            picture = read_image_and_size(self.source.file(image), at_least=SIDE)[0]
        except (SkipImage, OSError):
            picture = Image.new("RGB", (SIDE, SIDE), FAINT)  # gone since
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        return picture

    def _tell(self, before: str, decision: Decision) -> None:
        if self._on_end is not None and decision.state != before:
            self._on_end(decision)

    def _repr_html_(self) -> str:
        question, words = self.next(), html.escape(_progress_words(self.decision))
        if question is None:
            return f"<p>{words}</p>"
        buffer = io.BytesIO()
        self.sheet(question).save(buffer, "JPEG", quality=88)
        data = base64.b64encode(buffer.getvalue()).decode()
        ask = "Which is more like the query? Answer <code>left</code>, <code>right</code>, <code>both</code> or "
        ask += "<code>neither</code>."
        return f'<img src="data:image/jpeg;base64,{data}" alt="A query and two answers"><p>{ask}<br>{words}</p>'

    def __repr__(self) -> str:
        return _progress_words(self.decision)


def _progress_words(decision: Decision) -> str:
    """Return how far it is; names are told only at the end."""
    if decision.state != "asking":
        return decision.words
    left = decision.clicks_left
    guess = "" if not decision.clicks or left is None else f" At this rate about {left:,} more decide."
    return (
        f"{format_count(decision.clicks, 'answer')}, {decision.ties} of them both or neither. "
        f"95 % interval of the difference in rank-1: {decision.low:+.1f} to {decision.high:+.1f} points.{guess}"
    )


def rewrite_verdict(run: RunFolder, runtime: RuntimeConfig | None = None) -> str | None:
    """Join the answers about the frozen and the trained network of a run to its verdict; return that in words."""
    verdict = renew_verdict(run, runtime)
    return None if verdict is None else verdict.words


def export_record(record: Record, file: Path) -> None:
    """Write a record as .csv or .json."""
    contents = {".csv": lambda: as_csv(record), ".json": lambda: json.dumps(asdict(record), indent=1) + "\n"}
    if file.suffix.lower() not in contents:
        raise FineSightError(f"--export {file}: give a name that ends in .csv or .json.")
    write_atomic(file, contents[file.suffix.lower()]())
