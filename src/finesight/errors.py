"""Errors that are the user's to fix: the command line prints their message, never a trace."""


class FineSightError(Exception):
    """Something in the input, the options or the machine; the message says what was found and what to do."""


class SkipImage(Exception):
    """One file that cannot be used; the message is the reason that goes into ``skipped.csv``."""


class Interrupted(Exception):
    """The user stopped the run (Ctrl-C, SIGTERM); everything is saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # as a shell reports a process ended by that signal
