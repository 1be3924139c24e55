"""Errors that are the user's to fix: the command line prints their message, never a trace."""


class FineSightError(Exception):
    """Something in the input, the options or the machine; the message says what was found and what to do."""


class SkipImage(Exception):
    """One file that cannot be used; the message is the reason that goes into ``skipped.csv``."""
