"""Write findings for a labeling tool, and read its labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finesight.curation import cvat, fiftyone, label_studio
from finesight.curation.findings import Cleaning
from finesight.curation.imported import Imported
from finesight.curation.samples import is_text, make_samples
from finesight.errors import FineSightError, unknown
from finesight.io.atomic import explain_write_errors, require_writable

TOOLS = ("fiftyone", "label-studio", "cvat")
FORMATS = (*TOOLS, "datumaro")  # that are read
ADVICE = {
    "fiftyone": (
        "In Python: fo.Dataset.from_dir({out!r}, dataset_type=fo.types.FiftyOneDataset). Back: dataset.export("
        "export_dir=DIR, dataset_type=fo.types.FiftyOneDataset, export_media=False), then `finesight labels import`."
    ),
    "label-studio": (
        "Make a project with config.xml as its labeling interface and import tasks.json. For local files, start it "
        "with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root}. "
        "Back: export as JSON, then `finesight labels import`."
    ),
    "cvat": (
        "Make a task with the images and, in the raw form of its labels, labels.json; upload annotations.xml as "
        "CVAT 1.1. Back: export it as CVAT for images 1.1 or Datumaro, then `finesight labels import`."
    ),
}


@dataclass(frozen=True)
class Written:
    """What an export wrote."""

    files: list[str]
    images: int
    left_out: int  # names or labels that are no text
    advice: str


def prepare_export(out: Path, tool: str, prefix: str | None = None) -> None:
    """Make the folder before the work is done; a ``FineSightError`` says why it cannot be written."""
    if tool not in TOOLS:
        raise unknown("labeling tool", tool, TOOLS)
    if prefix is not None and tool != "label-studio":
        raise FineSightError("--prefix is about addresses of images in Label Studio: give it with --to label-studio.")
    if out.is_file():
        raise FineSightError(f"{out} is a file: give -o a folder.")
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    require_writable(out / "samples.json")


def export(found: Cleaning, tool: str, out: Path, prefix: str | None = None) -> Written:
    """Write the files of a tool into ``out``."""
    prepare_export(out, tool, prefix)
    samples, classes = list(make_samples(found)), [name for name in found.source.classes if is_text(name)]
    if not samples:
        raise FineSightError("No image has a name that other programs read: nothing is written.")
    if tool == "fiftyone":
        files = fiftyone.write(out, samples, classes)
    elif tool == "cvat":
        files = cvat.write(out, samples, classes)
    else:
        files = label_studio.write(out, samples, classes, label_studio.LOCAL if prefix is None else prefix)
    advice = ADVICE[tool].format(out=str(out), root=found.source.root)
    return Written(files, len(samples), len(found.source) - len(samples), advice)


def read(form: str, path: Path, field: str = "ground_truth") -> Iterator[Imported]:
    """Yield what a tool says of each image; a ``FineSightError`` says what is wrong with the file."""
    if form not in FORMATS:
        raise unknown("format of labels", form, FORMATS)
    if form == "fiftyone":
        return fiftyone.read(path, field)
    if form == "datumaro":
        return cvat.read_datumaro(path)
    return cvat.read(path) if form == "cvat" else label_studio.read(path)
