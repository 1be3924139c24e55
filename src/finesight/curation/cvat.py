"""CVAT: annotations as "CVAT for images 1.1", the labels of a task, and both of its exports back (CVAT, Datumaro)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import XMLGenerator
from xml.sax.xmlreader import AttributesImpl

from finesight.curation.imported import Imported, read_json, require
from finesight.curation.samples import Sample
from finesight.errors import FineSightError
from finesight.io.atomic import atomic_path, write_atomic

ANNOTATIONS, LABELS = "annotations.xml", "labels.json"
UNLABELED = "unlabeled"  # a tag needs a label of the task
NONE = AttributesImpl({})
BLOCK = 1 << 16  # bytes that are parsed at a time
ATTRIBUTES = ("suggested", "label_wrong", "findings", "cluster", "duplicate_group", "neighbors", "drop")


def write(out: Path, samples: Sequence[Sample], classes: Sequence[str]) -> list[str]:
    """Write ``annotations.xml`` to be uploaded to a task, and ``labels.json`` for the raw form of its labels."""
    out.mkdir(parents=True, exist_ok=True)
    names = [*classes, *([UNLABELED] if any(sample.label is None for sample in samples) else [])]
    labels = [{"name": name, "type": "tag", "attributes": [_attribute(a) for a in ATTRIBUTES]} for name in names]
    write_atomic(out / LABELS, json.dumps(labels, indent=1, ensure_ascii=False) + "\n")
    with atomic_path(out / ANNOTATIONS) as scratch, scratch.open("w", encoding="utf-8") as stream:
        page = XMLGenerator(stream, "utf-8", short_empty_elements=True)
        page.startDocument()
        page.startElement("annotations", NONE)
        _element(page, "version", "1.1")
        page.startElement("meta", NONE)
        page.startElement("task", NONE)
        _element(page, "size", str(len(samples)))
        page.startElement("labels", NONE)
        for label in labels:
            _label(page, label)
        for name in ("labels", "task", "meta"):
            page.endElement(name)
        for number, sample in enumerate(samples):
            _image(page, number, sample)
        page.endElement("annotations")
        page.endDocument()
    return [ANNOTATIONS, LABELS]


def read(path: Path) -> Iterator[Imported]:
    """Yield the images of an ``annotations.xml`` (CVAT for images 1.1) that have tags."""
    file = path / ANNOTATIONS if path.is_dir() else path
    try:
        reader = _Reader(file)
        with file.open("rb") as stream:
            while block := stream.read(BLOCK):
                reader.parser.Parse(block)
                yield from reader.done
                reader.done.clear()
        reader.parser.Parse(b"", True)
    except OSError as error:
        raise FineSightError(f"{file} cannot be read: {error.strerror}.") from error
    except (expat.ExpatError, ValueError, LookupError) as error:  # also of an encoding that expat does not know
        raise FineSightError(f"{file} is no XML of CVAT for images 1.1: {error}.") from error


def read_datumaro(path: Path) -> Iterator[Imported]:
    """Yield the items of a Datumaro dataset: the folder with ``annotations/``, or one of its JSON files."""
    files = sorted((path / "annotations").glob("*.json")) if path.is_dir() else [path]
    require(bool(files), f"{path} has no annotations/*.json: it is no dataset of Datumaro.")
    for file in files:
        content = read_json(file, "a Datumaro dataset")
        try:
            names = [label["name"] for label in content["categories"]["label"]["labels"]]
            require(all(isinstance(name, str) for name in names), f"{file} has a label whose name is no text.")
            for item in content["items"]:
                image = item.get("image") or item.get("media") or {}
                found = [one for one in item["annotations"] if one["type"] == "label"]
                labels = tuple(names[one["label_id"]] for one in found if names[one["label_id"]] != UNLABELED)
                drop = any(_is_true(one.get("attributes", {}).get("drop")) for one in found)
                yield Imported(item["id"] + PurePosixPath(image.get("path", "")).suffix, labels, drop)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise FineSightError(f"{file} is no file of a Datumaro dataset: {error!r}.") from error


class _Reader:
    """Collects the tags of one image at a time while an XML file is parsed; nothing else of it is kept."""

    def __init__(self, file: Path) -> None:
        self.file, self.depth, self.done = file, 0, list[Imported]()
        self.name, self.labels, self.drop, self.asked, self.text = "", list[str](), False, False, ""
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def _doctype(self, *_: Any) -> None:
        raise FineSightError(f"{self.file} has a document type, which CVAT does not write: it is not read.")

    def _start(self, name: str, given: dict[str, str]) -> None:
        require(self.depth > 0 or name == "annotations", f"{self.file} is no XML of CVAT: it begins with <{name}>.")
        self.depth += 1
        if name == "track":
            raise FineSightError(f'{self.file} is of a video: export it as "CVAT for images 1.1".')
        if name == "image":
            require(bool(given.get("name")), f"{self.file} has an image without a name.")
            self.name, self.labels, self.drop = given["name"], [], False
        elif name == "tag" and self.name and given.get("label", UNLABELED) != UNLABELED:
            self.labels.append(given["label"])
        self.asked, self.text = name == "attribute" and given.get("name") == "drop", ""

    def _characters(self, text: str) -> None:
        if self.asked:
            self.text += text

    def _end(self, name: str) -> None:
        self.depth -= 1
        if self.asked:
            self.drop, self.asked = self.drop or (bool(self.name) and _is_true(self.text)), False
        if name == "image":
            self.done.append(Imported(self.name, tuple(self.labels), self.drop))
            self.name = ""


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() == "true"


def _attribute(name: str) -> dict[str, Any]:
    kind = {"drop": "checkbox"}.get(name, "text")
    default = "false" if kind == "checkbox" else ""
    return {"name": name, "mutable": False, "input_type": kind, "default_value": default, "values": [default]}


def _label(page: XMLGenerator, label: dict[str, Any]) -> None:
    page.startElement("label", NONE)
    _element(page, "name", label["name"])
    _element(page, "type", label["type"])
    page.startElement("attributes", NONE)
    for attribute in label["attributes"]:
        page.startElement("attribute", NONE)
        for key in ("name", "mutable", "input_type", "default_value"):
            _element(page, key, str(attribute[key]))
        _element(page, "values", "\n".join(attribute["values"]))
        page.endElement("attribute")
    page.endElement("attributes")
    page.endElement("label")


def _image(page: XMLGenerator, number: int, sample: Sample) -> None:
    page.characters("\n")
    size = {"width": str(sample.width), "height": str(sample.height)}
    page.startElement("image", AttributesImpl({"id": str(number), "name": sample.name, **size}))
    page.startElement("tag", AttributesImpl({"label": sample.label or UNLABELED, "source": "manual"}))
    values = {
        "suggested": sample.suggested or "" if sample.suspect else "",
        "label_wrong": "" if sample.wrong is None else f"{sample.wrong:.4f}",
        "findings": ", ".join([*(tag for tag in sample.tags if tag != sample.split), *sample.outlier]),
        "cluster": str(sample.cluster),
        "duplicate_group": "" if sample.group is None else str(sample.group),
        "neighbors": ", ".join(near.path for near in sample.neighbors),
        "drop": "false",
    }
    for name, value in values.items():
        page.startElement("attribute", AttributesImpl({"name": name}))
        page.characters(value)
        page.endElement("attribute")
    page.endElement("tag")
    page.endElement("image")


def _element(page: XMLGenerator, name: str, text: str) -> None:
    page.startElement(name, NONE)
    page.characters(text)
    page.endElement(name)
