"""What every dataset layout must do, checked on a small copy of each form it comes in (tests/layouts.py)."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from finesight.cli.datasets import datasets_app
from finesight.cli.inspect import inspect
from finesight.data.layouts.layout import (
    LAYOUTS,
    DatasetLayout,
    DirectoryTree,
    open_dataset,
    recognize_layout,
)
from finesight.data.sources import open_source
from finesight.data.verification import describe_differences, verify
from finesight.errors import FineSightError
from layouts import EXAMPLES, Example, facts
from processes import environment

FORMS = [builder for name in LAYOUTS for builder in EXAMPLES.get(name, [])]
LISTED = [layout for layout in LAYOUTS.values() if layout.listed]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINESIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=FORMS, ids=lambda builder: builder.__name__)
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Example:
    return request.param(tmp_path / "data")


def layout_of(example: Example) -> DatasetLayout:
    return LAYOUTS[example.layout]


def error(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(FineSightError) as caught:
        call(*arguments)
    return str(caught.value)


def needed(example: Example) -> list[str]:
    """The paths of the form that the example has."""
    return next([p for p, _ in tree.needed] for tree in layout_of(example).trees if not tree.missing(example.root))


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(datasets_app, [*map(str, args)])


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_an_example(name: str) -> None:
    assert name in EXAMPLES, f"add a small copy of {name} to EXAMPLES in tests/layouts.py: it is tested by that"
    forms = [tree.folder for tree in LAYOUTS[name].trees]
    assert len(EXAMPLES[name]) == len(forms), f"{name} comes in {len(forms)} forms: {forms}"


# --- a copy -------------------------------------------------------------------------------------------


def test_it_is_recognized_and_opened(example: Example, tmp_path: Path) -> None:
    layout = layout_of(example)
    assert recognize_layout(example.root) is layout
    assert [other.name for other in LAYOUTS.values() if other.recognizes(example.root)] == [example.layout]
    source = open_source(example.root)
    assert source.kind == example.layout
    assert facts(source) == facts(example)
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.boxes is None or source.boxes.dtype == np.float32
    assert layout.super_categories(source) == example.super_categories
    assert layout.super_categories(source.split("test").select([0])) == example.super_categories
    assert all(source.file(i).is_file() for i in range(len(source)))
    trains = example.splits.count("train")
    counts = f"{trains} train + {len(example.splits) - trains} test"
    assert f"{len(source)} images, {len(source.classes)} classes, {counts}" in source.describe()
    (tmp_path / "linked").symlink_to(example.root)
    assert facts(open_source(tmp_path / "linked")) == facts(source)


def test_every_part_of_the_tree_is_missed(example: Example, tmp_path: Path) -> None:
    layout = layout_of(example)
    for number, path in enumerate(needed(example)):
        copy = Path(shutil.copytree(example.root, tmp_path / str(number)))
        remove(copy / path)
        assert path in next(iter(tree.missing(copy) for tree in layout.trees if path in dict(tree.needed)))
        message = error(open_source, f"{example.layout}:{copy}")
        assert layout.title in message
        assert path.rstrip("/").rpartition("/")[2] in message
        assert "missing" in message
        if layout.recognizes(copy):  # a partial copy is not taken for a plain folder of images
            assert error(open_source, copy).endswith("copy the dataset again")


def test_a_single_missing_image_is_left_to_the_reader(example: Example) -> None:
    if not example.listed:
        pytest.skip("the images are what lies in the folders")
    file = open_source(example.root).file(0)
    file.rename(file.with_suffix(".bmp"))  # another format is another file
    source = open_source(example.root)
    assert facts(source) == facts(example)
    assert not source.file(0).exists()
    if layout_of(example).official:
        listed = f"1 of {len(source)} listed files are not there ({source.paths[0]})"
        assert verify(example.root).problems[-1] == listed


def test_damaged_files_are_an_error(example: Example, tmp_path: Path) -> None:
    """Other content is an error that names the file; cut short or with a wrong byte, an error or images."""
    rng = np.random.default_rng(0)
    for path in needed(example):
        file = example.root / path
        if file.is_dir():
            continue
        data = file.read_bytes()
        for content in (b"", b"\xff\xfe\0", b"<html>not found</html>" * 20):
            file.write_bytes(content)
            assert str(file.name) in error(open_dataset, layout_of(example), example.root)
        for part in (*(0.3, 0.6, 0.95), *[1.0] * 20):
            broken = bytearray(data[: int(len(data) * part)])
            broken[int(rng.integers(min(len(broken), 600)))] ^= int(rng.integers(1, 256)) * (part == 1)
            file.write_bytes(broken)
            try:
                open_dataset(layout_of(example), example.root)
            except FineSightError as caught:
                assert str(example.root) in str(caught)  # noqa: PT017
        file.write_bytes(data)
    assert facts(open_source(example.root)) == facts(example)


def test_files_nobody_may_read_are_not_called_damaged(example: Example, no_access: Callable[[Path], Any]) -> None:
    if not example.listed:
        pytest.skip("there are no files but the images")
    file = next(example.root / path for path in needed(example)[::-1] if not path.endswith("/"))
    with no_access(file):
        message = error(open_source, example.root)
    assert "permission denied" in message.lower()
    assert "damaged" not in message


def test_the_folder_above_is_an_easy_mistake(example: Example) -> None:
    layout, above = layout_of(example), example.root.parent
    if layout.recognizes(above):
        assert facts(open_dataset(layout, above)) == facts(example)
    else:
        message = error(open_dataset, layout, above)
        assert message.endswith(f"{example.root.name}/ in it looks like it: give {layout.name}:{example.root}")


def test_part_of_a_dataset_is_refused_by_name_only(example: Example) -> None:
    layout, source = layout_of(example), open_source(example.root)
    found = json.loads(run("verify", example.root, "--json").stdout)
    assert (found["images"], found["classes"], found["boxes"]) == (
        len(source),
        len(source.classes),
        bool(example.boxes),
    )
    assert run("verify", example.root, "--strict").exit_code == 1
    if layout.official is None:
        assert found["dataset"] is found["official"] is describe_differences(source) is None
        assert facts(open_source(f"{layout.name}:{example.root}")) == facts(example)
        return
    missing = layout.official.train - example.splits.count("train")
    words = f"{missing:,} of {layout.official.train:,} train images missing; "
    assert (found["dataset"], found["complete"]) == (example.layout, False)
    assert found["problems"][0] == words[:-2]
    assert (describe_differences(source) or "").startswith(f"not the official {layout.name}: {words}")
    message = error(open_source, f"{layout.name}:{example.root}")
    assert message.startswith(f"{example.root} is not the whole {layout.title}: {words}")
    assert message.endswith(f"Complete it, or leave out {layout.name}: to use what is there")
    assert f"not the whole {layout.title}" in run("verify", f"{layout.name}:{example.root}").stdout


# --- other folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_folders_are_not_taken_for_it(name: str, tmp_path: Path, picture: Callable[..., Path]) -> None:
    layout = LAYOUTS[name]
    file = picture("plain/a.jpg")
    for split in ("train", "test"):
        picture(f"splits/{split}/b/c.jpg")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "plain", tmp_path / "splits", tmp_path / "empty"):
        assert not layout.recognizes(folder)
        message = error(open_source, f"{name}:{folder}")
        assert message.startswith(f"{folder} is not {layout.title}: ")
        assert any(all(path in message for path, _ in tree.needed) for tree in layout.trees)
        assert message.endswith(f"`finesight datasets show {name}` prints what belongs there")
    assert f"is not {layout.title}: " in error(open_source, f"{name}:{file}")
    gone = tmp_path / "gone"
    assert error(open_source, f"{name}:{gone}") == f"{gone} does not exist; {name}: takes the folder of {layout.title}"


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_file_or_folder_is_not_enough(name: str, tmp_path: Path) -> None:
    """Unless it is the only one of the tree: anyone may have a folder called images."""
    for number, (path, _) in enumerate(row for tree in LAYOUTS[name].trees for row in tree.needed):
        root = tmp_path / str(number)
        (root / path).parent.mkdir(parents=True)
        (root / path).mkdir() if path.endswith("/") else (root / path).write_text("a list of images, say")
        alone = any(len(tree.needed) == 1 for tree in LAYOUTS[name].trees)
        assert LAYOUTS[name].recognizes(root) is alone


def test_files_may_lie_beside_the_inner_folder(tmp_path: Path) -> None:
    tree = DirectoryTree("x", (("kit/a.mat", ""), ("b/", "")), inner="kit/")
    (tmp_path / "a.mat").touch()
    assert tree.missing(tmp_path) == ["b/"]


def test_a_name_decides_what_a_folder_is(tmp_path: Path) -> None:
    root = EXAMPLES["cub"][0](tmp_path).root
    (root / "lookalikes.json").write_text("{}")
    assert open_source(root).kind == "cub"
    assert "lookalikes.json cannot be read" in error(open_source, f"lookalikes:{root}")


def test_the_layout_of_the_guide_works(tmp_path: Path) -> None:
    """docs/datasets.md, in a process of its own: the registry of this one stays as it is."""
    guide = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    program = guide.partition("```python\n")[2].partition("```")[0]
    program += "import sys\nfrom finesight.data.sources import open_source\nprint(open_source(sys.argv[1]).describe())"
    (tmp_path / "images").mkdir(parents=True)
    (tmp_path / "toy.txt").write_text("images/a.jpg owl train\nimages/b.jpg wren test\n")
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout == f"toy {tmp_path}: 2 images, 2 classes, 1 train + 1 test\n"


# --- the commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_is_shown(name: str) -> None:
    layout = LAYOUTS[name]
    out = run("show", name.upper()).stdout
    assert all(words in out for words in (layout.title, layout.download, layout.homepage, layout.note))
    assert all(f"{path} " in out for tree in layout.trees for path, _ in (*tree.needed, *tree.optional))
    assert f"--data {name}:PATH" in out
    found = json.loads(run("show", name, "--json").stdout)
    assert (found["title"], found["get"], found["home"]) == (layout.title, layout.download, layout.homepage)
    assert found["train"] == (layout.official and layout.official.train)
    assert (out in run().stdout) is layout.listed


def test_all_are_listed_for_scripts() -> None:
    listed = json.loads(run("--json").stdout)
    assert list(listed) == [layout.name for layout in LISTED]
    assert list(listed)[:5] == ["cub", "cars", "aircraft", "inat2019", "cifar100"]
    for layout in LISTED:
        if official := layout.official:
            keys = ("train", "test", "classes")
            assert [listed[layout.name][key] for key in keys] == [getattr(official, key) for key in keys]
    assert listed["cub"]["images_of_smallest_class"] == {"train": 29, "test": 11}
    assert listed["cars"]["images_of_smallest_class"] == {"train": None, "test": None}


def test_mistakes_of_the_commands(tmp_path: Path, class_folders: Path) -> None:
    assert str(run("show", "cup").exception).startswith("There is no dataset 'cup'. Nearest: cub")
    assert "behind the command" in str(run("--json", "verify", tmp_path).exception)
    assert "does not exist" in str(run("verify", tmp_path / "gone").exception)
    assert "does not exist" in str(run("verify", f"cub:{tmp_path / 'gone'}").exception)
    done = run("verify", class_folders)
    assert (done.exit_code, "none of the named datasets" in done.stdout) == (0, True)
    assert "are missing" in run("verify", f"cars:{class_folders}").stdout


def test_check_and_inspect_say_whether_it_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = EXAMPLES["cub"][0](tmp_path).root
    lines = run("check", root, "--quiet").stdout.splitlines()
    assert lines[0].startswith("cub ")
    assert lines[1].startswith("not the whole CUB-200-2011: 5,993 of 5,994 train images missing")
    assert lines[2] == "2 of 2 images readable"
    assert json.loads(run("check", root, "--quiet", "--json").stdout)["verification"]["complete"] is False
    inspect(str(root))
    assert f"to demand all of it, write cub:{root}" in capsys.readouterr().out
    (root / "classes.txt").unlink()
    for data in (str(root), f"cub:{root}"):
        found = json.loads(run("verify", data, "--json").stdout)
        assert (found["dataset"], found["complete"], found["images"]) == ("cub", False, None)
        assert "classes.txt is missing" in found["problems"][0]
