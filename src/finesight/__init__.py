"""FineSight: learn, without labels, features that tell look-alike images apart.

>>> encoder = finesight.load("runs/birds")
>>> features = encoder.embed(["one.jpg", "two.jpg"])
>>> masks = encoder.attend(["one.jpg", "two.jpg"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finesight.api import evaluate, load, train
    from finesight.encoder import Encoder
    from finesight.errors import FineSightError

__version__ = "0.1.0"
__all__ = ["Encoder", "FineSightError", "__version__", "evaluate", "load", "train"]

_HOMES = {
    "Encoder": "finesight.encoder",
    "FineSightError": "finesight.errors",
    "evaluate": "finesight.api",
    "load": "finesight.api",
    "train": "finesight.api",
}


def __getattr__(name: str) -> Any:
    """Names are imported when first used: importing finesight does not import torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'finesight' has no attribute {name!r}")
