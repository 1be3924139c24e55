"""What ``finesight up`` does while it serves: index, train in the background, index again, and watch the folder."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from fastapi import HTTPException

from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder_folder import CONFIG, fingerprint
from finesight.io.console import console
from finesight.io.lock import Busy, acquire
from finesight.search.base import Ids
from finesight.search.build import IndexUpdate, open_or_create
from finesight.search.engines import index_exists, open_index
from finesight.search.index_folder import RUN_INDEX
from finesight.search.watch import Change, FolderWatch
from finesight.server import schemas
from finesight.server.feature_sets import AFTER, BEFORE, FeatureSet, FeatureSets
from finesight.server.job import TrainingJob, bring_up_to_date
from finesight.server.seen_images import SeenImages, train_ids
from finesight.server.training_process import TrainingBar, TrainingProcess
from finesight.training.progress import read_progress
from finesight.training.run_folder import RunFolder
from finesight.training.verdict import read_verdict, trained_encoder

log = logging.getLogger("finesight.server")
FROZEN = "frozen"  # folder of a run: the network before training, and its index
NEXT_INDEX = "index-next"  # folder of a run: what takes the place of its index as soon as it is whole
TICK = 0.3  # seconds between two looks at what goes on
A_TENTH = 0.1  # of the images that training has seen: so many new ones start it again, where the folder is watched
SAVE_SECONDS = 60.0  # for the training to end its step and to save
ENDED_BY_SIGNAL = (130, 143, -2, -15)
COMMAND = re.compile(r"[;.]?\s*`[^`]*`[^.`]*\.")  # what the verdict says for a terminal; it names folders, too
ANOTHER = "Another process trains in this run; its progress is shown."

State = Literal["waiting", "running", "indexing", "done", "failed", "stopped", "off"]


@dataclass(frozen=True)
class TrainingCommand:
    """How to start a training, and what it is asked for."""

    command: Sequence[str]
    request: Mapping[str, Any] = field(default_factory=dict)


class Upkeep(TrainingJob):
    """Keep the indexes of a run as its folder is, and train. Without a command nothing is trained."""

    def __init__(
        self,
        run: Path,
        watch: FolderWatch,
        training: TrainingCommand | None,
        *,
        watching: bool = False,
        workers: int | None = None,
        progress: bool = True,
        judged: Callable[[Path], str | None] | None = None,
    ) -> None:
        """``judged`` is called with the run when a user's clicks have decided; it returns the verdict in words."""
        super().__init__(lambda job: self._keep())
        self.judged = judged
        self.run, self._watch, self._training = run, watch, training
        self._watching, self._workers, self._show = watching, workers, progress
        self._state: State = "off" if training is None else "waiting"
        self._words = ""
        self._process: TrainingProcess | None = None
        self._requested = False
        self._told: str | None = None  # the verdict that the terminal knows
        self._seen = SeenImages.read(run)
        self._listed: Ids = np.zeros(0, np.int64)  # the train images of the folder
        self._bar = TrainingBar(progress)

    def attach(self, features: FeatureSets) -> None:
        """Keep these sets up to date, and decide which is the default."""
        self._features = features
        features.prefer = self.preferred
        if self._training is not None and self._is_finished():
            self._state = "indexing"

    # --- what the page asks ---------------------------------------------------------------------------------------

    def verdict(self) -> schemas.VerdictResponse | None:
        """Return whether training helped; None if that is not known yet."""
        found = read_verdict(self.run)
        if found is None:
            return None
        words = COMMAND.sub(".", found.words)
        return schemas.VerdictResponse(verdict=found.verdict, by=found.by, kept=found.kept, words=words)

    def preferred(self) -> str:
        """Return the features that are the default: those after training only if they are known to be better."""
        found = read_verdict(self.run)
        if found is None or (found.verdict == "cannot tell" and not found.chosen_by_user):
            return BEFORE
        return AFTER if found.kept == "trained" else BEFORE

    def training(self) -> schemas.Training:
        """Return how far the training is."""
        state, process = self._state, self._process
        facts = (read_progress(self.run / "progress.json") or {}) if state == "running" else {}
        if process is not None and facts.get("updated", 0) < process.began:
            facts = {}  # of a former training
        numbers = {name: facts.get(name) for name in ("seconds_left", "images_per_second", "loss")}
        return schemas.Training(
            state=state,
            words=self._describe(state, facts),
            phase=facts.get("phase"),
            step=int(facts.get("step") or 0),
            total=int(facts.get("total") or 0),
            new_images=self._new_images(),
            can_start=self._can_start(state),
            **numbers,
        )

    def _new_images(self) -> int:
        """Return how many images of the folder training has not seen."""
        return 0 if self._seen is None else int((~np.isin(self._listed, self._seen.ids)).sum())

    def _can_start(self, state: State) -> bool:
        if self._training is None or self._requested:
            return False
        return state in ("failed", "stopped") or (state == "done" and self._new_images() > 0)

    def request_training(self) -> schemas.Training:
        """Start the training, or continue it; raise 409 if it runs or there is nothing to train."""
        now = self.training()
        if not now.can_start:
            raise HTTPException(409, f"Training cannot be started now: {now.words}")
        self._requested = True
        return self.training()

    def _describe(self, state: State, facts: Mapping[str, Any]) -> str:
        if state == "waiting":
            return "Training begins as soon as the folder is indexed."
        if state == "indexing":
            return "Training is done. Its features are being added."
        if state == "done":
            return "Training is done."
        if state == "failed":
            return f"Training failed. {self._words}"
        if state == "stopped":
            return "Training was stopped. It continues where it was."
        if state == "off":
            return "Nothing is trained."
        if not facts:
            return self._words or "Training begins: a few steps are timed first."
        return f"Training: {facts.get('words') or facts.get('phase')}"

    # --- the work -------------------------------------------------------------------------------------------------

    def stop(self, seconds: float) -> bool:
        """End the work; a training saves what it has learned first, however long its step takes."""
        process = self._process
        if process is not None and process.ended() is None:
            self._stop.set()
            console.print("Saving the training…")
            process.stop(SAVE_SECONDS)
        return super().stop(seconds)

    def _keep(self) -> None:
        self._offer_known()
        while not self._refresh():
            if self.pause(max(TICK, self._watch.wait())):
                return
        if self._training is None or self._is_finished():
            self._add_trained()
        else:
            console.print("The folder can be searched. Training goes on in the background.")
            self._requested = True
        while not self.pause(TICK):
            if self._process is not None:
                self._follow(self._process)
            elif self._requested:
                self._start()
            if self._watching and self._watch.wait() == 0:
                self._refresh()
                self._start_with_many_new()
            self._tell_verdict()
        self._bar.hide()

    def _offer_known(self) -> None:
        """Offer features after training that are there from a former time, unless the index is far from whole."""
        place, names = self._place(AFTER), self._features.names()
        if AFTER in names or not index_exists(place):
            return
        index = open_index(place)
        if 0 < len(self._features.get(BEFORE).index) <= len(index):
            self._features.put(AFTER, FeatureSet(index, TorchEmbedder.load(index.encoder_folder())))

    def _refresh(self) -> bool:
        """Bring all indexes up to date with the folder, if it changed; return whether it can be searched now."""
        try:
            change = self._watch.look()
            if change:
                unreadable: set[str] = set()
                for name in self._features.names():
                    update = self._update(name, self._features.get(name), change)
                    if update.stopped:
                        return False
                    unreadable.update(path for path, _ in update.skipped)
                self._watch.take(change, unreadable)
                self._listed = train_ids(change.source)
        except FineSightError as error:
            words = f"{' '.join(str(error).split())} The index is left as it is."
            if words != self.problem:
                log.error("The index could not be brought up to date: %s", words)
            self.problem = words
            return False
        finally:
            self.progress = None
        self.problem = None
        return bool(self._watch.known)

    def _update(self, name: str, features: FeatureSet, change: Change, where: Path | None = None) -> IndexUpdate:
        """Update one index."""
        return bring_up_to_date(
            self,
            where or self._place(name),
            features.embedder,
            change.source,
            self.run,
            workers=self._workers,
            progress=self._show and self._process is None,
            leave=change.unsettled if self._watching else (),
            retry=change.is_retry,
        )

    def _place(self, name: str) -> Path:
        return self.run / FROZEN / RUN_INDEX if name == BEFORE else self.run / RUN_INDEX

    # --- training -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the training; one that is done goes on with the new images."""
        assert self._training is not None
        more = self._is_finished()
        self._state = "running"
        try:
            acquire(self.run / ".lock").close()
        except Busy:
            self._words = ANOTHER
            return  # until it has ended
        self._requested, self._words = False, ""
        self._in_training = SeenImages(self._listed)
        request = {**self._training.request, "more": more}
        self._process = TrainingProcess(self._training.command, request, self.run / "training.log")

    def _start_with_many_new(self) -> None:
        """Continue a training that is done if a tenth of the images is new."""
        if self._seen is not None and self._can_start(self._state) and self._state == "done":
            self._requested = self._new_images() >= A_TENTH * len(self._seen.ids)

    def _follow(self, process: TrainingProcess) -> None:
        code = process.ended()
        if code is None:
            self._bar.show(self.training())
            return
        self._bar.hide()
        self._process = None
        if code == 0:
            self._seen = self._in_training
            self._seen.write(self.run)
            self._add_trained()
        elif code in ENDED_BY_SIGNAL:
            self._state = "stopped"
        else:
            self._state, self._words = "failed", process.problem()
            log.error("Training failed: %s", self._words)

    def _trained(self) -> Path | None:
        """Return the folder of the trained encoder, if there is one."""
        folder = trained_encoder(RunFolder(self.run))
        facts = read_progress(folder / CONFIG)
        return None if facts is None or facts.get("method") == "frozen" else folder

    def _is_finished(self) -> bool:
        """Return whether there is nothing left to do for a training: runs of a former version have no verdict."""
        judged = read_verdict(self.run) is not None or BEFORE not in self._features.names()
        run = RunFolder(self.run)
        return self._trained() is not None and run.is_finished and judged and run.report.exists()

    def _add_trained(self) -> None:
        """Index the folder with the trained encoder, and offer its features."""
        folder = self._trained()
        known = self._features.get(AFTER).fingerprint if AFTER in self._features.names() else None
        if folder is not None and self._seen is None:  # trained by another command, a moment ago for all we know
            self._seen = SeenImages(self._listed)
        if folder is None or fingerprint(folder) == known:
            self._state = "off" if folder is None else "done"
            return
        self._state = "indexing"
        embedder = TorchEmbedder.load(folder)
        where, place = self._place(AFTER), self._place(AFTER)
        if index_exists(place) and open_index(place).meta.fingerprint != embedder.fingerprint:
            where = self.run / NEXT_INDEX
            if index_exists(where) and open_index(where).meta.fingerprint != embedder.fingerprint:
                shutil.rmtree(where)
        try:
            change = self._watch.look()
            index = open_or_create(where, embedder, folder, change.source.root)
            if self._update(AFTER, FeatureSet(index, embedder), change, where).stopped:
                return
            index.close()
        except FineSightError as error:
            self._state, self._words = "failed", f"Its features cannot be added: {' '.join(str(error).split())}"
            log.error("The features of the training could not be added: %s", error)
            return
        finally:
            self.progress = None
        if where != place:
            shutil.rmtree(place)
            os.rename(where, place)
        self._features.put(AFTER, FeatureSet(open_index(place), embedder))
        self._state = "done"

    def _tell_verdict(self) -> None:
        verdict = read_verdict(self.run)
        words = None if verdict is None or AFTER not in self._features.names() else verdict.words
        if words is not None and words != self._told:
            console.print(words, markup=False)
        self._told = words
