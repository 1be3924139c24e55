"""What the judging page does, apart from the web: one question at a time about two candidates."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import asdict

from fastapi import HTTPException

from finesight.errors import FineSightError
from finesight.evaluation.judging import Decision, Judging, NotAsked
from finesight.evaluation.judgments import as_csv
from finesight.server.config import ServerConfig
from finesight.server.images import draw_jpeg
from finesight.server.judge_schemas import JudgeNames, JudgeQuestion, JudgeState
from finesight.server.safe_files import open_inside
from finesight.server.work_queue import WorkQueue, close_queues

PICTURE_SIDE = 900  # of the longest side
log = logging.getLogger("finesight.server")


class JudgeDesk:
    """Ask about images whose paths begin at ``root``. The methods block; routes call them in a work queue."""

    def __init__(
        self,
        judging: Judging,
        root: str,
        config: ServerConfig,
        on_end: Callable[[Decision], str | None] | None = None,
        *,
        within: str | None = None,
    ) -> None:
        """Prepare to ask.

        Parameters
        ----------
        on_end
            Called in a thread when judging ends, or goes on after that; returns what the run makes of it.
        within
            The folder that no picture may lie outside of; by default ``root``.
        """
        self.judging, self.config, self._root, self._on_end = judging, config, root, on_end
        self._within = root if within is None else within
        self._verdict: str | None = None

    def state(self, reveal: bool = False) -> JudgeState:
        """Return the question and how far it is; ``reveal`` tells the names before the end."""
        decision, questions = self.judging.decision, self.judging.upcoming(2)
        asked = questions[0] if questions else None
        ahead = [image for one in questions[1:] for image in (one.query, one.left, one.right)]
        over = reveal or decision.state != "asking"
        names = JudgeNames(a=decision.a, b=decision.b, for_a=decision.for_a, for_b=decision.for_b)
        record = self.judging.record
        return JudgeState(
            state=decision.state,
            question=None if asked is None else JudgeQuestion(**vars(asked)),
            ahead=ahead,
            answers=decision.clicks,
            ties=decision.ties,
            images=record.images,
            disagree=record.disagree,
            low=round(decision.low, 2),
            high=round(decision.high, 2),
            difference=round(decision.difference, 2),
            clicks_left=decision.clicks_left,
            names=names if over else None,
            winner=decision.winner,
            words=decision.words if over else None,
            verdict=self._verdict if over else None,
        )

    def answer(self, number: int, choice: str) -> JudgeState:
        """Take an answer, or raise 409 if its question is not asked any more."""
        return self._change(lambda: self.judging.answer(choice, number))

    def undo(self) -> JudgeState:
        """Take back the last answer, or raise 409 if there is none."""
        return self._change(self.judging.undo)

    def _change(self, change: Callable[[], Decision]) -> JudgeState:
        before = self.judging.decision.state
        try:
            after = change()
        except NotAsked as error:
            raise HTTPException(409, str(error)) from None
        if before != after.state and self._on_end is not None:
            self._verdict = None
            threading.Thread(target=self._tell, args=(after,), daemon=True).start()
        return self.state()

    def _tell(self, decision: Decision) -> None:
        assert self._on_end is not None
        try:
            self._verdict = self._on_end(decision)
        except FineSightError as error:
            log.error("The verdict could not be written: %s", error)

    def picture(self, image: int) -> bytes:
        """Return a JPEG of an image, or raise 404."""
        if not 0 <= image < len(self.judging.paths):
            raise HTTPException(404, "There is no such picture here.")
        stream, _ = open_inside(self._within, os.path.join(self._root, self.judging.paths[image]))
        with stream:
            return draw_jpeg(stream, PICTURE_SIDE, self.config)

    def export(self, kind: str) -> str:
        """Return all answers as csv or json."""
        record = self.judging.record
        return as_csv(record) if kind == "csv" else json.dumps(asdict(record), indent=1) + "\n"


class JudgeRoom:
    """Where the routes find the desk, and the queues its work waits in."""

    def __init__(self, find: Callable[[], JudgeDesk], config: ServerConfig) -> None:
        """``find`` returns the desk, or raises 404 while there is nothing to judge."""
        self.find, self.config = find, config
        self.asking = WorkQueue("judging", 1, config.waiting)
        self.drawing = WorkQueue("pictures", 2, config.waiting)
        self.queues = (self.asking, self.drawing)

    def close(self) -> None:
        """Stop all work."""
        close_queues(*self.queues)
