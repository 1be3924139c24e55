"""A Milvus Lite file that version 0.1 wrote, before servers got one collection for each space, is read and written."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from finesight.search.engines import open_index
from indexes import SPACES, batch, contents, item, meta, units

pytestmark = pytest.mark.slow

SAVED = Path(__file__).parent / "v0.1" / "gallery.db"  # items 1, 3, 4 and 5 of ``units(5)``; 2 was removed


def test_an_old_file_is_searched_and_changed(tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    shutil.copytree(SAVED, tmp_path / "gallery.db")
    index, vectors = open_index(tmp_path / "gallery.db"), units(5)
    assert index.meta == meta()
    assert index.list_items().ids.tolist() == [1, 3, 4, 5]
    assert index.search(vectors[2:3], 1, SPACES[0])[1].tolist() == [[3]]
    assert np.array_equal(index.vectors(np.array([5]), SPACES[1])[0], vectors[4, ::-1])
    index.add(batch([2], vectors[1:2]))
    index.finish()
    assert sorted(contents(index)) == [item(number).path for number in range(1, 6)]
    assert index.facts()["kind"] == "exact"
    index.close()
