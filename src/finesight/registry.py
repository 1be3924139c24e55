"""Named pieces that describe themselves: methods, datasets, poolings, metrics, index engines.

A piece registers itself with a decorator in its own file. Built-in pieces are the modules of a package; pieces of other
distributions are found through entry points. Nothing else in the tree lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from finesight.errors import FineSightError, unknown

T = TypeVar("T")
P = TypeVar("P")


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping from names to pieces of one kind, filled when it is first read.

    Parameters
    ----------
    kind
        What a piece is called in error messages: "method", "dataset".
    packages
        Packages whose modules register the built-in pieces.
    group
        Entry-point group of pieces from other distributions. Each entry point names a module; importing it must
        register its pieces.
    order
        Sort key of a piece. Pieces with equal keys, and all pieces without an ``order``, come as they were registered:
        modules by name, plug-ins last.
    """

    def __init__(
        self,
        kind: str,
        packages: Sequence[str] = (),
        group: str | None = None,
        order: Callable[[T], Any] | None = None,
    ) -> None:
        self.kind, self.packages, self.group, self.order = kind, tuple(packages), group, order
        self._pieces: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str, piece: T) -> T:
        """Add ``piece`` under ``name`` and return it.

        Raises
        ------
        FineSightError
            If another piece has the name already.
        """
        before = self._pieces.get(name)
        if before is not None and before is not piece:
            raise FineSightError(f"Two {self.kind}s are called {name!r}: {before!r} and {piece!r}.")
        self._pieces[name] = piece
        return piece

    def decorator(self, name: str) -> Callable[[P], P]:
        """Return a decorator that registers what it decorates, for registries of classes."""

        def add(piece: P) -> P:
            self.register(name, piece)  # type: ignore[arg-type]
            return piece

        return add

    def find(self, name: str) -> T:
        """Return the piece of that name.

        Raises
        ------
        FineSightError
            If there is none; the message suggests the nearest names.
        """
        self._load()
        if name not in self._pieces:
            raise unknown(self.kind, name, self._pieces)
        return self._pieces[name]

    def __getitem__(self, name: str) -> T:
        self._load()
        return self._pieces[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._pieces)

    def __len__(self) -> int:
        self._load()
        return len(self._pieces)

    def _load(self) -> None:
        """Import the modules that register the pieces, once."""
        if self._loaded:
            return
        self._loaded = True  # first: a module may read the registry while it is imported
        for name in self.packages:
            package = importlib.import_module(name)
            for module in pkgutil.iter_modules(package.__path__, f"{name}."):
                importlib.import_module(module.name)
        for entry in entry_points(group=self.group) if self.group else ():
            try:
                entry.load()
            except Exception as error:  # a plug-in may fail in any way, and must not take every command with it
                print(f"finesight: the {self.kind} plug-in {entry.name!r} is left out: {error!r}", file=sys.stderr)
        if (order := self.order) is not None:
            self._pieces = dict(sorted(self._pieces.items(), key=lambda item: order(item[1])))
