"""Real files and places shared by the data tests."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from real_birds import cub_root


@pytest.fixture(scope="session", name="cub_root")
def _cub_root() -> Path:
    return cub_root()


@pytest.fixture
def no_access(tmp_path: Path) -> Callable[[Path], object]:
    """``with no_access(path):`` nobody may read or write it, not even root, who is another user meanwhile."""

    @contextmanager
    def denied(path: Path) -> Iterator[None]:
        mode = path.stat().st_mode
        for parent in tmp_path.parents:
            if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
                parent.chmod(0o711)
        tmp_path.chmod(0o755)
        path.chmod(0o000)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield
        finally:
            if root:
                os.seteuid(0)
            path.chmod(mode)

    return denied
