"""Errors that are the user's to fix: the command line prints their message, never a trace."""

import difflib
from collections.abc import Iterable


class FineSightError(Exception):
    """Something in the input, in the options or on the machine is wrong; the message says what it is and what to do."""


def unknown(kind: str, name: str, known: Iterable[str]) -> FineSightError:
    """Return the error for an unknown name; it suggests the nearest known names, or all if none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names
    return FineSightError(f"There is no {kind} {name!r}. Nearest: {', '.join(near)}.")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or the error's type if it says nothing."""
    return message_lines(error)[0]


def last_line(error: BaseException) -> str:
    """Return the last line of what an error says, which names the cause where the error brings a trace along."""
    return message_lines(error)[-1]


def message_lines(error: BaseException) -> list[str]:
    """Return the lines of an error's message that are not empty, or the error's type."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


class SkipImage(Exception):
    """One file that cannot be used; the message is the reason that goes into ``skipped.csv``."""


class Interrupted(Exception):
    """The user stopped the run (Ctrl-C, SIGTERM); everything is saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # as a shell reports a process ended by that signal
