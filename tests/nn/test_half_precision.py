"""A processor that forbids half precision is found in a child process, which may die without harm."""

import contextlib
import json
import sys
import time
from pathlib import Path

import pytest

from finesight.errors import FineSightError
from finesight.nn.half_precision import FILE, require_half_precision, uses_half_precision


def child(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path))
    return tmp_path


def test_a_child_that_dies_of_an_illegal_instruction_is_explained(folder: Path) -> None:
    dies = child("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    for _ in range(2):  # a death is not remembered: the machine may be mended
        with pytest.raises(FineSightError, match=r"signal 4 \(Illegal instruction\).*Use full precision"):
            require_half_precision(dies)
    assert not (folder / FILE).exists()


def test_a_child_that_fails_gives_its_reason(folder: Path) -> None:
    with pytest.raises(FineSightError, match=r"cannot compute in half precision .*no such kernel.*full precision"):
        require_half_precision(child("raise RuntimeError('no such kernel')"))
    with pytest.raises(FineSightError, match="no reason given"):
        require_half_precision(child("import sys; sys.exit(3)"))


def test_what_passed_is_not_tried_again(folder: Path) -> None:
    counting = child(f"open({str(folder / 'tries')!r}, 'a').write('x')")
    for _ in range(3):
        require_half_precision(counting)
    assert (folder / "tries").read_text() == "x"
    assert len(json.loads((folder / FILE).read_text())) == 1
    (folder / FILE).write_text("{")  # damaged: tried again, and written anew
    require_half_precision(counting)
    assert (folder / "tries").read_text() == "xx"
    with pytest.raises(FineSightError):
        require_half_precision(child("raise SystemExit(1)"))  # another trial is not the one that passed


def test_a_child_that_hangs_says_nothing(folder: Path) -> None:
    began = time.monotonic()
    require_half_precision(child("import time; time.sleep(60)"), seconds=0.5)
    assert time.monotonic() - began < 30
    assert not (folder / FILE).exists()


@pytest.mark.parametrize(
    ("precision", "tried"), [("auto", False), ("32", False), ("16", True), ("bf16", True)], ids=str
)
def test_only_half_precision_on_the_processor_is_tried(precision: str, tried: bool) -> None:
    assert uses_half_precision(precision, "cpu") is tried


def test_the_trial_itself_passes_or_is_explained(folder: Path) -> None:
    """Whatever this machine can do, this process survives it."""
    with contextlib.suppress(FineSightError):
        require_half_precision()
        assert len(json.loads((folder / FILE).read_text())) == 1
