import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from finesight.cli.datasets import datasets_app
from finesight.data.layouts.layout import LAYOUTS, DirectoryTree, open_dataset, ordered_layouts, recognize_layout
from finesight.data.named_path import absolute_named_path, short_named_path, split_named_path
from finesight.data.sources import open_source
from finesight.data.verification import verify
from finesight.errors import FineSightError
from finesight.paper.networks import settings
from finesight.training.config import build_config
from processes import TINY, command, succeeded

LISTED = [layout for layout in ordered_layouts() if layout.listed]


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(datasets_app, [*map(str, args)])


def error(data: str) -> str:
    with pytest.raises(FineSightError) as caught:
        open_source(data)
    return str(caught.value)


@pytest.fixture
def linked(cub_root: Path, tmp_path: Path) -> Path:
    """The real birds, to break: annotations copied, folders of images linked."""
    root = tmp_path / "CUB_200_2011"
    (root / "parts").mkdir(parents=True)
    (root / "images").mkdir()
    for file in (*cub_root.glob("*.txt"), *cub_root.glob("parts/*.txt")):
        (root / file.relative_to(cub_root)).write_bytes(file.read_bytes())
    for folder in (cub_root / "images").iterdir():
        (root / "images" / folder.name).symlink_to(folder)
    return root


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("cub:data/CUB", ("cub", "data/CUB")),
        ("CUB:/data/CUB", ("cub", "/data/CUB")),
        ("inat2019:a:b", ("inat2019", "a:b")),
        ("lookalikes:~/birds", ("lookalikes", "~/birds")),
        (Path("cars:/data/cars"), ("cars", "/data/cars")),
        ("data/CUB", (None, "data/CUB")),
        (r"C:\data\cub", (None, r"C:\data\cub")),
        ("C:/data", (None, "C:/data")),
        ("https://example.org/cub", (None, "https://example.org/cub")),
        ("./cub:x", (None, "./cub:x")),
        ("photos:of nothing near", (None, "photos:of nothing near")),
        ("", (None, "")),
    ],
)
def test_names_and_paths(data: str | Path, expected: tuple[str | None, str]) -> None:
    assert split_named_path(data) == expected


def test_what_exists_wins(tmp_path: Path, picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    picture("cub:birds/a.jpg")
    (tmp_path / "cup:list.txt").write_text("cub:birds/a.jpg\n")
    monkeypatch.chdir(tmp_path)
    assert open_source("cub:birds").kind == "folder"
    assert open_source("cup:list.txt").file(0).is_file()
    assert absolute_named_path("cub:birds") == str(tmp_path / "cub:birds")


def test_a_mistyped_name(tmp_path: Path) -> None:
    assert error("cifar10:x") == "There is no dataset 'cifar10'. Nearest: cifar100, cars, inat2019."
    assert error("aircrafts:x").startswith("There is no dataset 'aircrafts'. Nearest: aircraft")
    assert error(f"dogs:{tmp_path}").startswith("There is no dataset 'dogs'. Nearest: ")  # what follows exists
    assert error("dogs:nowhere").endswith("give --data a folder of images or a list of image paths")


def test_no_folder_behind_the_name() -> None:
    assert error("cub:") == "cub: names no folder; write cub:PATH"
    gone = Path("gone").absolute()
    assert error("cub:gone") == f"{gone} does not exist; cub: takes the folder of CUB-200-2011"


def test_paths_are_located_behind_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_named_path("cub:CUB") == f"cub:{tmp_path}/CUB"
    assert absolute_named_path("CUB") == f"{tmp_path}/CUB"
    assert absolute_named_path("cub:~/CUB") == f"cub:{Path.home()}/CUB"
    assert short_named_path("cub:a/CUB") == "cub:CUB"
    assert short_named_path("a/CUB") == "CUB"
    config = build_config({"data": "cub:a/CUB"})
    assert config.located().data == f"cub:{tmp_path}/a/CUB"
    assert settings(config)["data"] == settings(config.located())["data"] == "CUB"
    assert settings(build_config({"data": "cub:CUB"}))["data"] == "CUB"


# --- trees ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_plain_folder_is_none_of_them(name: str, tmp_path: Path, picture: Callable[..., Path]) -> None:
    picture("a.jpg")
    assert recognize_layout(tmp_path) is None
    message = error(f"{name}:{tmp_path}")
    assert message.startswith(f"{tmp_path} is not ")
    assert any(all(path in message for path, _ in tree.needed) for tree in LAYOUTS[name].trees)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_needed_path_counts(name: str, tmp_path: Path) -> None:
    for number, form in enumerate(LAYOUTS[name].trees):
        root = tmp_path / str(number)
        paths = [path for path, _ in form.needed]
        for i, path in enumerate(paths):
            assert form.missing(root) == paths[i:]
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).mkdir() if path.endswith("/") else (root / path).touch()
        assert form.missing(root) == []


def test_files_may_lie_beside_the_inner_folder(tmp_path: Path) -> None:
    form = DirectoryTree("x", (("kit/a.mat", ""), ("b/", "")), inner="kit/")
    (tmp_path / "a.mat").touch()
    assert form.missing(tmp_path) == ["b/"]


def test_the_folder_above_is_an_easy_mistake(linked: Path) -> None:
    message = error(f"cub:{linked.parent}")
    assert message.endswith(f"CUB_200_2011/ in it looks like it: give cub:{linked}")


def test_a_file_is_no_dataset(tmp_path: Path, picture: Callable[..., Path]) -> None:
    assert "is not CUB-200-2011: images/, images.txt" in error(f"cub:{picture('a.jpg')}")


def test_drawn_birds_by_name(birds: Path) -> None:
    assert open_source(f"lookalikes:{birds}").kind == "lookalikes"
    assert recognize_layout(birds) is LAYOUTS["lookalikes"]


def test_a_name_decides_what_a_tree_is(linked: Path) -> None:
    (linked / "lookalikes.json").write_text("{}")
    assert open_source(f"cub:{linked}").kind == "cub"
    assert "lookalikes.json cannot be read" in error(f"lookalikes:{linked}")


# --- the whole of it --------------------------------------------------------------------------------


def test_the_real_birds_are_whole(cub_root: Path) -> None:
    source = open_source(f"cub:{cub_root}")
    assert (source.kind, len(source)) == ("cub", 11788)
    found = verify(cub_root)
    assert found.complete
    assert (found.images, found.train, found.test, found.classes, found.parts) == (11788, 5994, 5794, 200, 15)


def test_a_part_is_refused_by_name_only(linked: Path) -> None:
    for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt"):
        rows = (linked / name).read_text().splitlines(keepends=True)
        (linked / name).write_text("".join(rows[30:]))  # half of the first species
    rows = (linked / "parts/part_locs.txt").read_text().splitlines(keepends=True)
    (linked / "parts/part_locs.txt").write_text("".join(rows[30 * 15 :]))
    assert len(open_source(linked)) == 11758
    message = error(f"cub:{linked}")
    assert message.startswith(f"{linked} is not the whole CUB-200-2011: ")
    assert "of 5,994 train images missing" in message
    assert "fewer than 29 train images in 1 class (001.Black_footed_Albatross 1" in message
    assert message.endswith("Complete it, or leave out cub: to use what is there")
    done = run("verify", linked, "--strict")
    assert done.exit_code == 1
    assert "not the whole CUB-200-2011" in done.stdout


def test_files_that_are_listed_but_gone(linked: Path, cub_root: Path) -> None:
    species = linked / "images" / "200.Common_Yellowthroat"
    names = sorted(os.listdir(species))
    species.unlink()
    species.mkdir()
    for name in names[5:]:
        (species / name).symlink_to(cub_root / "images" / species.name / name)
    assert len(open_source(linked)) == 11788  # found out while reading
    message = error(f"cub:{linked}")
    assert "5 of 11,788 listed files are not there (images/200.Common_Yellowthroat/" in message
    assert "and 2 more" in message


def test_the_name_survives_training(birds: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    succeeded(command("train", "--data", f"lookalikes:{birds}", "--out", out, "--epochs", "1", *TINY))
    assert yaml.safe_load((out / "config.yaml").read_text())["data"] == f"lookalikes:{birds}"
    succeeded(command("embed", out, f"lookalikes:{birds}", "-o", tmp_path / "features.npz", "--quiet"))


# --- the command ------------------------------------------------------------------------------------


def test_all_are_listed() -> None:
    out = run().stdout
    for entry in LISTED:
        assert all(words in out for words in (entry.title, entry.download, entry.homepage, f"--data {entry.name}:PATH"))
        assert all(path in out for tree in entry.trees for path, _ in tree.needed)
    assert "265,213 train + 3,030 test" in out
    assert "gone since 2023" in out


def test_the_list_for_scripts() -> None:
    listed = json.loads(run("--json").stdout)
    assert list(listed) == ["cub", "cars", "aircraft", "inat2019", "cifar100"]
    for layout in LISTED:
        facts, official = listed[layout.name], layout.official
        assert official is not None
        assert (facts["train"], facts["test"], facts["classes"]) == (official.train, official.test, official.classes)
    assert listed["cub"]["images_of_smallest_class"] == {"train": 29, "test": 11}
    assert listed["cars"]["images_of_smallest_class"] == {"train": None, "test": None}


def test_one_is_shown() -> None:
    assert "train_test_split.txt" in run("show", "CUB").stdout
    assert json.loads(run("show", "cub", "--json").stdout)["title"] == "CUB-200-2011"
    assert str(run("show", "cup").exception).startswith("There is no dataset 'cup'. Nearest: cub")


def test_json_before_the_command_is_refused(tmp_path: Path) -> None:
    assert "behind the command" in str(run("--json", "verify", tmp_path).exception)


def test_verify(cub_root: Path) -> None:
    done = run("verify", cub_root, "--strict")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{cub_root}: complete: ")
    facts = json.loads(run("verify", f"cub:{cub_root}", "--json").stdout)
    assert facts["complete"] is True
    assert facts["problems"] == []
    assert facts["official"] == {"train": 5994, "test": 5794, "classes": 200}


def test_verify_describes_what_cannot_be_opened(linked: Path) -> None:
    (linked / "classes.txt").unlink()
    for data in (str(linked), f"cub:{linked}"):
        facts = json.loads(run("verify", data, "--json").stdout)
        assert (facts["dataset"], facts["complete"], facts["images"]) == ("cub", False, None)
        assert "classes.txt is missing" in facts["problems"][0]
        assert run("verify", data).exit_code == 0
        assert run("verify", data, "--strict").exit_code == 1


def test_verify_what_is_no_dataset(birds: Path, class_folders: Path, tmp_path: Path) -> None:
    for folder in (birds, class_folders):
        done = run("verify", folder)
        assert "none of the named datasets" in done.stdout
        assert done.exit_code == 0
        assert run("verify", folder, "--strict").exit_code == 1
    assert "are missing" in run("verify", f"cars:{class_folders}").stdout
    assert "does not exist" in str(run("verify", tmp_path / "gone").exception)
    assert "does not exist" in str(run("verify", f"cub:{tmp_path / 'gone'}").exception)


def test_check_says_first_whether_it_is_whole(tmp_path: Path, picture: Callable[..., Path]) -> None:
    for name in ("a", "b"):
        picture(f"CUB/images/001.Owl/{name}.jpg", seed=ord(name))
    (tmp_path / "CUB/parts").mkdir()
    for name, text in {
        "images.txt": "1 001.Owl/a.jpg\n2 001.Owl/b.jpg\n",
        "classes.txt": "1 001.Owl\n",
        "image_class_labels.txt": "1 1\n2 1\n",
        "train_test_split.txt": "1 0\n2 1\n",
        "bounding_boxes.txt": "1 1 1 9 9\n2 1 1 9 9\n",
        "parts/parts.txt": "1 bill\n",
        "parts/part_locs.txt": "1 1 2 2 1\n",
    }.items():
        (tmp_path / "CUB" / name).write_text(text)
    lines = run("check", tmp_path / "CUB", "--quiet").stdout.splitlines()
    assert lines[0].startswith("cub ")
    assert lines[1].startswith("not the whole CUB-200-2011: 5,993 of 5,994 train images missing")
    assert lines[2] == "2 of 2 images readable"
    facts = json.loads(run("check", tmp_path / "CUB", "--quiet", "--json").stdout)
    assert facts["verification"]["complete"] is False
    shown = succeeded(command("inspect", tmp_path / "CUB")).out
    assert f"to demand all of it, write cub:{tmp_path / 'CUB'}" in shown


def test_open_as_is_lenient_about_counts(tmp_path: Path, birds: Path) -> None:
    assert open_dataset(LAYOUTS["lookalikes"], birds).kind == "lookalikes"
