"""Folders, splits and lists: what is recognized, what is left out and why, and which errors people see."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from layouts import open_error


def facts(source: ImageSource) -> tuple[str, list[str], list[str] | None, list[str] | None]:
    """Kind, paths, the class of each image ("" without one), the split of each."""
    labels = source.labels
    classes = None if labels is None else [source.classes[i] if i >= 0 else "" for i in labels.tolist()]
    return source.kind, source.paths.tolist(), classes, None if source.splits is None else source.splits.tolist()


# --- folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "kind", "classes", "splits"),
    [
        ("a.PNG b.jpg c.tiff", "folder", None, None),
        ("x/1.jpg x/2.jpg", "folder", None, None),  # one sub-folder tells nothing apart
        ("3.jpg x/1.jpg y/2.jpg", "folder", None, None),  # mixed levels
        ("all/2.jpg all/deep/er/1.jpg", "folder", None, None),
        ("owl/1.jpg owl/deep/er/2.jpg wren/1.jpg", "class folders", "owl owl wren", None),
        ("bus/2.jpg train/1.jpg", "class folders", "bus train", None),
        ("train/a/2.jpg train/b/1.jpg test/b/3.jpg test/c/deep/4.jpg", "splits", "a b b c", "train train test test"),
        ("train/1.jpg test/2.jpg", "splits", None, "train test"),
        ("train/all/1.jpg test/all/2.jpg", "splits", None, "train test"),
        ("Train/a/1.jpg Train/b/2.jpg Test/3.jpg", "splits", "a b -", "train train test"),
        ("train/a/1.jpg train/b/2.jpg test/a/3.jpg test/stray.jpg", "splits", "a b - -", "train train test test"),
        ("train/1.jpg val/2.jpg", "splits", None, "train test"),
        ("train/1.jpg Validation/2.jpg", "splits", None, "train test"),
    ],
)
def test_folders(tmp_path: Path, picture, names: str, kind: str, classes: str | None, splits: str | None) -> None:
    for name in reversed(names.split()):
        picture(name)
    source = open_source(str(tmp_path))
    labels = None if classes is None else classes.replace("-", "").split(" ")
    assert facts(source) == (kind, names.split(), labels, None if splits is None else splits.split())
    assert source.classes == (() if labels is None else tuple(sorted({*labels} - {""})))
    assert source.labels is None or source.labels.dtype == np.int64
    assert source.file(0) == tmp_path / names.split()[0]
    if splits:
        assert source.split("test").paths.tolist() == names.split()[splits.split().index("test") :]
        assert source.split("test").classes == source.classes


def test_descriptions(tmp_path: Path, picture) -> None:
    for name in ("train/a/1.jpg", "train/b/2.jpg", "test/3.jpg"):
        picture(name)
    (tmp_path / "train/a/notes.txt").touch()
    counts = "3 images, 2 classes, 2 train + 1 test, 1 without a label"
    assert open_source(tmp_path).describe() == f"splits {tmp_path}: {counts}\n1 other entry left out"
    assert open_source(tmp_path / "train/b").describe() == f"folder {tmp_path / 'train/b'}: 1 image"
    assert full_source().describe() == (
        "cub /data: 6 images, 3 classes, 3 train + 3 test, boxes, masks, 2 parts\n1 other entry left out"
    )


def test_labels_follow_the_order_of_paths_not_of_names(tmp_path: Path, picture) -> None:
    """As names "a" comes before "a b", as paths "a b/" before "a/"."""
    tops = ["a", "a b", "a-b", "a.b", "a/deep", "a0", "ab", "ä", "b"]
    for split in ("train", "test"):
        for top in tops:
            picture(f"{split}/{top}/x.jpg")
            picture(f"{split}/{top}/y/z.JPG")
    for root, depth in ((tmp_path / "train", 0), (tmp_path, 1)):
        _, paths, classes, _ = facts(open_source(root))
        assert classes == [path.split("/")[depth] for path in paths]
    assert open_source(tmp_path / "train").paths.tolist() == sorted(
        path.relative_to(tmp_path / "train").as_posix() for path in (tmp_path / "train").rglob("*.[jJ]*")
    )


def test_what_is_no_image_is_reported_but_for_clutter(tmp_path: Path, picture) -> None:
    picture("a.jpg")
    for clutter in (".DS_Store", ".git/x.jpg", "__MACOSX/._a.jpg", "Thumbs.db", "._a.jpg", "Desktop.ini"):
        (tmp_path / clutter).parent.mkdir(exist_ok=True)
        (tmp_path / clutter).write_bytes(b"x")
    for name in (".kept back.jpg", "LICENSE", "notes.TXT"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe.jpg")  # which is not waited for
    source = open_source(tmp_path)
    assert source.paths.tolist() == ["a.jpg"]
    assert source.skipped == (
        (".kept back.jpg", "hidden: its name begins with a dot"),
        ("LICENSE", "not an image file (no suffix)"),
        ("notes.TXT", "not an image file (.txt)"),
        ("pipe.jpg", "not a regular file"),
    )


def test_odd_names(tmp_path: Path, picture) -> None:
    names = ["ä ö.jpg", "鳥/🐦.png", "e\u0301.jpg", "é.jpg", "with\nnewline.jpg", "comma, 'q' \"x\".jpg", "#1 100%.jpg"]
    for name in names:
        picture(name)
    raw = os.fsdecode(b"latin\xe9.jpg")
    os.link(tmp_path / "é.jpg", tmp_path / raw)
    source = open_source(tmp_path)
    assert source.paths.tolist() == sorted([*names, raw])
    assert all(source.file(i).is_file() for i in range(len(source)))


def test_symlinks(tmp_path: Path, picture) -> None:
    picture("root/birds/1.jpg")
    picture("outside/2.jpg")
    root = tmp_path / "root"
    (root / "birds" / "up").symlink_to(root)  # a loop
    (root / "birds" / "self").symlink_to("self")
    (root / "again").symlink_to("birds")
    (root / "far").symlink_to(tmp_path / "outside")
    (root / "far2.jpg").symlink_to(tmp_path / "outside" / "2.jpg")
    (root / "dead.jpg").symlink_to("nowhere")
    source = open_source(root)
    assert source.paths.tolist() == ["birds/1.jpg", "far/2.jpg", "far2.jpg"]
    assert dict(source.skipped) == {"birds/self": "not an image file (no suffix)", "dead.jpg": "broken link"}


def test_one_folder_linked_into_both_splits(tmp_path: Path, picture) -> None:
    picture("pool/1.jpg")
    for split in ("train", "test"):
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / "a").symlink_to(tmp_path / "pool")
    assert open_source(tmp_path / "data").paths.tolist() == ["train/a/1.jpg", "test/a/1.jpg"]


def test_what_lies_beside_the_splits_is_reported(tmp_path: Path, picture) -> None:
    for name in ("train/1.jpg", "test/2.jpg", "val/3.jpg", "4.jpg"):
        picture(name)
    (tmp_path / "README.md").touch()
    (tmp_path / "test" / "notes.txt").touch()
    source = open_source(tmp_path)
    assert source.paths.tolist() == ["train/1.jpg", "test/2.jpg"]
    assert dict(source.skipped) == {
        "test/notes.txt": "not an image file (.txt)",
        "4.jpg": "not in train/ or test/",
        "README.md": "not an image file (.md)",
        "val": "not in train/ or test/",
    }


def test_closed_folders(tmp_path: Path, picture, no_access) -> None:
    folder = picture("data/a.jpg").parent
    with no_access(picture("data/secret/b.jpg").parent):
        source = open_source(folder)
    assert source.paths.tolist() == ["a.jpg"]
    assert source.skipped == (("secret", "folder cannot be read: permission denied"),)
    with no_access(folder):
        assert open_error(folder) == f"{folder} cannot be read: permission denied; check its permissions"


def test_folders_without_images(tmp_path: Path, picture) -> None:
    gone, empty, other = (tmp_path / name for name in ("gone", "empty", "other"))
    assert open_error(gone) == f"{gone} does not exist; give --data a folder of images or a list of image paths"
    empty.mkdir()
    (empty / ".hidden").touch()
    assert open_error(empty) == f"{empty} is empty; put images into it or give --data another folder"
    other.mkdir()
    for name in ("a.txt", "b.txt", "c.zip", "d"):
        (other / name).touch()
    message = open_error(other)
    assert message.startswith(f"no image in {other}; found 2 x not an image file (.txt), ")
    assert all(words in message for words in ("1 x not an image file (.zip)", "(no suffix)", ".jpg", "--data"))
    path = picture("one/a.jpg")
    assert open_error(path) == f"{path} is a single image; give --data the folder it lies in ({path.parent})"
    picture("halves/train/1.jpg")
    (tmp_path / "halves/test").mkdir()
    assert open_error(tmp_path / "halves").startswith(f"{tmp_path / 'halves/test'} holds no image; ")


# --- lists ------------------------------------------------------------------------------------------


def listed(tmp_path: Path, text: str | bytes, name: str = "list.csv") -> ImageSource:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(tmp_path / name)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_plain_list(tmp_path: Path, end: str) -> None:
    source = listed(tmp_path, end.join(["b.jpg", "", "sub/ä, ö.png", " /abs/c.gif ", ""]), "list.txt")
    assert facts(source) == ("list", ["b.jpg", "sub/ä, ö.png", "/abs/c.gif"], None, None)  # in the order of the list
    assert source.root == tmp_path
    assert source.file(1) == tmp_path / "sub/ä, ö.png"
    assert source.file(2) == Path("/abs/c.gif")


@pytest.mark.parametrize("mark", [",", "\t", ";"])
@pytest.mark.parametrize(
    ("path", "label"), [("path", "label"), ("File", "Class"), ("filename", "label"), ("IMAGE", "class")]
)
def test_table_with_header(tmp_path: Path, mark: str, path: str, label: str) -> None:
    rows = [("id", label, path, "split"), ("1", "owl", "a.jpg", "train"), ("2", "", "b.jpg", "Test")]
    rows.append(("3", "auk", "c.jpg", "training"))
    source = listed(tmp_path, "\n".join(mark.join(row) for row in rows))
    assert facts(source) == ("list", ["a.jpg", "b.jpg", "c.jpg"], ["owl", "", "auk"], ["train", "test", "train"])
    assert source.classes == ("auk", "owl")


@pytest.mark.parametrize(
    ("text", "paths", "labels"),
    [
        ("a.jpg,10\nb.jpg,9\nc.jpg,10\n", ["a.jpg", "b.jpg", "c.jpg"], ["10", "9", "10"]),
        ("a.jpg\towl\nb.jpg\t\n", ["a.jpg", "b.jpg"], ["owl", ""]),
        ('path\n"a, b.jpg"\nc.jpg\n', ["a, b.jpg", "c.jpg"], None),
        ('path,label\n"a, b.jpg","x ""y"""\n', ["a, b.jpg"], ['x "y"']),
        *(("path,label\nä.jpg,ö\n".encode(code), ["ä.jpg"], ["ö"]) for code in ("utf-8", "utf-8-sig", "utf-16")),
        (b"latin\xe9.jpg\n", [os.fsdecode(b"latin\xe9.jpg")], None),
    ],
)
def test_other_tables(tmp_path: Path, text: str | bytes, paths: list[str], labels: list[str] | None) -> None:
    assert facts(listed(tmp_path, text)) == ("list", paths, labels, None)


def test_numbers_are_sorted_by_value(tmp_path: Path) -> None:
    assert listed(tmp_path, "a.jpg,10\nb.jpg,9\n").classes == ("9", "10")


def test_validation_in_a_list(tmp_path: Path) -> None:
    assert listed(tmp_path, "path,split\na.jpg,train\nb.jpg,val\n").split("test").paths.tolist() == ["b.jpg"]
    left_out = listed(tmp_path, "path,split\na.jpg,train\nb.jpg,val\nc.jpg,test\n")
    assert left_out.paths.tolist() == ["a.jpg", "c.jpg"]
    assert left_out.skipped == (("b.jpg", "in the validation split; the list has a test split"),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty; write one image path per line"),
        ("\n \n", "is empty; write one image path per line"),
        ("path,label\n", "has a header but no image"),
        (
            "a.jpg\nnotes.txt\n",
            "1 of 2 lines of {file} cannot be used: line 2: 'notes.txt' is not an image file (.txt).",
        ),
        ("Dear reader\nhello\n", "2 of 2 lines of {file} cannot be used: line 1: 'Dear reader' is not an image file"),
        ("a.jpg,x\n\nb.jpg\n", "1 of 2 lines of {file} cannot be used: line 3: 1 column where 2 belong."),
        ("path,label\na.jpg,x,y\n", "line 2: 3 columns where 2 belong."),
        ("path,label\n,x\n", "line 2: no path."),
        ("path,split\na.jpg,dev\n", "line 2: split is 'dev', not train or test."),
        ("a.jpg\n" + "x\n" * 10, "line 4: 'x' is not an image file (no suffix); and 7 more."),
        # quotes that never end and endless cells are one bad line each: what follows is read
        (
            f'path,label\n"a.jpg,owl\nb.jpg,owl\n"{"x" * 200_000}",owl\n',
            "2 of 3 lines of {file} cannot be used: line 2: 1 column where 2 belong; line 4: 0 columns where 2 belong.",
        ),
        ("a.jpg\n" * 100_000 + "\0", "is neither a folder of images nor a text list of them"),
        ("PK\x03\x04\0\0\0", "is neither a folder of images nor a text list of them"),
    ],
    ids=range(13),
)
def test_bad_lists(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "list.csv"
    file.write_text(text)
    assert expected.format(file=file) in open_error(file)


# --- the source itself ------------------------------------------------------------------------------


def full_source(n: int = 6) -> ImageSource:
    rng = np.random.default_rng(0)
    return ImageSource(
        Path("/data"),
        "cub",
        np.array([f"{i}.jpg" for i in range(n)]),
        np.arange(n) % 3,
        ("a", "b", "c"),
        np.array(["train", "test"] * (n // 2)),
        rng.random((n, 4), np.float32),
        rng.random((n, 2, 3), np.float32),
        ("bill", "eye"),
        np.array([f"masks/{i}.png" for i in range(n)]),
        (("x.txt", "not an image file (.txt)"),),
    )


@pytest.mark.parametrize(
    ("indices", "expected"),
    [([4, 0, 4], [4, 0, 4]), (np.array([5, 2]), [5, 2]), (np.arange(6) > 3, [4, 5]), (range(2), [0, 1]), ([], [])],
)
def test_select(indices: Sequence[int], expected: list[int]) -> None:
    source = full_source()
    part = source.select(indices)
    assert len(part) == len(expected)
    for name in ("paths", "labels", "splits", "boxes", "parts", "masks"):
        np.testing.assert_array_equal(getattr(part, name), getattr(source, name)[expected])
    for name in ("root", "kind", "classes", "part_names", "skipped"):
        assert getattr(part, name) == getattr(source, name)


def test_splits_and_first_classes() -> None:
    source = full_source()
    assert source.split("train").paths.tolist() == ["0.jpg", "2.jpg", "4.jpg"]
    assert source.first_classes(2).paths.tolist() == ["0.jpg", "1.jpg", "3.jpg", "4.jpg"]
    with pytest.raises(FineSightError, match="has 3 classes: it cannot be limited to 4"):
        source.first_classes(4)
    plain = ImageSource(Path("/data"), "folder", np.array(["a.jpg"]))
    assert plain.split("test") is plain
    with pytest.raises(FineSightError, match="has no classes"):
        plain.first_classes(1)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 paths but 1 labels"):
        ImageSource(Path("/data"), "folder", np.array(["a.jpg", "b.jpg"]), np.array([0]), ("a",))
