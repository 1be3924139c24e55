"""How every figure looks, and how it becomes PNG bytes. No pyplot: a training process can draw while it runs."""

import io
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
from matplotlib.figure import Figure

P = ParamSpec("P")

INK, FAINT, ACCENT, QUIET = "#22262b", "#6b727b", "#1f6feb", "#b9c2cd"

STYLE: Any = {
    "figure.dpi": 144,
    "text.usetex": False,
    "text.parse_math": False,  # a "$" in a file name is a dollar sign, not the start of a formula
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": FAINT,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "grid.color": "#e8ebef",
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
}


def drawn(draw: Callable[P, Figure]) -> Callable[P, bytes]:
    """Let a function that returns a figure return PNG bytes, in one style whatever the user's matplotlibrc says."""

    @wraps(draw)
    def encoded(*args: P.args, **kwargs: P.kwargs) -> bytes:
        buffer = io.BytesIO()
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in any script are no error
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(STYLE)
            draw(*args, **kwargs).savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()

    return encoded


def blank(message: str) -> Figure:
    """Return a figure with a sentence, for where there is nothing to draw."""
    figure = Figure(figsize=(5, 0.8))
    figure.text(0.5, 0.5, message, ha="center", va="center", color=FAINT)
    return figure


def short(text: str, length: int) -> str:
    """Return one printable line, cut in the middle if it is too long, as names differ at their ends."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    half = (length - 1) // 2
    return line if len(line) <= length else f"{line[: length - 1 - half]}…{line[-half:]}"
