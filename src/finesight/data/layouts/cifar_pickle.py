"""Read the pickles of CIFAR-100 without running what a pickle may ask for.

A pickle is a program. The standard library's reader is limited here to the opcodes of those files and to four names,
which stand for functions of this module. It reads from memory, so that sizes the file claims allocate nothing. It is
the one written in Python: the other one allocates as much as the largest memo number, which the file chooses.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from finesight.data.layouts.layout import COPY_AGAIN, damaged
from finesight.errors import FineSightError

MAX_BYTES = 1 << 30  # the largest of the official files has 155 MB
_OPCODES = b"\x80\x95(}]t\x8aaesuqr\x94hjc\x93RbKMJN\x88\x89UTCB\x8cX)\x85\x86\x87."


class _Refused(Exception):
    """The pickle asks for something that no file of CIFAR-100 needs."""


class _Array:
    """An array of bytes, empty until the pickle hands over its state."""

    values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_columns, data = state
        if not isinstance(dtype, _Uint8) or not isinstance(data, bytes):
            raise _Refused("an array of other values than uint8")
        if len(shape) > 4 or not all(type(side) is int and 0 <= side <= MAX_BYTES for side in shape):
            raise ValueError("an array has an impossible shape")
        if math.prod(shape) != len(data):
            raise ValueError(f"an array of {' x '.join(map(str, shape))} has {len(data):,} bytes")
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Uint8:
    """The dtype of all arrays."""

    def __setstate__(self, state: object) -> None:
        """Ignore the state: it says nothing more about bytes."""


class _Unpickler(pickle._Unpickler):
    """The standard library's reader with a list of allowed opcodes and of allowed names."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.encodable = len(data)  # characters: the same text, encoded again and again, would fill the memory

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        allowed: dict[str, Callable[..., Any]] = {
            "numpy.core.multiarray._reconstruct": lambda *_: _Array(),
            "numpy._core.multiarray._reconstruct": lambda *_: _Array(),  # from NumPy 2 on
            "numpy.ndarray": _refuse,  # an argument of _reconstruct, never called
            "numpy.dtype": _dtype,
            "_codecs.encode": self._encode,  # how Python 3 writes bytes in the protocols of Python 2
        }
        if f"{module}.{name}" not in allowed:
            raise _Refused(ascii(f"{module}.{name}"[:80])[1:-1])
        return allowed[f"{module}.{name}"]

    def _encode(self, text: str, encoding: str | bytes) -> bytes:
        self.encodable -= len(text)
        if encoding not in ("latin1", b"latin1") or self.encodable < 0:
            raise _Refused("_codecs.encode for something else than the bytes of an array")
        return text.encode("latin-1")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict.fromkeys(range(256), lambda reader: _refuse())
    dispatch |= {code: pickle._Unpickler.dispatch[code] for code in _OPCODES}
    dispatch |= {  # to hash a nested tuple may take for ever; a state could change an object of the reader
        ord("s"): lambda reader: _checked(reader, "s", reader.stack[-2:-1], (str, bytes)),
        ord("u"): lambda reader: _checked(reader, "u", reader.stack[::2], (str, bytes)),
        ord("b"): lambda reader: _checked(reader, "b", reader.stack[-2:-1], (_Array, _Uint8)),
    }


def _checked(reader: Any, code: str, values: list[Any], types: tuple[type, ...]) -> None:
    """Run an opcode if the values it works on have one of these types."""
    if not all(isinstance(value, types) for value in values):
        _refuse()
    pickle._Unpickler.dispatch[ord(code)](reader)


def _refuse(*_: object) -> None:
    raise _Refused("a step of a pickle that is not allowed")


def _dtype(name: str | bytes, *_: object) -> _Uint8:
    if name not in ("u1", b"u1", "|u1", b"|u1"):
        raise _Refused("numpy.dtype of other values than uint8")
    return _Uint8()


def read_pickle(file: Path) -> dict[str, Any]:
    """Return the dict in ``file``, of ints, bytes, str, lists and arrays of uint8; refuse anything else."""
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise FineSightError(f"{file} has {size:,} bytes, too many for a file of CIFAR-100; {COPY_AGAIN}")
    data = file.read_bytes()
    try:
        content = _Unpickler(data).load()
    except _Refused as refused:
        raise FineSightError(
            f"{file} asks for {refused} and was not opened: no file of CIFAR-100 needs that, and it could run a "
            f"program; {COPY_AGAIN} from a place you trust"
        ) from None
    except Exception as error:  # the reader raises nearly anything on bad bytes
        raise damaged(file, str(error) or type(error).__name__) from None
    if not isinstance(content, dict):
        raise damaged(file, "it holds no dict")
    return {_text(key): value.values if isinstance(value, _Array) else value for key, value in content.items()}


def _text(key: str | bytes) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else key
