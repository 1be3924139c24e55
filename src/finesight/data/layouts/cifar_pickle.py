"""The pickles of CIFAR-100, read without unpickling.

A pickle is a program, and Python's own reader runs it. This one knows only the steps those files are made of: numbers,
text, lists, dicts and arrays of bytes. It has nothing to call, so whatever else a file asks for cannot happen. It needs
memory and time in proportion to the file, whatever sizes that claims.
"""

from __future__ import annotations

import math
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.errors import FineSightError

MAX_BYTES = 1 << 30  # the largest of the official files has 155 MB
_ARRAY, _NEW_ARRAY, _DTYPE, _ENCODE = "numpy.ndarray", "new array", "numpy.dtype", "_codecs.encode"
_KNOWN = {
    "numpy.core.multiarray._reconstruct": _NEW_ARRAY,
    "numpy._core.multiarray._reconstruct": _NEW_ARRAY,  # from NumPy 2 on
    _ARRAY: _ARRAY,
    _DTYPE: _DTYPE,
    _ENCODE: _ENCODE,  # how Python 3 writes bytes in the protocols of Python 2
}
_CONSTANTS: dict[bytes, Any] = {b"N": None, b"\x88": True, b"\x89": False}
_NUMBERS = {b"K": "<B", b"M": "<H", b"J": "<i"}
_TEXTS = {  # the form of the length, and whether the text is Unicode
    b"U": ("<B", False),
    b"T": ("<i", False),
    b"C": ("<B", False),
    b"B": ("<I", False),
    b"\x8c": ("<B", True),
    b"X": ("<I", True),
}
_TUPLES = {b")": 0, b"\x85": 1, b"\x86": 2, b"\x87": 3}
_OPCODES = {code.code.encode("latin-1"): code.name for code in pickletools.opcodes}


class _Refused(Exception):
    """What the file asks for."""


class _Damaged(Exception):
    """What is wrong with it."""


class _Name:
    """A name of ``_KNOWN`` that the file has looked up."""

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning


class _Bytes:
    """The dtype ``uint8``: there is no other."""


class _Array:
    """An array, empty until its content follows."""

    values: NDArray[np.uint8] | None = None


def read_pickle(file: Path) -> dict[str, Any]:
    """The dict in ``file``, of ints, bytes, str, lists and arrays of uint8; anything else is refused."""
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise FineSightError(f"{file} has {size:,} bytes, too many for a file of CIFAR-100; copy the dataset again")
    try:
        content = _Reader(file.read_bytes()).run()
        if not isinstance(content, dict):
            raise _Damaged("it holds no dict")
        return {_key(key): _value(value) for key, value in content.items()}
    except _Refused as refused:
        raise FineSightError(
            f"{file} asks for {refused} and was not opened: no file of CIFAR-100 needs that, and it could run a "
            "program; copy the dataset again from a place you trust"
        ) from None
    except _Damaged as damage:
        raise FineSightError(f"{file} is damaged ({damage}); copy the dataset again") from None


def _key(key: str | bytes) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else key


def _value(value: Any) -> Any:
    if isinstance(value, _Array):
        if value.values is None:
            raise _Damaged("an array has no content")
        return value.values
    return value


class _Reader:
    """The stack and memo of a pickle, and the steps that are allowed on them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0  # bytes
        self.steps: dict[bytes, Callable[[], None]] = {
            b"\x80": lambda: self._skip(1),  # the protocol
            b"\x95": lambda: self._skip(8),  # a frame
            b"(": lambda: self.marks.append(len(self.stack)),
            b"}": lambda: self.stack.append({}),
            b"]": lambda: self.stack.append([]),
            b"t": lambda: self.stack.append(tuple(self._since_mark())),
            b"\x8a": self._long,
            b"a": lambda: self._append([self._pop()]),
            b"e": lambda: self._append(self._since_mark()),
            b"s": lambda: self._set_items(self._several(2)),
            b"u": lambda: self._set_items(self._since_mark()),
            b"q": lambda: self._remember(self._number("<B")),
            b"r": lambda: self._remember(self._number("<I")),
            b"\x94": lambda: self._remember(len(self.memo)),
            b"h": lambda: self._recall(self._number("<B")),
            b"j": lambda: self._recall(self._number("<I")),
            b"c": lambda: self._look_up(self._line(), self._line()),
            b"i": lambda: self._look_up(self._line(), self._line()),  # an old form, which no known name comes in
            b"\x93": lambda: self._look_up(*self._several(2)),
            b"R": self._reduce,
            b"b": self._build,
        }

    def run(self) -> Any:
        while (code := self._take(1)) != b".":
            if code in _NUMBERS:
                self.stack.append(self._number(_NUMBERS[code]))
            elif code in _TEXTS:
                self.stack.append(self._text(*_TEXTS[code]))
            elif code in self.steps:
                self.steps[code]()
            elif code in _CONSTANTS:
                self.stack.append(_CONSTANTS[code])
            elif code in _TUPLES:
                self.stack.append(tuple(self._several(_TUPLES[code])))
            elif code in _OPCODES:
                raise _Refused(f"the pickle step {_OPCODES[code]}")
            else:
                raise _Damaged(f"it is no pickle at byte {self.at - 1:,}")
        return self._pop()

    # --- bytes ----------------------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count] if count >= 0 else b""
        if len(piece) != count:
            raise _Damaged("it ends too early")
        self.at += count
        return piece

    def _skip(self, count: int) -> None:
        self._take(count)

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _text(self, form: str, unicode: bool) -> str | bytes:
        data = self._take(self._number(form))
        try:
            return data.decode("utf-8", "surrogatepass") if unicode else data
        except UnicodeDecodeError:
            raise _Damaged("it has text that is not UTF-8") from None

    def _line(self) -> str:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise _Damaged("it ends too early")
        return self._take(end + 1 - self.at)[:-1].decode("latin-1")

    def _long(self) -> None:
        self.stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))

    # --- stack and memo -------------------------------------------------------------------------------

    def _several(self, count: int) -> list[Any]:
        """The last ``count`` since the last mark."""
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            raise _Damaged("it takes what it has not put down")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _pop(self) -> Any:
        return self._several(1)[0]

    def _since_mark(self) -> list[Any]:
        if not self.marks:
            raise _Damaged("it takes what it has not put down")
        items = self._several(len(self.stack) - self.marks[-1])
        self.marks.pop()
        return items

    def _last(self, kind: type) -> Any:
        last = self._pop()
        if not isinstance(last, kind):
            raise _Damaged(f"it treats a {type(last).__name__} as a {kind.__name__}")
        self.stack.append(last)
        return last

    def _append(self, items: list[Any]) -> None:
        self._last(list).extend(items)

    def _set_items(self, items: list[Any]) -> None:
        keys = items[::2]
        if len(items) % 2 or not all(isinstance(key, (str, bytes)) for key in keys):
            raise _Damaged("a dict has a key that is no text")
        self._last(dict).update(zip(keys, items[1::2], strict=True))

    def _remember(self, place: int) -> None:
        self.memo[place] = self._pop()
        self.stack.append(self.memo[place])

    def _recall(self, place: int) -> None:
        if place not in self.memo:
            raise _Damaged("it takes what it has not put down")
        self.stack.append(self.memo[place])

    # --- what would be calls --------------------------------------------------------------------------

    def _look_up(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise _Damaged("a name is no text")
        wanted = f"{module}.{name}"
        if wanted not in _KNOWN:
            raise _Refused(ascii(wanted[:80])[1:-1])
        self.stack.append(_Name(_KNOWN[wanted]))

    def _reduce(self) -> None:
        function, given = self._several(2)
        if not isinstance(function, _Name) or not isinstance(given, tuple):
            raise _Refused("a call of what is no function")
        if function.meaning == _NEW_ARRAY and given and isinstance(given[0], _Name) and given[0].meaning == _ARRAY:
            self.stack.append(_Array())
        elif function.meaning == _DTYPE:
            self.stack.append(self._dtype(given))
        elif function.meaning == _ENCODE and len(given) == 2 and isinstance(given[0], str):
            self.stack.append(self._encode(*given))
        else:
            raise _Refused(f"{function.meaning} with other arguments than an array of bytes has")

    def _dtype(self, given: tuple[Any, ...]) -> _Bytes:
        if not given or given[0] not in ("u1", b"u1", "|u1", b"|u1"):
            raise _Refused("numpy.dtype of other values than uint8")
        return _Bytes()

    def _encode(self, text: str, encoding: Any) -> bytes:
        """At most the length of the file in all: one text, encoded again and again, would fill the memory."""
        self.encoded += len(text)
        if encoding not in ("latin1", b"latin1") or self.encoded > len(self.data):
            raise _Refused("_codecs.encode for something else than the bytes of an array")
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError:
            raise _Damaged("its bytes are not bytes") from None

    def _build(self) -> None:
        """The content of an array; that of a dtype says nothing more about bytes."""
        state = self._pop()
        target = self._pop()
        if isinstance(target, _Array):
            target.values = _filled(state)
        elif not isinstance(target, _Bytes):
            raise _Refused(f"a state for a {type(target).__name__.strip('_').lower()}")
        self.stack.append(target)


def _filled(state: Any) -> NDArray[np.uint8]:
    """An array's state is version, shape, dtype, whether columns come first, bytes."""
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[1], tuple):
        raise _Damaged("an array has no shape and bytes")
    _, shape, dtype, columns_first, data = state
    if not isinstance(dtype, _Bytes) or not isinstance(data, bytes):
        raise _Refused("an array of other values than uint8")
    if len(shape) > 4 or not all(type(side) is int and 0 <= side <= MAX_BYTES for side in shape):
        raise _Damaged("an array has an impossible shape")
    if math.prod(shape) != len(data):
        sides = " x ".join(map(str, shape))
        raise _Damaged(f"an array of {sides} has {len(data):,} bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if columns_first else "C")
