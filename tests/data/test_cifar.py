"""CIFAR-100: unpacking into the cache, and wrong content."""

import builtins
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from finesight.data.cache import open_cache
from finesight.data.layouts.cifar import Cifar100
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from layouts import (
    CIFAR_SIZES,
    META,
    cifar_arrays,
    cifar_binary,
    cifar_content,
    cifar_python,
    facts,
    old_pickle,
    open_error,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "v1-cifar100"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return cifar_python(tmp_path).root


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    return cifar_binary(tmp_path).root


def pictures(source: ImageSource) -> np.ndarray:
    return np.stack([np.asarray(Image.open(source.file(i))) for i in range(len(source))])


# --- both forms ---------------------------------------------------------------------------------------


def test_the_pixels_of_both_forms(python: Path, binary: Path, tmp_path: Path) -> None:
    expected = np.concatenate([cifar_arrays("train")[0], cifar_arrays("test")[0]]).reshape(-1, 3, 32, 32)
    for root in (python, binary):
        source = open_source(root)
        np.testing.assert_array_equal(pictures(source), expected.transpose(0, 2, 3, 1))
        for i in range(len(source)):
            with Image.open(source.file(i)) as image:
                assert (image.format, image.mode, image.size) == ("PNG", "RGB", (32, 32))
                image.verify()  # the checksums
        decoded = open_cache(source, 32, cache_dir=tmp_path / "decoded", progress=False)
        assert decoded.skipped == []
        np.testing.assert_array_equal(decoded.image(9), pictures(source)[9])


def test_a_whole_form_is_preferred(python: Path, binary: Path) -> None:
    (python / "meta").unlink()
    assert open_source(python.parent).root == open_source(binary).root


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(("text", "order"), [(True, "C"), (False, "C"), (False, "F")])
def test_pickles_written_again_by_python_3(python: Path, protocol: int, text: bool, order: Any) -> None:
    """Also with texts for bytes, and with arrays by columns."""
    expected = open_source(python)
    for name, values in {"meta": META, **{split: cifar_content(split) for split in CIFAR_SIZES}}.items():
        again: Any = values | {key: np.array(values[key], order=order) for key in (b"data",) if key in values}
        if text:
            again = {k.decode(): [n.decode() for n in v] if b"names" in k else v for k, v in again.items()}
        (python / name).write_bytes(pickle.dumps(again, protocol))
    source = open_source(python)
    assert source.root != expected.root  # other files
    assert facts(source) == facts(expected)
    np.testing.assert_array_equal(pictures(source), pictures(expected))


def test_the_writer_of_old_pickles_is_right(python: Path) -> None:
    """Python's own reader finds in them what the files of CIFAR-100 hold."""
    found = pickle.loads((python / "train").read_bytes(), encoding="bytes")
    expected = cifar_content("train")
    np.testing.assert_array_equal(found.pop(b"data"), expected.pop(b"data"))
    assert found == expected


# --- unpacking ----------------------------------------------------------------------------------------


def test_unpacked_once_also_from_a_moved_or_read_only_copy(python: Path, tmp_path: Path, cache: Path) -> None:
    before = sorted(path.name for path in python.iterdir())
    python.chmod(0o555)
    first = open_source(python)
    times = [first.file(i).stat().st_mtime_ns for i in range(len(first))]
    moved = python.rename(tmp_path / "moved")
    assert sorted(path.name for path in moved.iterdir()) == before
    second = open_source(moved)
    assert second.root == first.root
    assert facts(second) == facts(first)
    assert [second.file(i).stat().st_mtime_ns for i in range(len(second))] == times
    assert sorted(path.name for path in cache.iterdir()) == sorted([first.root.name, "lock"])
    assert first.root.parent == cache


def test_other_content_is_another_folder(python: Path) -> None:
    first = open_source(python)
    before = pictures(first)
    values = cifar_content("test")
    values[b"data"] = 255 - values[b"data"]
    (python / "test").write_bytes(old_pickle(values))
    second = open_source(python)
    assert second.root != first.root
    np.testing.assert_array_equal(pictures(second)[7:], 255 - before[7:])
    np.testing.assert_array_equal(pictures(first), before)


def test_a_folder_that_is_not_whole_is_made_again(python: Path) -> None:
    first = open_source(python)
    expected = pictures(first)
    (first.root / "cifar100.json").write_text('{"classes": [')
    first.file(3).unlink()
    with pytest.raises(FineSightError, match="no longer whole; open CIFAR-100 again"):
        Cifar100().super_categories(first)
    np.testing.assert_array_equal(pictures(open_source(python)), expected)


def test_a_cache_that_cannot_be_written(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "file"))
    assert "cannot be unpacked into" in open_error(python)
    assert "not a directory; name another folder in the environment variable FINESIGHT_CACHE" in open_error(python)


def test_a_full_disk_leaves_nothing_behind(python: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = open, iter(range(100))

    def full(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file).endswith(".png") and next(count) >= 5:
            raise OSError(28, "No space left on device")
        return real(file, *arguments, **options)

    monkeypatch.setattr(builtins, "open", full)
    assert "no space left on device" in open_error(python)
    monkeypatch.undo()
    assert [path.name for path in cache.iterdir()] == ["lock"]


SLOW = """
import builtins, sys, time
from pathlib import Path
from finesight.data.layouts.cifar import Cifar100
real, count = open, iter(range(100))
def slow(file, *arguments, **options):
    time.sleep(60 * (str(file).endswith(".png") and next(count) == 5))
    return real(file, *arguments, **options)
builtins.open = slow
Cifar100().open(Path(sys.argv[1]))
"""


def test_killed_while_unpacking(python: Path, cache: Path) -> None:
    """After kill -9 no part is ever seen as a whole, and what is left of it is removed."""
    command = [sys.executable, "-c", SLOW, str(python)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 300
    while len(list(cache.glob(".*/train/*/*.png"))) < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len([path for path in cache.iterdir() if path.name != "lock"]) == 1
    source = open_source(python)
    assert sorted(path.name for path in cache.iterdir()) == sorted([source.root.name, "lock"])
    assert len(pictures(source)) == 11


def test_several_at_once_unpack_once(python: Path, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        roots = {source.root for source in pool.map(open_source, [python] * 4)}
    assert len(roots) == 1
    assert len(list(cache.glob("*/*/*/*.png"))) == 11


# --- partial and damaged copies -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3073, 3075, 3074 * 2 - 1])
def test_binary_files_cut_short(binary: Path, size: int) -> None:
    (binary / "test.bin").write_bytes(b"\0" * size)
    assert f"test.bin is damaged ({size:,} bytes are not records of 3,074 bytes)" in open_error(binary)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({b"fine_labels": [6, 0, 0, 0]}, "image 0 has the fine label 6, and there are 6 such classes"),
        ({b"fine_labels": [0, 0, 0, -1]}, "image 3 has the fine label -1, and there are 6 such classes"),
        ({b"coarse_labels": [0, 0, 6, 0]}, "image 2 has the coarse label 6, and there are 6 such classes"),
        ({b"fine_labels": [0] * 3}, "3 fine_labels of 4 images"),
        ({b"fine_labels": [b"0"] * 4}, "fine_labels are no list of numbers"),
        ({b"coarse_labels": b"0"}, "coarse_labels are no list of numbers"),
        ({b"fine_labels": [0] * 4, b"coarse_labels": [2, 2, 2, 3]}, "apple is in both fruit_and_vegetables and hous"),
        ({b"data": np.zeros((4, 3071), np.uint8)}, "data is no array of N x 3072"),
        ({b"data": np.zeros((0, 3072), np.uint8)}, "data is no array of N x 3072"),
        ({b"data": np.zeros(3072, np.uint8)}, "data is no array of N x 3072"),
        ({b"data": [1, 2]}, "data is no array of N x 3072"),
        *(({key: None}, f"{key.decode()} ") for key in (b"data", b"fine_labels", b"coarse_labels")),  # no such entry
    ],
)
def test_wrong_pickles_are_named(python: Path, change: dict[bytes, Any], expected: str) -> None:
    values = {key: value for key, value in (cifar_content("test") | change).items() if value is not None}
    (python / "test").write_bytes(old_pickle(values))
    assert f"{python / 'test'} is damaged ({expected}" in open_error(python)


@pytest.mark.parametrize(("record", "expected"), [((0, 6), "fine label 6"), ((6, 0), "coarse label 6")])
def test_labels_out_of_range_in_records(binary: Path, record: tuple[int, int], expected: str) -> None:
    with (binary / "test.bin").open("ab") as file:
        file.write(bytes(record) + b"\0" * 3072)
    assert f"test.bin is damaged (image 4 has the {expected}, and there are 6 such classes)" in open_error(binary)


@pytest.mark.parametrize("name", ["..", "../../x", "a/b", "", " ", "a\0b", "x" * 81, "é"])
def test_class_names_that_are_no_words(python: Path, binary: Path, name: str) -> None:
    """They become folders."""
    (python / "meta").write_bytes(old_pickle(META | {b"fine_label_names": [b"apple", name.encode()]}))
    assert "meta is damaged (" in open_error(python)
    (python / "meta").write_bytes(pickle.dumps({"fine_label_names": [name], "coarse_label_names": ["a"]}, 2))
    assert "meta is damaged (" in open_error(python)
    if name.strip():
        (binary / "fine_label_names.txt").write_text(f"apple\n{name}\n")
        assert "fine_label_names.txt is damaged (" in open_error(binary)


def test_other_wrong_class_names(python: Path) -> None:
    for names in ([], [b"a", b"A"], [1], [[b"a"]], b"a"):
        (python / "meta").write_bytes(old_pickle(META | {b"fine_label_names": names}))
        assert "meta is damaged (" in open_error(python)
    (python / "meta").write_bytes(old_pickle({}))
    assert "meta is damaged (no class names)" in open_error(python)


# --- many images --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tenth_of_the_official_size_takes_seconds(binary: Path) -> None:
    (binary / "fine_label_names.txt").write_text("\n".join(f"fine_{i}" for i in range(100)))
    (binary / "coarse_label_names.txt").write_text("\n".join(f"coarse_{i}" for i in range(20)))
    rng = np.random.default_rng(0)
    for name, count in (("train", 5000), ("test", 1000)):
        records = rng.integers(0, 256, (count, 3074), dtype=np.uint8)
        records[:, 1] = np.arange(count) % 100
        records[:, 0] = records[:, 1] // 5
        (binary / f"{name}.bin").write_bytes(records.tobytes())
    start = time.process_time()
    source = open_source(binary)
    assert time.process_time() - start < 8
    assert Cifar100().super_categories(source) == tuple(f"coarse_{i // 5}" for i in range(100))
    start = time.process_time()
    assert len(open_source(binary)) == 6000
    assert time.process_time() - start < 1
