"""A small CUB-200-2011 and, once for all tests that only read it, finished experiments on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny

from finesight.paper.benchmark import Benchmark


@contextmanager
def without_programs() -> Iterator[None]:
    """A result names the commit it was made at; these tests do not ask the repository they lie in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_git() -> Iterator[None]:
    with without_programs():
        yield


@pytest.fixture(scope="session")
def cub(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 12 train and 6 test images. Not to be written to."""
    return tiny.draw_cub(tmp_path_factory.mktemp("data") / "CUB_200_2011", birds)


@pytest.fixture(scope="session")
def done(cub: Path, tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """Every row of one seed. Not to be written to."""
    job = tiny.bench(cub, tmp_path_factory.mktemp("bench"))
    with without_programs():  # fixtures of a session come before those of a module
        tiny.run(job)
    return job
