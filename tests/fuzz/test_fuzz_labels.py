"""Damaged labels of other tools: a list of labels or a sentence, never anything else."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from finesight.curation.clean import clean
from finesight.curation.exchange import export, read
from finesight.curation.imported import apply_labels
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from fuzzing import any_json, damage, damages, fuzzed, with_other_value, within_bounds
from indexes import small_encoder

FILES = {
    "cvat": "annotations.xml",
    "fiftyone": "samples.json",
    "label-studio": "tasks.json",
    "datumaro": "annotations/default.json",
}


@pytest.fixture(scope="module")
def source(class_folders: Path) -> ImageSource:
    return open_source(class_folders)


@pytest.fixture(scope="module")
def whole(source: ImageSource, class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of each tool: three as FineSight writes them, with a person's answers, and a small Datumaro set."""
    folder = tmp_path_factory.mktemp("labels")
    encoder = Encoder.load(small_encoder(folder / "run"))
    found = clean(class_folders, encoder, cache_dir=folder / "cache", progress=False)
    for tool in ("cvat", "fiftyone", "label-studio"):
        export(found, tool, folder / tool)
    tasks = json.loads((folder / "label-studio" / "tasks.json").read_text())[:6]
    for task in tasks:
        chosen = {"from_name": "label", "type": "choices", "value": {"choices": [source.classes[0]]}}
        dropped = {"from_name": "decision", "type": "choices", "value": {"choices": ["drop"]}}
        task["annotations"] = [{"result": [chosen, dropped], "was_cancelled": False}]
    samples = json.loads((folder / "fiftyone" / "samples.json").read_text())["samples"][:6]
    annotation = {"type": "label", "label_id": 0, "attributes": {"drop": "false"}}
    items = [{"id": path[:-4], "image": {"path": path}, "annotations": [annotation]} for path in source.paths[:6]]
    labels = [{"name": name} for name in source.classes]
    return {
        "cvat": (folder / "cvat" / "annotations.xml").read_bytes(),
        "fiftyone": json.dumps({"samples": samples}).encode(),
        "label-studio": json.dumps(tasks).encode(),
        "datumaro": json.dumps({"categories": {"label": {"labels": labels}}, "items": items}).encode(),
    }


def imported(source: ImageSource, form: str, content: bytes, folder: Path) -> int:
    """How many images have a label then; 0 with a sentence."""
    file = folder / Path(FILES[form]).name
    file.write_bytes(content)
    with within_bounds(), suppress(FineSightError):
        labels = apply_labels(source, read(form, file), new_labels=True)
        labels.write(folder / "labels.csv")
        json.dumps(labels.to_json())
        return len(labels.rows)
    return 0


@pytest.mark.parametrize("form", FILES)
def test_whole_files_are_read(source: ImageSource, whole: dict[str, bytes], form: str, tmp_path: Path) -> None:
    assert imported(source, form, whole[form], tmp_path) > 40


@pytest.mark.parametrize("name", [["wren"], True, None])
def test_names_that_are_no_text(source: ImageSource, whole: dict[str, bytes], tmp_path: Path, name: object) -> None:
    content = json.loads(whole["datumaro"])
    content["categories"]["label"]["labels"][0]["name"] = name
    assert imported(source, "datumaro", json.dumps(content).encode(), tmp_path) == 0


@fuzzed
@given(form=st.sampled_from(list(FILES)), changes=damages())
@example(form="cvat", changes=[("put", 0.0, b'<?xml version="1.0" encoding="utf-7"?><annotations/>')])
@example(form="cvat", changes=[("put", 0.0, b'<?xml version="1.0" encoding="cp932"?><annotations/>')])
def test_bytes(
    source: ImageSource, whole: dict[str, bytes], tmp_path: Path, form: str, changes: list[tuple[str, float, bytes]]
) -> None:
    imported(source, form, damage(whole[form], changes), tmp_path)


@fuzzed
@given(form=st.sampled_from(["fiftyone", "label-studio", "datumaro"]), place=st.floats(0, 1), value=any_json)
def test_values(
    source: ImageSource, whole: dict[str, bytes], tmp_path: Path, form: str, place: float, value: object
) -> None:
    changed = with_other_value(json.loads(whole[form]), place, value)
    imported(source, form, json.dumps(changed).encode(), tmp_path)


@fuzzed
@given(
    form=st.sampled_from(list(FILES)),
    data=st.one_of(any_json.map(lambda value: json.dumps(value).encode()), st.binary(max_size=100)),
)
@example(form="fiftyone", data=b"[" * 100_000)
@example(form="datumaro", data=b'{"items": ' * 50_000)
@example(form="cvat", data=b"<annotations>" + b"<image>" * 100_000)
def test_other_files(source: ImageSource, tmp_path: Path, form: str, data: bytes) -> None:
    imported(source, form, data, tmp_path)
