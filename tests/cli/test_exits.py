"""How commands end when the machine fails them."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from finesight.cli.exits import exit_with_message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"), "No space left on device (/data/x). Make room"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "Read-only file system. Choose another place"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "ulimit -n"),
        (MemoryError(), "not enough memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "not enough memory",
        ),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "not enough memory"),
    ],
    ids=str,
)
def test_trouble_of_the_machine_is_one_sentence(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, exit_with_message():
        raise error
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("finesight: ")
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "error", [SystemError("error return without exception set"), RuntimeError("could not create a primitive")]
)
def test_a_function_in_c_that_gets_no_memory_may_not_say_so(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**45, before[1]))
    try:
        with pytest.raises(SystemExit), exit_with_message():
            raise error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "not enough memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "No such file"),
        RuntimeError("a bug"),
        ImportError("no x"),
        SystemError("no limit of memory"),
        RuntimeError("could not create a primitive"),
    ],
)
def test_a_mistake_of_the_program_is_shown_as_one(error: Exception) -> None:
    with pytest.raises(type(error)), exit_with_message():
        raise error
