"""Engines that keep an index: a folder, Milvus, or one that another distribution brings.

An engine is a class that describes itself and knows the class of its indexes. Its file imports nothing heavy at its
top, because the help texts of the command line come from the engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from finesight.registry import Registry

if TYPE_CHECKING:
    from finesight.search.base import Index, IndexMeta

DEFAULT_ENGINE = "faiss"  # opens every URI that no other engine matches


class IndexEngine(ABC):
    """A way to keep an index. Subclasses register themselves with ``@INDEX_ENGINES.decorator(NAME)``.

    ``new_forms`` and ``forms`` are words for help texts: what a URI of a new index looks like, and of one that exists.
    """

    new_forms: ClassVar[tuple[str, ...]]
    forms: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def matches(cls, uri: str) -> bool:
        """Return whether ``uri`` belongs to this engine. Touches neither disk nor network."""

    @classmethod
    @abstractmethod
    def index_class(cls) -> type[Index]:
        """Import and return the class whose ``open``, ``create`` and ``exists`` take the URIs of this engine."""


INDEX_ENGINES: Registry[type[IndexEngine]] = Registry(
    "index engine", packages=("finesight.search.engines",), group="finesight.indexes"
)


def find_engine(uri: str | Path) -> type[IndexEngine]:
    """Return the engine that ``uri`` belongs to."""
    others = (engine for name, engine in sorted(INDEX_ENGINES.items()) if name != DEFAULT_ENGINE)
    return next((engine for engine in others if engine.matches(str(uri))), INDEX_ENGINES[DEFAULT_ENGINE])


def open_index(uri: str | Path) -> Index:
    """Open the index at ``uri``, or of the run at ``uri``; raise ``FineSightError`` if there is none."""
    return find_engine(uri).index_class().open(str(uri))


def create_index(uri: str | Path, meta: IndexMeta, encoder: Path) -> Index:
    """Make an empty index at ``uri`` for an encoder: its folder, or its exported file."""
    return find_engine(uri).index_class().create(str(uri), meta, encoder)


def index_exists(uri: str | Path) -> bool:
    """Return whether there is an index at ``uri`` itself."""
    return find_engine(uri).index_class().exists(str(uri))


def uri_help(*, new: bool = False) -> str:
    """Return what a user may give as the URI of an index, for help texts: "A folder, toy://NAME, or FILE.db."."""
    engines = sorted(INDEX_ENGINES, key=lambda name: (name != DEFAULT_ENGINE, name))
    forms = [form for name in engines for form in (INDEX_ENGINES[name].new_forms if new else INDEX_ENGINES[name].forms)]
    text = f"{', '.join(forms[:-1])}, or {forms[-1]}."
    return text[0].upper() + text[1:]
