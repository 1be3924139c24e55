"""Which images a training has seen, so that the page can say how many are new."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finesight.data.sources import ImageSource
from finesight.io.atomic import atomic_path
from finesight.search.base import Ids
from finesight.search.image_files import path_id

FILE = "trained-on.npz"  # of a run


@dataclass(frozen=True, eq=False)
class SeenImages:
    """The images of a finished training, by the ids that an index gives them."""

    ids: Ids

    def write(self, run: Path) -> None:
        with atomic_path(run / FILE) as scratch:
            np.savez(scratch, ids=self.ids)

    @classmethod
    def read(cls, run: Path) -> SeenImages | None:
        """Return what is stored with a run; None if nothing is, or it is damaged."""
        try:
            with np.load(run / FILE, allow_pickle=False) as content:
                return cls(content["ids"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None


def train_ids(source: ImageSource) -> Ids:
    """Return the ids of the images that are trained on."""
    return np.array([path_id(path) for path in source.split("train").paths.tolist()], np.int64)
