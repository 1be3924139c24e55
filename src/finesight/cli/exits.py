"""How a command ends when it cannot go on. Importing this loads nothing heavy."""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from finesight.errors import FineSightError, Interrupted
from finesight.io.terminal import safe_text

# What the system says of its disk, and what to do then.
DISK = {
    errno.ENOSPC: "Make room and run the command again.",
    errno.EDQUOT: "Make room and run the command again.",
    errno.EROFS: "Choose another place.",
    errno.EIO: "The disk may be failing.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENFILE: "Close other programs.",
}
# How PyTorch, the linker and Python say that there is no memory.
NO_MEMORY = (
    *("can't allocate memory", "out of memory", "std::bad_alloc", "can't start new thread", "Cannot allocate memory"),
    *("failed to map segment", "cannot allocate memory"),
)
# How oneDNN says so, which may mean other things, too. Python's own parts raise SystemError.
UNDER_A_LIMIT = "could not create a primitive"

# What finesight-onnx leaves out; the module that is missing, and the package that brings it.
WITH_TORCH = ("torch", "timm", "lightning", "safetensors", "tensorboard", "matplotlib", "onnx")
OTHERS = {"pyarrow": "pyarrow", "sklearn": "scikit-learn", "pymilvus": "finesight[milvus]", "ray": "finesight[ray]"}


@contextmanager
def exit_with_message() -> Iterator[None]:
    """End the process with one message and no trace: code 2 for an error that is the user's to fix."""
    try:
        yield
    except FineSightError as error:
        print(safe_text(f"finesight: {error}"), file=sys.stderr)
        raise SystemExit(2) from None
    except Interrupted as stop:
        print(safe_text(f"finesight: {stop}"), file=sys.stderr)
        raise SystemExit(stop.exit_code) from None
    except (OSError, MemoryError, RuntimeError, ImportError, SystemError) as error:
        sentence = machine_trouble(error) or missing_package(error)
        if sentence is None:
            raise
        print(f"finesight: {sentence}", file=sys.stderr)
        raise SystemExit(2) from None


def machine_trouble(error: Exception) -> str | None:
    """Return a sentence if the machine is at fault: its disk is full or broken, or its memory ends. Else None."""
    if _is_out_of_memory(error):
        return (
            "There is not enough memory. Close other programs, raise the limit, or use a smaller --batch-size, "
            "--resolution or --workers. What was saved before is kept."
        )
    if isinstance(error, OSError) and error.errno in DISK:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}. {DISK[error.errno]} What was saved before is kept."
    return None


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        return True
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return limited and (isinstance(error, SystemError) or UNDER_A_LIMIT in str(error))


def missing_package(error: Exception) -> str | None:
    """Return a sentence if a package is missing that an installation may leave out. Else None."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    name = (error.name or "").partition(".")[0]
    if name in WITH_TORCH:
        return (
            f"This command needs {name}, which is not installed. `pip uninstall finesight-onnx`, then "
            "`pip install finesight`; finesight-onnx alone indexes, searches and serves with an exported encoder."
        )
    return f"This needs {name}, which is not installed: `pip install {OTHERS[name]}`." if name in OTHERS else None
