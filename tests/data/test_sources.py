import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError


def error(path: Path) -> str:
    with pytest.raises(FineSightError) as caught:
        open_source(path)
    return str(caught.value)


# --- folders ----------------------------------------------------------------------------------------


def test_flat_folder(tmp_path: Path, picture) -> None:
    for name in ("b.jpg", "a.PNG", "c.tiff"):
        picture(name)
    source = open_source(tmp_path)
    assert source.kind == "folder"
    assert source.paths.tolist() == ["a.PNG", "b.jpg", "c.tiff"]
    assert source.labels is None
    assert source.classes == ()
    assert source.splits is None
    assert source.file(0) == tmp_path / "a.PNG"
    assert source.describe() == f"folder {tmp_path}: 3 images"


@pytest.mark.parametrize(
    "names",
    [
        ["x/1.jpg", "x/2.jpg"],  # one sub-folder tells nothing apart
        ["x/1.jpg", "y/2.jpg", "3.jpg"],  # mixed levels
        ["all/deep/er/1.jpg", "all/2.jpg"],
    ],
)
def test_nested_folder_without_labels(tmp_path: Path, picture, names: list[str]) -> None:
    for name in names:
        picture(name)
    source = open_source(str(tmp_path))
    assert source.kind == "folder"
    assert source.paths.tolist() == sorted(names)
    assert source.labels is None


def test_class_folders(tmp_path: Path, picture) -> None:
    for name in ("wren/1.jpg", "owl/deep/er/2.jpg", "owl/1.jpg", "empty of images/notes.txt"):
        if name.endswith("txt"):
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_text("x")
        else:
            picture(name)
    source = open_source(tmp_path)
    assert source.kind == "class folders"
    assert source.paths.tolist() == ["owl/1.jpg", "owl/deep/er/2.jpg", "wren/1.jpg"]
    assert source.classes == ("owl", "wren")
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [0, 0, 1]
    assert source.skipped == (("empty of images/notes.txt", "not an image file (.txt)"),)
    assert source.describe() == f"class folders {tmp_path}: 3 images, 2 classes\n1 other entry left out"


def test_labels_follow_the_order_of_paths_not_of_names(tmp_path: Path, picture) -> None:
    """As names "a" comes before "a b", as paths "a b/" before "a/"."""
    tops = ["a", "a b", "a-b", "a.b", "a/deep", "a0", "ab", "ä", "b"]
    for split in ("train", "test"):
        for top in tops:
            picture(f"{split}/{top}/x.jpg")
            picture(f"{split}/{top}/y/z.JPG")
    for root, depth in ((tmp_path / "train", 0), (tmp_path, 1)):
        source = open_source(root)
        assert source.labels is not None
        assert source.classes == tuple(sorted({top.split("/")[0] for top in tops}))
        assert [source.classes[i] for i in source.labels] == [path.split("/")[depth] for path in source.paths]
    assert source.splits is not None
    assert source.splits.tolist() == [path.split("/")[0] for path in source.paths]
    assert open_source(tmp_path / "train").paths.tolist() == sorted(
        path.relative_to(tmp_path / "train").as_posix() for path in (tmp_path / "train").rglob("*.[jJ]*")
    )


def test_a_stray_image_takes_the_labels_of_its_split_only(tmp_path: Path, picture) -> None:
    for name in ("train/a/1.jpg", "train/b/2.jpg", "test/a/3.jpg", "test/stray.jpg"):
        picture(name)
    source = open_source(tmp_path)
    assert source.labels is not None
    assert source.labels.tolist() == [0, 1, -1, -1]


def test_clutter_is_ignored_and_other_files_are_reported(tmp_path: Path, picture) -> None:
    picture("a.jpg")
    for clutter in (".DS_Store", ".git/x.jpg", "__MACOSX/._a.jpg", "Thumbs.db", "._a.jpg", "Desktop.ini"):
        (tmp_path / clutter).parent.mkdir(exist_ok=True)
        (tmp_path / clutter).write_bytes(b"x")
    (tmp_path / "notes.TXT").write_text("x")
    (tmp_path / "LICENSE").write_text("x")
    source = open_source(tmp_path)
    assert source.paths.tolist() == ["a.jpg"]
    assert source.skipped == (
        ("LICENSE", "not an image file (no suffix)"),
        ("notes.TXT", "not an image file (.txt)"),
    )


def test_odd_names(tmp_path: Path, picture) -> None:
    names = [
        "ä ö.jpg",
        "鳥/🐦.png",
        "e\u0301.jpg",
        "é.jpg",
        "with\nnewline.jpg",
        "comma, 'quote' \"x\".jpg",
        "#1 100%.jpg",
    ]
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
    assert dict(source.skipped) == {
        "birds/self": "not an image file (no suffix)",
        "dead.jpg": "broken link",
    }


def test_a_pipe_is_not_waited_for(tmp_path: Path, picture) -> None:
    picture("a.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    assert open_source(tmp_path).skipped == (("pipe.jpg", "not a regular file"),)


def test_a_closed_sub_folder_is_reported(tmp_path: Path, picture, no_access) -> None:
    picture("data/a.jpg")
    secret = picture("data/secret/b.jpg").parent
    with no_access(secret):
        source = open_source(tmp_path / "data")
    assert source.paths.tolist() == ["a.jpg"]
    assert source.skipped == (("secret", "folder cannot be read: permission denied"),)


def test_a_closed_folder_is_an_error(tmp_path: Path, picture, no_access) -> None:
    folder = picture("data/a.jpg").parent
    with no_access(folder):
        assert error(folder) == f"{folder} cannot be read: permission denied; check its permissions"


def test_nothing_there(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert error(gone) == f"{gone} does not exist; give --data a folder of images or a list of image paths"


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    assert error(tmp_path) == f"{tmp_path} is empty; put images into it or give --data another folder"


def test_folder_without_images(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.zip", "d"):
        (tmp_path / name).touch()
    message = error(tmp_path)
    assert message.startswith(f"no image in {tmp_path}; found 2 x not an image file (.txt), ")
    assert "1 x not an image file (.zip)" in message
    assert "1 x not an image file (no suffix)" in message
    assert ".jpg" in message
    assert "--data" in message


def test_a_single_image(tmp_path: Path, picture) -> None:
    path = picture("one.jpg")
    assert error(path) == f"{path} is a single image; give --data the folder it lies in ({tmp_path})"


# --- train/ and test/ -------------------------------------------------------------------------------


def test_splits_with_classes(tmp_path: Path, picture) -> None:
    for name in ("train/b/1.jpg", "train/a/2.jpg", "test/b/3.jpg", "test/c/deep/4.jpg"):
        picture(name)
    source = open_source(tmp_path)
    assert source.kind == "splits"
    assert source.classes == ("a", "b", "c")
    assert source.paths.tolist() == ["train/a/2.jpg", "train/b/1.jpg", "test/b/3.jpg", "test/c/deep/4.jpg"]
    assert source.splits is not None
    assert source.labels is not None
    assert source.splits.tolist() == ["train", "train", "test", "test"]
    assert source.labels.tolist() == [0, 1, 1, 2]
    assert source.describe() == f"splits {tmp_path}: 4 images, 3 classes, 2 train + 2 test"
    test = source.split("test")
    assert test.paths.tolist() == ["test/b/3.jpg", "test/c/deep/4.jpg"]
    assert test.labels is not None
    assert test.labels.tolist() == [1, 2]
    assert test.classes == source.classes


@pytest.mark.parametrize("names", [("train/1.jpg", "test/2.jpg"), ("train/all/1.jpg", "test/all/2.jpg")])
def test_splits_without_classes(tmp_path: Path, picture, names: tuple[str, str]) -> None:
    for name in names:
        picture(name)
    source = open_source(tmp_path)
    assert source.kind == "splits"
    assert source.labels is None
    assert source.classes == ()
    assert source.split("train").paths.tolist() == [names[0]]


def test_a_flat_test_folder_has_no_labels(tmp_path: Path, picture) -> None:
    for name in ("Train/a/1.jpg", "Train/b/2.jpg", "Test/3.jpg"):
        picture(name)
    source = open_source(tmp_path)
    assert source.classes == ("a", "b")
    assert source.labels is not None
    assert source.labels.tolist() == [0, 1, -1]
    assert source.describe() == f"splits {tmp_path}: 3 images, 2 classes, 2 train + 1 test, 1 without a label"


@pytest.mark.parametrize("name", ["val", "validation", "Val"])
def test_validation_stands_in_for_test(tmp_path: Path, picture, name: str) -> None:
    picture("train/1.jpg")
    picture(f"{name}/2.jpg")
    assert open_source(tmp_path).split("test").paths.tolist() == [f"{name}/2.jpg"]


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


def test_one_folder_linked_into_both_splits(tmp_path: Path, picture) -> None:
    picture("pool/1.jpg")
    for split in ("train", "test"):
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / "a").symlink_to(tmp_path / "pool")
    assert open_source(tmp_path / "data").paths.tolist() == ["train/a/1.jpg", "test/a/1.jpg"]


def test_an_empty_split_is_an_error(tmp_path: Path, picture) -> None:
    picture("train/1.jpg")
    (tmp_path / "test").mkdir()
    assert error(tmp_path).startswith(f"{tmp_path / 'test'} holds no image; ")


def test_a_class_called_train_is_a_class(tmp_path: Path, picture) -> None:
    for name in ("train/1.jpg", "bus/2.jpg"):
        picture(name)
    assert open_source(tmp_path).classes == ("bus", "train")


# --- lists ------------------------------------------------------------------------------------------


def listed(tmp_path: Path, text: str | bytes, name: str = "list.csv") -> ImageSource:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(tmp_path / name)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_plain_list(tmp_path: Path, end: str) -> None:
    source = listed(tmp_path, end.join(["b.jpg", "", "sub/ä, ö.png", " /abs/c.gif ", ""]), "list.txt")
    assert source.kind == "list"
    assert source.root == tmp_path
    assert source.paths.tolist() == ["b.jpg", "sub/ä, ö.png", "/abs/c.gif"]  # in the order of the list
    assert source.labels is None
    assert source.file(1) == tmp_path / "sub/ä, ö.png"
    assert source.file(2) == Path("/abs/c.gif")


@pytest.mark.parametrize("mark", [",", "\t", ";"])
@pytest.mark.parametrize(
    ("path", "label"), [("path", "label"), ("File", "Class"), ("filename", "label"), ("IMAGE", "class")]
)
def test_table_with_header(tmp_path: Path, mark: str, path: str, label: str) -> None:
    rows = [
        ("id", label, path, "split"),
        ("1", "owl", "a.jpg", "train"),
        ("2", "", "b.jpg", "Test"),
        ("3", "auk", "c.jpg", "training"),
    ]
    source = listed(tmp_path, "\n".join(mark.join(row) for row in rows))
    assert source.paths.tolist() == ["a.jpg", "b.jpg", "c.jpg"]
    assert source.classes == ("auk", "owl")
    assert source.labels is not None
    assert source.splits is not None
    assert source.labels.tolist() == [1, -1, 0]
    assert source.splits.tolist() == ["train", "test", "train"]


@pytest.mark.parametrize("mark", [",", "\t"])
def test_table_without_header(tmp_path: Path, mark: str) -> None:
    source = listed(tmp_path, f"a.jpg{mark}10\nb.jpg{mark}9\nc.jpg{mark}10\n")
    assert source.classes == ("9", "10")  # numbers in their own order
    assert source.labels is not None
    assert source.labels.tolist() == [1, 0, 1]
    assert source.splits is None


def test_header_alone_and_quoted_names(tmp_path: Path) -> None:
    source = listed(tmp_path, 'path\n"a, b.jpg"\nc.jpg\n')
    assert source.paths.tolist() == ["a, b.jpg", "c.jpg"]
    quoted = listed(tmp_path, 'path,label\n"a, b.jpg","x ""y"""\n')
    assert quoted.paths.tolist() == ["a, b.jpg"]
    assert quoted.classes == ('x "y"',)


def test_an_empty_last_cell(tmp_path: Path) -> None:
    source = listed(tmp_path, "a.jpg\towl\nb.jpg\t\n")
    assert source.labels is not None
    assert source.labels.tolist() == [0, -1]


def test_quotes_that_never_end_and_endless_cells_are_bad_lines(tmp_path: Path) -> None:
    """One line each: what follows is read."""
    (tmp_path / "list.csv").write_text(f'path,label\n"a.jpg,owl\nb.jpg,owl\n"{"x" * 200_000}",owl\n')
    message = error(tmp_path / "list.csv")
    assert "2 of 3 lines" in message
    assert "line 2: 1 column where 2 belong; line 4: 0 columns where 2 belong." in message


def test_a_list_that_turns_binary(tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match="is neither a folder of images nor a text list"):
        listed(tmp_path, b"a.jpg\n" * 100_000 + b"\0")


def test_encodings(tmp_path: Path) -> None:
    text = "path,label\nä.jpg,ö\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        source = listed(tmp_path, text.encode(encoding))
        assert source.paths.tolist() == ["ä.jpg"]
        assert source.classes == ("ö",)
    raw = listed(tmp_path, b"latin\xe9.jpg\n")
    assert os.fsencode(raw.file(0)).endswith(b"/latin\xe9.jpg")


def test_validation_in_a_list(tmp_path: Path) -> None:
    stands_in = listed(tmp_path, "path,split\na.jpg,train\nb.jpg,val\n")
    assert stands_in.split("test").paths.tolist() == ["b.jpg"]
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
        (
            "Dear reader\nhello\n",
            "2 of 2 lines of {file} cannot be used: line 1: 'Dear reader' is not an image file",
        ),
        ("a.jpg,x\n\nb.jpg\n", "1 of 2 lines of {file} cannot be used: line 3: 1 column where 2 belong."),
        ("path,label\na.jpg,x,y\n", "line 2: 3 columns where 2 belong."),
        ("path,label\n,x\n", "line 2: no path."),
        ("path,split\na.jpg,dev\n", "line 2: split is 'dev', not train or test."),
        ("a.jpg\n" + "x\n" * 10, "line 4: 'x' is not an image file (no suffix); and 7 more."),
    ],
)
def test_bad_lists(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "list.csv"
    file.write_text(text)
    assert expected.format(file=file) in error(file)


def test_a_file_that_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "archive.zip").write_bytes(b"PK\x03\x04\0\0\0")
    assert "is neither a folder of images nor a text list of them" in error(tmp_path / "archive.zip")


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
    [([4, 0, 4], [4, 0, 4]), (np.array([5, 2]), [5, 2]), (np.arange(6) > 3, [4, 5]), (range(2), [0, 1])],
)
def test_select(indices: Sequence[int], expected: list[int]) -> None:
    source = full_source()
    part = source.select(indices)
    assert len(part) == len(expected)
    for name in ("paths", "labels", "splits", "boxes", "parts", "masks"):
        np.testing.assert_array_equal(getattr(part, name), getattr(source, name)[expected])
    for name in ("root", "kind", "classes", "part_names", "skipped"):
        assert getattr(part, name) == getattr(source, name)


def test_select_nothing() -> None:
    assert len(full_source().select([])) == 0


def test_split() -> None:
    source = full_source()
    assert source.split("train").paths.tolist() == ["0.jpg", "2.jpg", "4.jpg"]
    plain = ImageSource(Path("/data"), "folder", np.array(["a.jpg"]))
    assert plain.split("test") is plain


def test_describe_names_everything() -> None:
    assert full_source().describe() == (
        "cub /data: 6 images, 3 classes, 3 train + 3 test, boxes, masks, 2 parts\n1 other entry left out"
    )


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 paths but 1 labels"):
        ImageSource(Path("/data"), "folder", np.array(["a.jpg", "b.jpg"]), np.array([0]), ("a",))
