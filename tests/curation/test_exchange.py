"""Images and labels to FiftyOne, Label Studio and CVAT, and back, by their own parsers where they are installed.

``FINESIGHT_LABEL_TOOLS`` may name other interpreters, parted by ``:``, that have fiftyone, datumaro or
label-studio-sdk: they need other versions of numpy and pillow than this one. fiftyone also needs
``FIFTYONE_DATABASE_URI``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from PIL import Image

import finesight
from finesight.curation.exchange import export, read
from finesight.curation.findings import Cleaning
from finesight.curation.imported import NewLabels, apply_labels
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from messy_photos import COPIED, WRONG, photo

ODD = ["=1+1.png", 'quote " & <tag>.png', "ünïcode 图.png", "100%25 #?.png", "new\nline.png"]
FORMATS = ("fiftyone", "label-studio", "cvat")


@pytest.fixture(scope="session")
def odd(messy: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Cleaning:
    """Two classes of photos with odd names; one name is no text."""
    root = tmp_path_factory.mktemp("odd") / "photos & more"
    for number, color in enumerate(("a & b", "<c>")):
        (root / color).mkdir(parents=True)
        for i, name in enumerate(ODD):
            photo((50 + 120 * number, 90, 60), 10 * number + i).save(root / color / name)
    photo((50, 90, 60), 99).save(os.fsencode(root / "<c>") + b"/not-\xff-text.png", "PNG")
    return finesight.clean(root, run, progress=False)


def back(found: Cleaning, form: str, file: Path) -> NewLabels:
    return apply_labels(open_source(found.source.root), read(form, file))


def edited(form: str, out: Path, name: str, label: str, dropped: str) -> Path:
    """Do in the files what a person does in the tool: one other label, and one image dropped. -> what is imported"""
    if form == "fiftyone":
        content = json.loads((out / "samples.json").read_text())
        for sample in content["samples"]:
            if sample["filepath"].endswith(name):
                sample["ground_truth"]["label"] = label
            if sample["filepath"].endswith(dropped):
                sample["tags"].append("drop")
        (out / "samples.json").write_text(json.dumps(content))
        return out
    if form == "label-studio":
        tasks = json.loads((out / "tasks.json").read_text())
        for task in tasks:
            given = task["data"]["given"] if task["data"]["path"] != name else label
            results = [choice("label", given)] + [choice("decision", "drop")] * (task["data"]["path"] == dropped)
            task["annotations"] = [{"was_cancelled": False, "result": results}]
        (out / "export.json").write_text(json.dumps(tasks))
        return out / "export.json"
    tree = ET.parse(out / "annotations.xml")
    for image in tree.getroot().iter("image"):
        if image.get("name") == name:
            image.find("tag").set("label", label)
        if image.get("name") == dropped:
            next(a for a in image.iter("attribute") if a.get("name") == "drop").text = "true"
    tree.write(out / "annotations.xml", encoding="utf-8")
    return out / "annotations.xml"


def choice(name: str, value: str) -> dict[str, object]:
    return {"from_name": name, "to_name": "image", "type": "choices", "value": {"choices": [value]}}


@pytest.mark.parametrize("form", FORMATS)
def test_edits_come_back_as_a_list_that_is_data(odd: Cleaning, form: str, tmp_path: Path) -> None:
    written = export(odd, form, tmp_path / "out")
    assert (written.images, written.left_out) == (2 * len(ODD), 1)
    name, dropped = f"a & b/{ODD[1]}", f"<c>/{ODD[2]}"
    labels = back(odd, form, edited(form, tmp_path / "out", name, "<c>", dropped))
    assert (labels.changed, labels.dropped, labels.gone, labels.unclear) == (1, 1, (), ())
    assert labels.unlistable == 2  # a list has one name in a line
    labels.write(tmp_path / "labels.csv")
    source = open_source(tmp_path / "labels.csv")
    given = {str(source.file(i)): source.classes[source.labels[i]] for i in range(len(source))}
    root = odd.source.root
    assert given[str(root / name)] == "<c>"
    assert given[str(root / "a & b" / ODD[0])] == "a & b"
    assert str(root / dropped) not in given
    assert all(Path(file).exists() for file in given)


def test_what_an_export_holds(messy: Path, run: Path, tmp_path: Path) -> None:
    found = finesight.clean(messy, run, progress=False, same=0.99999)
    export(found, "fiftyone", tmp_path / "fo")
    samples = {one["filepath"]: one for one in json.loads((tmp_path / "fo" / "samples.json").read_text())["samples"]}
    suspect = samples[str(messy / WRONG)]
    assert "suspect" in suspect["tags"]
    assert suspect["suggested_label"]["label"] == "red"
    assert suspect["label_wrong"] > 0.5
    assert len(suspect["neighbors"]) == 5
    group = samples[str(messy / COPIED)]["duplicate_group"]
    assert samples[str(messy / "red" / "photo-07.png")]["duplicate_group"] == group is not None
    export(found, "label-studio", tmp_path / "ls", "https://example.org/")
    tasks = {task["data"]["path"]: task for task in json.loads((tmp_path / "ls" / "tasks.json").read_text())}
    assert tasks[WRONG]["predictions"][0]["result"][0]["value"] == {"choices": ["red"]}
    assert tasks[WRONG]["data"]["image"] == f"https://example.org/{WRONG}"
    export(found, "cvat", tmp_path / "cvat")
    images = {one.get("name"): one for one in ET.parse(tmp_path / "cvat" / "annotations.xml").getroot().iter("image")}
    values = {one.get("name"): one.text for one in images[WRONG].iter("attribute")}
    assert values["suggested"] == "red"
    assert images[WRONG].get("width") == str(Image.open(messy / WRONG).width)
    assert values["neighbors"] == ", ".join(tasks[WRONG]["data"]["neighbors"]) == ", ".join(suspect["neighbors"])
    # every image has a cluster, the same in every format, and clusters hold like images
    clusters = {path: task["data"]["cluster"] for path, task in tasks.items()}
    assert clusters == {name: samples[str(messy / str(name))]["cluster"] for name in images}
    for name, image in images.items():
        assert {one.get("name"): one.text for one in image.iter("attribute")}["cluster"] == str(clusters[str(name)])
    assert len(set(clusters.values())) > 1
    assert clusters["red/photo-07.png"] == clusters[COPIED]  # equal pictures


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [
        ("fiftyone", "{]", "no JSON file"),
        ("fiftyone", "[1]", "no samples.json"),
        ("fiftyone", '{"samples": [{"tags": []}]}', "has no filepath"),
        (
            "fiftyone",
            '{"samples": [{"filepath": "/etc/passwd", "ground_truth": {"label": "red"}}]}',
            "leaves the folder",
        ),
        ("label-studio", '{"a": 1}', "no list of tasks"),
        ("label-studio", '[{"path": "../../x.png", "label": "red"}]', "leaves the folder"),
        ("label-studio", '[{"path": "red/gone.png", "label": "red"}]', "None of the labels"),
        ("label-studio", '[{"path": "red/photo-01.png", "label": "bleu"}]', "Nearest: blue"),
        ("label-studio", '[{"annotations": [], "data": {}}]', "names no image"),
        ("cvat", "<annotations><image", "no XML of CVAT"),
        ("cvat", "<html/>", "begins with <html>"),
        ("cvat", "<annotations><track id='1'/></annotations>", "of a video"),
        ("cvat", '<!DOCTYPE a [<!ENTITY b "c">]><annotations>&b;</annotations>', "document type"),
        (
            "cvat",
            "<annotations><image name='/etc/x.png'><tag label='red'/></image></annotations>",
            "leaves the folder",
        ),
        ("datumaro", '{"items": 1}', "no file of a Datumaro dataset"),
    ],
)
def test_files_that_cannot_be_used(messy: Path, tmp_path: Path, form: str, text: str, words: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(FineSightError, match=words):
        apply_labels(open_source(messy), read(form, tmp_path / "file"))


def test_people_who_disagree_change_nothing(messy: Path, tmp_path: Path) -> None:
    votes = [[choice("label", label)] for label in ("red", "blue")]
    task = {"data": {"path": "green/photo-01.png"}, "annotations": [{"result": vote} for vote in votes]}
    more = {"data": {"path": "green/photo-02.png"}, "annotations": [{"result": vote} for vote in [*votes, votes[0]]]}
    (tmp_path / "export.json").write_text(json.dumps([task, more]))
    labels = apply_labels(open_source(messy), read("label-studio", tmp_path / "export.json"))
    assert labels.unclear == ("green/photo-01.png",)
    assert dict(row[:2] for row in labels.rows)[str(messy / "green" / "photo-01.png")] == "green"
    assert dict(row[:2] for row in labels.rows)[str(messy / "green" / "photo-02.png")] == "red"


# --- the tools' own parsers -------------------------------------------------------------------------------------------

PROGRAMS = {
    "fiftyone": """
import fiftyone as fo
dataset = fo.Dataset.from_dir(IN, dataset_type=fo.types.FiftyOneDataset)
assert len(dataset) == 10 and dataset.first().embedding.ndim == 1
sample = dataset[FILE]
sample.ground_truth.label = "<c>"
sample.save()
dataset.export(export_dir=OUT, dataset_type=fo.types.FiftyOneDataset, export_media=False)
dataset.delete()
""",
    "datumaro": """
import datumaro as dm, os
os.symlink(ROOT, IN + "/images")
dataset = dm.Dataset.import_from(IN, "cvat")
assert len(dataset) == 10
label = dataset.categories()[dm.AnnotationType.label].find("<c>")[0]
for item in dataset:
    if item.id == NAME.removesuffix(".png"):
        item.annotations[0].label = label
dataset.export(OUT, "datumaro", save_media=False)
""",
    "label_studio_sdk": """
import json
from label_studio_sdk.converter import Converter
from label_studio_sdk.label_interface import LabelInterface
config = open(IN + "/config.xml").read()
interface = LabelInterface(config)
interface.validate()
tasks = json.load(open(IN + "/tasks.json"))
for number, task in enumerate(tasks):
    assert interface.validate_task({"data": task["data"]})
    assert all(interface.validate_prediction(one) for one in task["predictions"])
    result = task["predictions"][0]["result"]
    result[0]["value"]["choices"] = ["<c>"] if task["data"]["path"] == NAME else [task["data"]["given"]]
    stamp = "2026-01-01T00:00:00Z"
    known = {"id": number, "completed_by": 1, "was_cancelled": False, "created_at": stamp, "updated_at": stamp}
    task |= {"id": number, "annotations": [known | {"result": result}]}
json.dump(tasks, open(IN + "/done.json", "w"))
Converter(config, OUT, download_resources=False).convert_to_json_min(IN + "/done.json", OUT, is_dir=False)
""",
}
WRITTEN = {
    "fiftyone": ("fiftyone", ""),
    "datumaro": ("datumaro", ""),
    "label_studio_sdk": ("label-studio", "result.json"),
}


def python_with(package: str) -> str:
    """Return an interpreter that has a package; skip the test where none has."""
    for python in [sys.executable, *filter(None, os.environ.get("FINESIGHT_LABEL_TOOLS", "").split(":"))]:
        asked = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if subprocess.run([python, "-c", asked], check=False, env=clean_environment()).returncode == 0:
            return python
    pytest.skip(f"{package} is not installed: name an interpreter that has it in FINESIGHT_LABEL_TOOLS")


def clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "FIFTYONE_DO_NOT_TRACK": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("package", PROGRAMS)
def test_the_tool_itself_reads_it_and_writes_what_is_read(odd: Cleaning, package: str, tmp_path: Path) -> None:
    python = python_with(package)
    if package == "fiftyone" and "FIFTYONE_DATABASE_URI" not in os.environ:
        pytest.skip("fiftyone needs a MongoDB server: set FIFTYONE_DATABASE_URI")
    tool = {"fiftyone": "fiftyone", "datumaro": "cvat", "label_studio_sdk": "label-studio"}[package]
    export(odd, tool, tmp_path / "in")
    name, root = f"a & b/{ODD[1]}", odd.source.root
    places = {"IN": tmp_path / "in", "OUT": tmp_path / "out", "ROOT": root, "FILE": root / name, "NAME": name}
    head = "".join(f"{key} = {str(value)!r}\n" for key, value in places.items())
    done = subprocess.run(
        [python, "-c", head + PROGRAMS[package]], capture_output=True, text=True, check=False, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr[-2000:]
    form, file = WRITTEN[package]
    labels = back(odd, form, tmp_path / "out" / file)
    assert (labels.changed, labels.dropped, labels.gone) == (1, 0, ())
    assert dict(row[:2] for row in labels.rows)[str(root / name)] == "<c>"
