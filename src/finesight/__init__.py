"""FineSight: learn, without labels, features that tell look-alike images apart.

Examples:
    >>> encoder = finesight.load("runs/birds")
    >>> features = encoder.embed(["one.jpg", "two.jpg"])
    >>> masks = encoder.attend(["one.jpg", "two.jpg"])
    >>> answer = finesight.open_index("runs/birds").by_picture("one.jpg", k=5)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from finesight.version import __version__

if TYPE_CHECKING:
    from finesight.api import clean, compare, evaluate, judge, load, open_run, train, verdict
    from finesight.errors import FineSightError
    from finesight.explain.explainer import Explainer
    from finesight.features.encoder import Encoder
    from finesight.features.reading import read_features
    from finesight.search.run_index import index_images
    from finesight.search.searcher import open_index, search_images
    from finesight.training.config import RuntimeConfig

__all__ = [
    "Encoder",
    "Explainer",
    "FineSightError",
    "RuntimeConfig",
    "__version__",
    "clean",
    "compare",
    "evaluate",
    "index_images",
    "judge",
    "load",
    "open_index",
    "open_run",
    "read_features",
    "search_images",
    "train",
    "verdict",
]

_HOMES = {
    "Encoder": "finesight.features.encoder",
    "Explainer": "finesight.explain.explainer",
    "FineSightError": "finesight.errors",
    "RuntimeConfig": "finesight.training.config",
    "clean": "finesight.api",
    "compare": "finesight.api",
    "evaluate": "finesight.api",
    "index_images": "finesight.search.run_index",
    "judge": "finesight.api",
    "load": "finesight.api",
    "open_index": "finesight.search.searcher",
    "open_run": "finesight.api",
    "read_features": "finesight.features.reading",
    "search_images": "finesight.search.searcher",
    "train": "finesight.api",
    "verdict": "finesight.api",
}


def __getattr__(name: str) -> Any:
    """Names are imported when first used: importing finesight does not import torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'finesight' has no attribute {name!r}")
