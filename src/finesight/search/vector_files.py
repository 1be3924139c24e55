"""Keep the vectors of a folder index in files that grow by rows: one for each space, of one generation at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.search.base import Ids, IndexMeta
from finesight.search.item_store import ANEW, State
from finesight.search.structures import BLOCK


class VectorFiles:
    """The files ``vectors-G/SPACE.f32`` in the folder of an index; G is the generation."""

    def __init__(self, folder: Path, meta: IndexMeta) -> None:
        self.folder, self.meta = folder, meta

    def map(self, state: State, space: str) -> Floats:
        """Map the rows of a space, (rows, D): they are never in memory as a whole."""
        if not state.rows:
            return np.zeros((0, self.meta.width(space)), np.float32)
        file = self._file(state.generation, space)
        self._require_rows(file, state, space)
        return np.memmap(file, np.float32, "r", shape=(state.rows, self.meta.width(space)))

    def append(self, state: State, vectors: Mapping[str, Floats]) -> None:
        """Write rows behind those of the state, to the disk."""
        for space in self.meta.spaces:
            with open(self._file(state.generation, space), "r+b") as file:
                file.seek(state.rows * self._row_bytes(space))
                file.write(np.ascontiguousarray(vectors[space], np.float32).data)
                _sync(file)

    def cut_off(self, state: State) -> None:
        """Make the files if they are not there, and cut off what a writer that was killed left behind the last row."""
        (self.folder / f"vectors-{state.generation}").mkdir(exist_ok=True)
        for space in self.meta.spaces:
            with open(self._file(state.generation, space), "ab") as file:
                self._require_rows(Path(file.name), state, space)
                file.truncate(state.rows * self._row_bytes(space))

    def copy(self, vectors: Mapping[str, Floats], rows: Ids, generation: int) -> None:
        """Write these rows of ``vectors`` to the files of another generation."""
        (self.folder / f"vectors-{generation}").mkdir(exist_ok=True)
        for space in self.meta.spaces:
            with open(self._file(generation, space), "wb") as file:
                for start in range(0, len(rows), BLOCK):
                    file.write(np.ascontiguousarray(vectors[space][rows[start : start + BLOCK]]).data)
                _sync(file)

    def _require_rows(self, file: Path, state: State, space: str) -> None:
        if file.stat().st_size < state.rows * self._row_bytes(space):
            raise FineSightError(f"The index in {self.folder} is damaged: {file.name} is too short. {ANEW}")

    def _file(self, generation: int, space: str) -> Path:
        return self.folder / f"vectors-{generation}" / f"{space}.f32"

    def _row_bytes(self, space: str) -> int:
        return 4 * self.meta.width(space)


def _sync(file: IO[bytes]) -> None:
    """Put the data on the disk, so that a commit never names rows that a power cut took."""
    file.flush()
    os.fsync(file.fileno())
