import builtins
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from finesight.data.cache import open_cache
from finesight.data.layouts import cifar_pickle
from finesight.data.layouts.cifar import Cifar100
from finesight.data.layouts.cifar_pickle import read_pickle
from finesight.data.layouts.layout import official_counts
from finesight.data.sources import ImageSource, open_source
from finesight.data.verification import describe_differences
from finesight.errors import FineSightError

FINE = ["apple", "aquarium_fish", "baby", "bear", "beaver", "bed"]
COARSE = ["aquatic_mammals", "fish", "fruit_and_vegetables", "household_furniture", "large_carnivores", "people"]
COARSE_OF = [2, 1, 5, 4, 0, 3]
SIZES = {"train": 23, "test": 9}


def arrays(split: str) -> tuple[np.ndarray, list[int], list[int]]:
    """Pixels (N, 3072), fine and coarse labels."""
    rng = np.random.default_rng(len(split))
    fine = rng.integers(0, len(FINE) - 1, SIZES[split]).tolist()  # no image of the last class
    return rng.integers(0, 256, (SIZES[split], 3072), dtype=np.uint8), fine, [COARSE_OF[label] for label in fine]


# --- a writer of pickles as Python 2 and its NumPy wrote them -----------------------------------------


def old_text(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def old_int(number: int) -> bytes:
    if 0 <= number < 256:
        return b"K" + bytes([number])
    return b"M" + struct.pack("<H", number) if 0 <= number < 65536 else b"J" + struct.pack("<i", number)


def old_array(shape: tuple[int, ...], data: bytes, dtype: bytes = b"u1", columns_first: bool = False) -> bytes:
    sides = b"(" + b"".join(map(old_int, shape)) + b"t"
    empty = b"cnumpy.core.multiarray\n_reconstruct\nq\x20cnumpy\nndarray\nq\x21K\x00\x85q\x22U\x01bq\x23\x87q\x24Rq\x25"
    kind = b"cnumpy\ndtype\nq\x26" + old_text(dtype) + b"K\x00K\x01\x87q\x27Rq\x28"
    kind += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x29b"
    return empty + b"(K\x01" + sides + kind + (b"\x88" if columns_first else b"\x89") + old_text(data) + b"tb"


def old_value(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return old_array(value.shape, value.tobytes())
    if isinstance(value, list):
        return b"](" + b"".join(map(old_value, value)) + b"e"
    return old_int(value) if isinstance(value, int) else old_text(value)


def old_pickle(content: dict[bytes, Any]) -> bytes:
    items = b"".join(old_text(key) + old_value(value) for key, value in content.items())
    return b"\x80\x02}q\x01(" + items + b"u."


def content(split: str) -> dict[bytes, Any]:
    pixels, fine, coarse = arrays(split)
    return {
        b"filenames": [b"bos_taurus_s_%06d.png" % i for i in range(len(pixels))],
        b"batch_label": b"training batch 1 of 1",
        b"fine_labels": fine,
        b"coarse_labels": coarse,
        b"data": pixels,
    }


META = {b"fine_label_names": [n.encode() for n in FINE], b"coarse_label_names": [n.encode() for n in COARSE]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "v1-cifar100"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    root = tmp_path / "cifar-100-python"
    root.mkdir()
    for split in SIZES:
        (root / split).write_bytes(old_pickle(content(split)))
    (root / "meta").write_bytes(old_pickle(META))
    (root / "file.txt~").write_text("")  # as in the archive
    return root


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    root = tmp_path / "cifar-100-binary"
    root.mkdir()
    for split in SIZES:
        pixels, fine, coarse = arrays(split)
        rows = [bytes([c, f]) + image.tobytes() for c, f, image in zip(coarse, fine, pixels, strict=True)]
        (root / f"{split}.bin").write_bytes(b"".join(rows))
    (root / "fine_label_names.txt").write_text("\n".join(FINE) + "\n\n")
    (root / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n")
    return root


def opened(root: Path) -> ImageSource:
    return Cifar100().open(root)


def facts(source: ImageSource) -> tuple[Any, ...]:
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.splits is not None
    return source.kind, source.paths.tolist(), source.labels.tolist(), source.classes, source.splits.tolist()


def pictures(source: ImageSource) -> np.ndarray:
    return np.stack([np.asarray(Image.open(source.file(i))) for i in range(len(source))])


def error(root: Path) -> str:
    assert Cifar100().recognizes(root)
    with pytest.raises(FineSightError) as caught:
        opened(root)
    return str(caught.value)


# --- both forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["python", "binary"])
def test_the_official_forms(form: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(form)
    assert Cifar100().recognizes(root)
    source = opened(root)
    train, test = arrays("train"), arrays("test")
    labels = train[1] + test[1]
    numbers = [*range(23), *range(9)]
    splits = ["train"] * 23 + ["test"] * 9
    paths = [f"{s}/{FINE[f]}/{i:05d}.png" for s, f, i in zip(splits, labels, numbers, strict=True)]
    assert facts(source) == ("cifar100", paths, labels, tuple(FINE), splits)
    expected = np.concatenate([train[0], test[0]]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(pictures(source), expected.transpose(0, 2, 3, 1))
    assert source.trim == 0
    assert official_counts(source.kind)
    assert Cifar100().super_categories(source) == (
        "fruit_and_vegetables",
        "fish",
        "people",
        "large_carnivores",
        "aquatic_mammals",
        "unknown",
    )
    assert Cifar100().super_categories(source.split("test").select([0])) == Cifar100().super_categories(source)
    assert "32 images, 6 classes, 23 train + 9 test" in source.describe()
    words = describe_differences(source)
    assert words is not None
    assert "49,977 of 50,000 train images missing" in words


def test_both_forms_are_the_same_source(python: Path, binary: Path) -> None:
    one, other = opened(python), opened(binary)
    assert facts(one) == facts(other)
    assert Cifar100().super_categories(one) == Cifar100().super_categories(other)
    np.testing.assert_array_equal(pictures(one), pictures(other))


def test_the_files_are_whole_png_files(python: Path) -> None:
    source = opened(python)
    for i in range(len(source)):
        with Image.open(source.file(i)) as image:
            assert (image.format, image.mode, image.size) == ("PNG", "RGB", (32, 32))
            image.verify()  # the checksums


def test_the_decoded_cache_reads_them(python: Path, tmp_path: Path) -> None:
    source = opened(python)
    decoded = open_cache(source, 32, cache_dir=tmp_path / "decoded", progress=False)
    assert decoded.skipped == []
    np.testing.assert_array_equal(decoded.image(30), pictures(source)[30])


@pytest.mark.parametrize("form", ["python", "binary"])
def test_the_folder_above(form: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(form)
    assert Cifar100().recognizes(root.parent)
    assert opened(root.parent).root == opened(root).root


def test_a_whole_form_is_preferred(python: Path, binary: Path) -> None:
    (python / "meta").unlink()
    assert opened(python.parent).root == opened(binary).root


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("text", [True, False])
def test_pickles_written_again_by_python_3(python: Path, protocol: int, text: bool) -> None:
    expected = opened(python)
    for name, values in {"meta": META, **{split: content(split) for split in SIZES}}.items():
        again: Any = values
        if text:
            again = {k.decode(): [n.decode() for n in v] if b"names" in k else v for k, v in values.items()}
        (python / name).write_bytes(pickle.dumps(again, protocol))
    source = opened(python)
    assert source.root != expected.root  # other files
    assert facts(source) == facts(expected)
    np.testing.assert_array_equal(pictures(source), pictures(expected))


def test_the_writer_of_old_pickles_is_right(python: Path) -> None:
    """Python's own reader finds in them what the files of CIFAR-100 hold."""
    found = pickle.loads((python / "train").read_bytes(), encoding="bytes")
    expected = content("train")
    np.testing.assert_array_equal(found.pop(b"data"), expected.pop(b"data"))
    assert found == expected


@pytest.mark.parametrize("protocol", [2, 3])
def test_arrays_by_columns(python: Path, protocol: int) -> None:
    expected = pictures(opened(python))
    values = content("train")
    values[b"data"] = np.asfortranarray(values[b"data"])
    (python / "train").write_bytes(pickle.dumps(values, protocol))
    np.testing.assert_array_equal(pictures(opened(python)), expected)


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize("above", [True, False])
def test_the_layout_is_recognized(form: str, above: bool, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(form)
    found = open_source(root.parent if above else root)
    assert found.root == opened(root).root
    assert facts(found) == facts(opened(root))


# --- unpacking ----------------------------------------------------------------------------------------


def test_unpacked_once(python: Path, cache: Path) -> None:
    first = opened(python)
    times = [first.file(i).stat().st_mtime_ns for i in range(len(first))]
    second = opened(python)
    assert facts(second) == facts(first)
    assert [second.file(i).stat().st_mtime_ns for i in range(len(second))] == times
    assert sorted(path.name for path in cache.iterdir()) == sorted([first.root.name, "lock"])
    assert first.root.parent == cache


def test_other_content_is_another_folder(python: Path) -> None:
    first = opened(python)
    before = pictures(first)
    values = content("test")
    values[b"data"] = 255 - values[b"data"]
    (python / "test").write_bytes(old_pickle(values))
    second = opened(python)
    assert second.root != first.root
    np.testing.assert_array_equal(pictures(second)[23:], 255 - before[23:])
    np.testing.assert_array_equal(pictures(first), before)


def test_a_moved_or_copied_dataset_is_not_unpacked_again(python: Path, tmp_path: Path) -> None:
    first = opened(python)
    shutil.copytree(python, tmp_path / "copy")
    shutil.rmtree(python)
    assert Cifar100().recognizes(tmp_path / "copy")
    assert opened(tmp_path / "copy").root == first.root


def test_a_folder_that_is_not_whole_is_made_again(python: Path) -> None:
    first = opened(python)
    expected = pictures(first)
    (first.root / "cifar100.json").write_text('{"classes": [')
    first.file(3).unlink()
    with pytest.raises(FineSightError, match="no longer whole; open CIFAR-100 again"):
        Cifar100().super_categories(first)
    np.testing.assert_array_equal(pictures(opened(python)), expected)


def test_a_read_only_dataset(python: Path) -> None:
    before = sorted(python.iterdir())
    python.chmod(0o555)
    try:
        assert len(opened(python)) == 32
    finally:
        python.chmod(0o755)
    assert sorted(python.iterdir()) == before


def test_a_cache_that_cannot_be_written(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "file"))
    assert "cannot be unpacked into" in error(python)
    assert "not a directory; name another folder in the environment variable FINESIGHT_CACHE" in error(python)


def test_a_full_disk_leaves_nothing_behind(python: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = open, iter(range(100))

    def full(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file).endswith(".png") and next(count) >= 10:
            raise OSError(28, "No space left on device")
        return real(file, *arguments, **options)

    monkeypatch.setattr(builtins, "open", full)
    assert "no space left on device" in error(python)
    monkeypatch.undo()
    assert [path.name for path in cache.iterdir()] == ["lock"]


SLOW = """
import builtins, sys, time
from pathlib import Path
from finesight.data.layouts.cifar import Cifar100
real, count = open, iter(range(100))
def slow(file, *arguments, **options):
    time.sleep(60 * (str(file).endswith(".png") and next(count) == 20))
    return real(file, *arguments, **options)
builtins.open = slow
Cifar100().open(Path(sys.argv[1]))
"""


def test_killed_while_unpacking(python: Path, cache: Path) -> None:
    """After kill -9 no part is ever seen as a whole, and what is left of it is removed."""
    command = [sys.executable, "-c", SLOW, str(python)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while len(list(cache.glob(".*/train/*/*.png"))) < 20:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len([path for path in cache.iterdir() if path.name != "lock"]) == 1
    source = opened(python)
    assert sorted(path.name for path in cache.iterdir()) == sorted([source.root.name, "lock"])
    assert len(pictures(source)) == 32


def test_several_at_once_unpack_once(python: Path, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        roots = {source.root for source in pool.map(opened, [python] * 4)}
    assert len(roots) == 1
    assert len(list(cache.glob("*/*/*/*.png"))) == 32


# --- partial and damaged copies -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_a_missing_pickle_is_named(python: Path, name: str) -> None:
    (python / name).unlink()
    assert f"{python} is CIFAR-100 but {name} is missing; copy the dataset again" in error(python.parent)


@pytest.mark.parametrize("name", ["train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt"])
def test_a_missing_binary_file_is_named(binary: Path, name: str) -> None:
    (binary / name).unlink()
    assert f"{binary} is CIFAR-100 but {name} is missing; copy the dataset again" in error(binary.parent)


def test_what_is_no_copy(tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert not Cifar100().recognizes(other)
    for split in ("train", "test"):
        (other / split / "apple").mkdir(parents=True)  # class folders
    assert not Cifar100().recognizes(other)
    shutil.rmtree(other)
    other.mkdir()
    for name in ("train", "test", "meta"):
        (other / name).write_text("a list of images, say")
    assert not Cifar100().recognizes(other)


@pytest.mark.parametrize("part", [0, 1, 0.1, 0.5, 0.99])
def test_pickles_cut_short(python: Path, part: float) -> None:
    data = (python / "train").read_bytes()
    (python / "train").write_bytes(data[: 1 if part == 1 else int(len(data) * part)])
    message = error(python)
    assert f"{python / 'train'} is damaged (" in message


@pytest.mark.parametrize("size", [0, 1, 3073, 3075, 3074 * 2 - 1])
def test_binary_files_cut_short(binary: Path, size: int) -> None:
    (binary / "test.bin").write_bytes(b"\0" * size)
    assert f"test.bin is damaged ({size:,} bytes are not records of 3,074 bytes)" in error(binary)


def test_pickles_with_flipped_bytes(python: Path) -> None:
    """Whatever is made of them: images or a named error, never a trace."""
    for name in ("meta", "train"):
        data = (python / name).read_bytes()
        rng = np.random.default_rng(0)
        outside = [i for i in range(len(data)) if i < 800 or i > len(data) - 60]  # rarely in the pixels
        for _ in range(300):
            broken = bytearray(data)
            broken[int(rng.choice(outside))] ^= int(rng.integers(1, 256))
            (python / name).write_bytes(broken)
            try:
                read_pickle(python / name)
            except FineSightError as caught:
                assert f"{python / name} " in str(caught)  # noqa: PT017
        (python / name).write_bytes(data)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({b"fine_labels": [6] + [0] * 8}, "image 0 has the fine label 6, and there are 6 such classes"),
        ({b"fine_labels": [0] * 8 + [-1]}, "image 8 has the fine label -1, and there are 6 such classes"),
        ({b"coarse_labels": [0] * 7 + [6, 0]}, "image 7 has the coarse label 6, and there are 6 such classes"),
        ({b"fine_labels": [0] * 8}, "8 fine_labels of 9 images"),
        ({b"fine_labels": [b"0"] * 9}, "fine_labels are no list of numbers"),
        ({b"coarse_labels": b"0"}, "coarse_labels are no list of numbers"),
        ({b"fine_labels": [0] * 9, b"coarse_labels": [2] * 8 + [3]}, "apple is in both fruit_and_vegetables and hous"),
        ({b"data": np.zeros((9, 3071), np.uint8)}, "data is no array of N x 3072"),
        ({b"data": np.zeros((0, 3072), np.uint8)}, "data is no array of N x 3072"),
        ({b"data": np.zeros(3072, np.uint8)}, "data is no array of N x 3072"),
        ({b"data": [1, 2]}, "data is no array of N x 3072"),
    ],
)
def test_wrong_pickles_are_named(python: Path, change: dict[bytes, Any], expected: str) -> None:
    (python / "test").write_bytes(old_pickle(content("test") | change))
    assert f"{python / 'test'} is damaged ({expected}" in error(python)


@pytest.mark.parametrize("gone", [b"data", b"fine_labels", b"coarse_labels"])
def test_missing_entries_are_named(python: Path, gone: bytes) -> None:
    values = content("train")
    del values[gone]
    (python / "train").write_bytes(old_pickle(values))
    assert f"train is damaged ({gone.decode()} " in error(python)


@pytest.mark.parametrize(("record", "expected"), [((0, 6), "fine label 6"), ((6, 0), "coarse label 6")])
def test_labels_out_of_range_in_records(binary: Path, record: tuple[int, int], expected: str) -> None:
    with (binary / "test.bin").open("ab") as file:
        file.write(bytes(record) + b"\0" * 3072)
    assert f"test.bin is damaged (image 9 has the {expected}, and there are 6 such classes)" in error(binary)


@pytest.mark.parametrize("name", ["..", "../../x", "a/b", "", " ", "a\0b", "x" * 81, "é"])
def test_class_names_that_are_no_words(python: Path, binary: Path, name: str) -> None:
    """They become folders."""
    (python / "meta").write_bytes(old_pickle(META | {b"fine_label_names": [b"apple", name.encode()]}))
    assert "meta is damaged (" in error(python)
    (python / "meta").write_bytes(pickle.dumps({"fine_label_names": [name], "coarse_label_names": ["a"]}, 2))
    assert "meta is damaged (" in error(python)
    if name.strip():
        (binary / "fine_label_names.txt").write_text(f"apple\n{name}\n")
        assert "fine_label_names.txt is damaged (" in error(binary)


def test_other_wrong_class_names(python: Path) -> None:
    for names in ([], [b"a", b"A"], [1], [[b"a"]], b"a"):
        (python / "meta").write_bytes(old_pickle(META | {b"fine_label_names": names}))
        assert "meta is damaged (" in error(python)
    (python / "meta").write_bytes(old_pickle({}))
    assert "meta is damaged (no class names)" in error(python)


def test_a_file_nobody_may_read_is_not_called_damaged(binary: Path, no_access: Callable[[Path], Any]) -> None:
    with no_access(binary / "train.bin"), pytest.raises(PermissionError):
        opened(binary)


# --- hostile pickles ----------------------------------------------------------------------------------


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
def test_hostile_pickles_are_refused(python: Path, tmp_path: Path, attack: str, protocol: int) -> None:
    marker = tmp_path / "marker"
    payload, expected = hostile(marker)[attack]
    data = pickle.dumps({b"data": payload}, protocol)
    (python / "train").write_bytes(data)
    with pytest.raises(FineSightError, match="and was not opened: no file of CIFAR-100 needs that") as caught:
        read_pickle(python / "train")
    if protocol in (2, 3, 4):
        assert expected in str(caught.value)
        assert error(python) == str(caught.value)
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


def test_an_array_without_content(python: Path) -> None:
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    (python / "train").write_bytes(raw(empty))
    assert "train is damaged (data is no array of N x 3072)" in error(python)


def memory_of(file: Path) -> int:
    """The most that variant ``file`` takes, in bytes; it must be refused."""
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
        assert time.process_time() - start < 1


def test_files_too_large_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "train").open("wb") as file:
        file.truncate(cifar_pickle.MAX_BYTES + 1)  # a hole: no disk is filled
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


# --- the whole size -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_official_size(binary: Path) -> None:
    official = Cifar100.official
    (binary / "fine_label_names.txt").write_text("\n".join(f"fine_{i}" for i in range(100)))
    (binary / "coarse_label_names.txt").write_text("\n".join(f"coarse_{i}" for i in range(20)))
    rng = np.random.default_rng(0)
    for name, count in (("train", official.train), ("test", official.test)):
        records = rng.integers(0, 256, (count, 3074), dtype=np.uint8)
        records[:, 1] = np.arange(count) % 100
        records[:, 0] = records[:, 1] // 5
        (binary / f"{name}.bin").write_bytes(records.tobytes())
    start = time.process_time()
    source = opened(binary)
    assert time.process_time() - start < 30
    assert describe_differences(source) is None
    assert Cifar100().super_categories(source) == tuple(f"coarse_{i // 5}" for i in range(100))
    start = time.process_time()
    opened(binary)
    assert time.process_time() - start < 5
