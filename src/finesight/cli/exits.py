"""How a command ends when it cannot go on. Importing this loads nothing heavy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from finesight.errors import FineSightError, Interrupted


@contextmanager
def exit_with_message() -> Iterator[None]:
    """End the process with one message and no trace: code 2 for an error that is the user's to fix."""
    try:
        yield
    except FineSightError as error:
        print(f"finesight: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Interrupted as stop:
        print(f"finesight: {stop}", file=sys.stderr)
        raise SystemExit(stop.exit_code) from None
