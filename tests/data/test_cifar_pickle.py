"""The pickles of CIFAR-100: nothing in them can run a program, take much memory or take for ever."""

import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finesight.data.layouts.cifar_pickle import MAX_BYTES, read_pickle
from finesight.errors import FineSightError
from layouts import old_array


class Call:
    """Pickles as a call."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.call = function, given

    def __reduce__(self) -> Any:
        return self.call


class Stateful:
    """Pickles as an object whose state is handed to its own method."""

    def __getstate__(self) -> dict[str, str]:
        return {"touch": str(self.marker)}

    def __setstate__(self, state: dict[str, str]) -> None:
        Path(state["touch"]).touch()

    marker = Path()


def hostile(marker: Path) -> dict[str, tuple[Any, str]]:
    """What would be done, and what the refusal names; old protocols have other names for some modules."""
    touch = f"touch '{marker}'"
    stateful = Stateful()
    stateful.marker = marker
    code = f"open({str(marker)!r}, 'w')"
    return {
        "os.system": (Call(os.system, touch), "asks for posix.system and"),
        "eval": (Call(eval, code), ".eval and was not opened"),
        "exec": (Call(exec, code), ".exec and was not opened"),
        "subprocess": (Call(subprocess.Popen, ["touch", str(marker)]), ".Popen and was not opened"),
        "import": (Call(__import__, "os"), ".__import__ and was not opened"),
        "getattr": (Call(getattr, "x", "upper"), ".getattr and was not opened"),
        "setstate": (stateful, "asks for "),
        "in a list": ([1, [2, {"x": Call(os.system, touch)}]], "asks for posix.system and"),
        "as an argument": (Call(np.dtype, Call(os.system, touch)), "asks for posix.system and"),
        "objects": (np.array([Call(os.system, touch)], object), "asks for "),
        "numbers": (np.arange(3.0), "numpy.dtype of other values than uint8"),
    }


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("attack", hostile(Path()))
def test_hostile_pickles_are_refused(tmp_path: Path, attack: str, protocol: int) -> None:
    marker = tmp_path / "marker"
    payload, expected = hostile(marker)[attack]
    data = pickle.dumps({b"data": payload}, protocol)
    (tmp_path / "train").write_bytes(data)
    with pytest.raises(FineSightError, match="and was not opened: no file of CIFAR-100 needs that") as caught:
        read_pickle(tmp_path / "train")
    if protocol in (2, 3, 4):
        assert expected in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize("attack", ["os.system", "eval", "exec", "subprocess", "setstate", "in a list", "objects"])
def test_the_attacks_are_real(tmp_path: Path, attack: str) -> None:
    """Python's own reader runs them: the tests above would notice."""
    marker = tmp_path / "marker"
    value = pickle.loads(pickle.dumps(hostile(marker)[attack][0], 2))
    if attack == "subprocess":
        value.wait()
    assert marker.exists()


def raw(body: bytes) -> bytes:
    return b"\x80\x02}U\x04data" + body + b"s."


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"Pid\n", "step"),  # PERSID
        (b"K\x01Q", "step"),  # BINPERSID
        (b"\x82\x01", "step"),  # EXT1
        (b"\x83\x01\x00", "step"),
        (b"\x84\x01\x00\x00\x00", "step"),
        (b"(ios\nsystem\n", "step"),  # INST
        (b"(cos\nsystem\nU\x04trueo", "os.system"),
        (b"cnumpy\nndarray\n)\x81", "step"),  # NEWOBJ
        (b"(cnumpy\nndarray\no", "step"),  # OBJ
        (b"\x96\x00\x00\x00\x00\x02\x00\x00\x00", "step"),  # BYTEARRAY8 of 8 GB
        (b"\x97", "step"),  # NEXT_BUFFER
        (b"]2", "step"),  # DUP
        (b"cnumpy\nndarray\n(K\x01tR", "step"),
        (b"cnumpy\nndarray\n}U\x01xK\x01sb", "step"),
        (b"cnumpy\ndtype\nN}U\x0c__defaults__K\x01s\x86b", "step"),
        (b"]}b", "step"),
        (b"}K\x01K\x02s", "step"),
        (b"cnumpy\ndtype\nU\x01O\x85R", "numpy.dtype of other values than uint8"),
        (b"c_codecs\nencode\nX\x01\x00\x00\x00aU\x05rot13\x86R", "_codecs.encode for something else"),
        (b"c_codecs\ndecode\n", "_codecs.decode"),
        (b"cnumpy\n\x1b[31mload\n", r"numpy.\x1b[31mload"),
        (b"cnumpy\nndarray.tofile\n", "numpy.ndarray.tofile"),
        (b"cnumpy.core.multiarray\n_reconstruct.__globals__\n", "numpy.core.multiarray._reconstruct.__globals__"),
        (old_array((1,), b"x" * 8, b"O8"), "numpy.dtype of other values than uint8"),
        (old_array((1,), b"x" * 8, b"f8"), "numpy.dtype of other values than uint8"),
        (old_array((2,), b"xx").replace(b"U\x02xx", b"](K\x01K\x02e"), "an array of other values than uint8"),
    ],
)
def test_steps_no_such_file_has(tmp_path: Path, body: bytes, expected: str) -> None:
    (tmp_path / "train").write_bytes(raw(body))
    with pytest.raises(FineSightError, match="and was not opened") as caught:
        read_pickle(tmp_path / "train")
    assert f"asks for {'a step of a pickle' if expected == 'step' else expected}" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x02].",
        b"\x80\x09}.",
        b"\x80\x02h\x05.",
        b"\x80\x02t.",
        b"\x80\x02](a.",
        b"\x80\x02}(U\x01au.",
        b"\x80\x02}K\x01a.",
        b"\x80\x02]U\x01aK\x01s.",
        b"\x80\x02T\xff\xff\xff\xff.",
        b"\x80\x02B\xff\xff\xff\xff.",
        b"\x80\x02X\x01\x00\x00\x00\xff.",
        b"\x80\x04K\x01K\x02\x93.",
        raw(b"]K\x01\x85R"),
        raw(b"cnumpy\ndtype\n]R"),
        raw(b"cnumpy\ndtype\n)R"),
        raw(b"c_codecs\nencode\nU\x01aU\x06latin1\x86R"),
        raw(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x85RK\x01b"),
        raw(b"c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacU\x06latin1\x86R"),
    ],
)
def test_pickles_that_make_no_sense(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "train").write_bytes(data)
    with pytest.raises(FineSightError, match=r"train is damaged \(.+\); copy the dataset again"):
        read_pickle(tmp_path / "train")


def test_an_array_without_content(tmp_path: Path) -> None:
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    (tmp_path / "train").write_bytes(raw(empty))
    assert read_pickle(tmp_path / "train") == {"data": None}


def memory_of(file: Path) -> int:
    """The most that reading ``file`` takes, in bytes; it must be refused."""
    tracemalloc.start()
    try:
        with pytest.raises(FineSightError):
            read_pickle(file)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        old_array((2**30, 3072), b"x"),
        old_array((2**30,) * 4, b"x"),
        old_array((-1, 3072), b"x"),
        old_array((0, 2**31 - 1), b""),
        old_array((1,) * 100, b"x"),
        b"Kar\xff\xff\xff\x7fQ",  # a memo of two thousand million places
        b"T\xff\xff\xff\x7fx",
        b"B\xff\xff\xff\xffx",
        b"\x8a\xff" + b"\xff" * 254 + b"\x7f" + old_array((1,), b"xx"),
        b"X\x40\x42\x0f\x00"
        + b"a" * 1_000_000
        + b"q\x01c_codecs\nencode\nq\x02U\x06latin1q\x03"  # a text of 1 MB,
        + b"h\x02h\x01h\x03\x86R" * 2000,  # 2,000 times
    ],
)
def test_claimed_sizes_take_no_memory(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "train").write_bytes(raw(body))
    assert memory_of(tmp_path / "train") < 20e6


def test_nested_tuples_take_no_time(tmp_path: Path) -> None:
    """A tuple of twice a tuple of twice...: 2 ** 60 items to whoever hashes, compares or prints it."""
    laughs = b"K\x01" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60))
    for use in (
        laughs,
        b"cnumpy\ndtype\n" + laughs + b"R",
        b"}" + laughs + b"K\x01s",
        b"c_codecs\nencode\n" + laughs + b"R",
    ):
        (tmp_path / "train").write_bytes(raw(use))
        start = time.process_time()
        with suppress(FineSightError):
            read_pickle(tmp_path / "train")
        assert time.process_time() - start < 10


def test_files_too_large_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "train").open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a hole: no disk is filled
    with pytest.raises(FineSightError, match="has 1,073,741,825 bytes, too many for a file of CIFAR-100"):
        read_pickle(tmp_path / "train")


def test_every_opcode_is_read_or_refused(tmp_path: Path) -> None:
    """Byte by byte, on a full stack: nothing but an error, and nothing is imported."""
    modules = set(sys.modules)
    for value in range(256):
        (tmp_path / "train").write_bytes(b"\x80\x02(](K\x01K\x02" + bytes([value]) + b"this\nantigravity\n.")
        with pytest.raises(FineSightError):
            read_pickle(tmp_path / "train")
    assert not {"this", "antigravity"} & (set(sys.modules) - modules)
