"""Judge the features before training against those after it, from the indexes that a server has of both."""

from __future__ import annotations

import numpy as np
from fastapi import HTTPException

from finesight.errors import FineSightError
from finesight.evaluation.judging import FROZEN, TRAINED, Judging, nearest_images, sample_paths
from finesight.evaluation.judgments import NAME, Candidate
from finesight.search.base import Index
from finesight.server.config import ServerConfig
from finesight.server.feature_sets import AFTER, BEFORE, FeatureSets
from finesight.server.job import TrainingJob
from finesight.server.judge_desk import JudgeDesk


class JudgedSets:
    """Find the desk of a server: made when it is first asked for, and anew when one of the sets is another."""

    def __init__(self, features: FeatureSets, upkeep: TrainingJob | None, config: ServerConfig) -> None:
        self._features, self._upkeep, self._config = features, upkeep, config
        self._made: tuple[tuple[str, str], JudgeDesk] | None = None

    def find(self) -> JudgeDesk:
        """Return the desk, or raise 404 while there is only one set of features."""
        if self._upkeep is None or not {BEFORE, AFTER} <= set(self._features.names()):
            raise HTTPException(404, "There is nothing to judge here: features before and after training are needed.")
        indexes = self._features.get(BEFORE).index, self._features.get(AFTER).index
        key = indexes[0].meta.fingerprint, indexes[1].meta.fingerprint
        made = self._made
        if made is None or made[0] != key:
            try:
                made = key, self._make(*indexes, self._upkeep)
            except FineSightError as error:  # too few images, or a file that cannot be read
                raise HTTPException(404, str(error)) from None
            self._made = made
        return made[1]

    def _make(self, before: Index, after: Index, upkeep: TrainingJob) -> JudgeDesk:
        listed = []
        for index in (before, after):
            items = index.list_items()
            listed.append(dict(zip(items.paths.tolist(), items.ids.tolist(), strict=True)))
        common = sorted(listed[0].keys() & listed[1].keys())
        paths = [common[i] for i in sample_paths(common)]
        if len(paths) < 3:
            raise FineSightError("There are too few pictures to judge: at least 3 are needed.")
        spaces = before.meta.spaces[0], after.meta.spaces[0]
        a, b = (
            nearest_images(index.vectors(np.array([ids[path] for path in paths], np.int64), space))
            for index, ids, space in zip((before, after), listed, spaces, strict=True)
        )
        judging = Judging(
            Candidate(FROZEN, before.meta.fingerprint, spaces[0]),
            Candidate(TRAINED, after.meta.fingerprint, spaces[1]),
            (a, b),
            paths,
            data=before.meta.root,
            file=upkeep.run / NAME,
        )
        judged = upkeep.judged
        on_end = None if judged is None else lambda decision: judged(upkeep.run)
        return JudgeDesk(judging, before.meta.root, self._config, on_end)
