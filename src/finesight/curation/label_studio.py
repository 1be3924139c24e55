"""Label Studio: tasks with predictions as JSON, the labeling interface, and its export back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import quoteattr

from finesight.curation.imported import Imported, read_json, require
from finesight.curation.samples import Sample
from finesight.io.atomic import atomic_path, write_atomic

LOCAL = "/data/local-files/?d="  # how it serves files below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT
LABEL, DECISION, DROP = "label", "decision", "drop"
TASKS, CONFIG = "tasks.json", "config.xml"


def write(out: Path, samples: Sequence[Sample], classes: Sequence[str], prefix: str = LOCAL) -> list[str]:
    """Write ``tasks.json`` and ``config.xml``; the address of an image is ``prefix`` and its quoted name."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / CONFIG, _interface(classes))
    with atomic_path(out / TASKS) as scratch, scratch.open("w", encoding="utf-8") as stream:
        stream.write("[")
        for number, sample in enumerate(samples):
            stream.write((",\n" if number else "\n") + json.dumps(_task(sample, prefix), ensure_ascii=False))
        stream.write("\n]\n")
    return [TASKS, CONFIG]


def read(path: Path) -> Iterator[Imported]:
    """Yield what an export as JSON or JSON-MIN holds; of several annotations of an image, all labels."""
    tasks = read_json(path, "an export of Label Studio (JSON or JSON-MIN)")
    require(isinstance(tasks, list), f"{path} is no export of Label Studio: it is no list of tasks.")
    for number, task in enumerate(tasks):
        require(isinstance(task, dict), f"{path}: task {number} is no table of values.")
        data = task.get("data") if "annotations" in task else task
        require(isinstance(data, dict), f"{path}: task {number} has no data.")
        name = _name(data)
        require(name is not None, f"{path}: task {number} names no image: it has neither `path` nor `image`.")
        assert name is not None
        labels, drop = _annotated(task["annotations"]) if "annotations" in task else _flat(task)
        yield Imported(name, tuple(labels), drop)


def _interface(classes: Sequence[str]) -> str:
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
    return f"""<View>
  <Header value="$given"/>
  <Text name="findings" value="$findings"/>
  <Image name="image" value="$image" zoom="true"/>
  <Choices name="{LABEL}" toName="image" choice="single" showInline="false">
{choices}
  </Choices>
  <Choices name="{DECISION}" toName="image" choice="single" showInline="true">
    <Choice value="{DROP}"/>
  </Choices>
</View>
"""


def _task(sample: Sample, prefix: str) -> dict[str, Any]:
    label = sample.suggested if sample.suspect else sample.label
    score = sample.wrong if sample.suspect else (None if sample.wrong is None else 1 - sample.wrong)
    task: dict[str, Any] = {
        "data": {
            "image": prefix + quote(sample.name),
            "path": sample.name,
            "given": sample.label or "",
            "findings": ", ".join(_findings(sample)),
            "label_wrong": sample.wrong,
            "cluster": sample.cluster,
            "duplicate_group": sample.group,
            "uniqueness": round(sample.uniqueness, 6),
            "outlier_score": round(sample.distance, 4),
            "neighbors": [near.path for near in sample.neighbors],
        },
        "meta": {"split": sample.split, "tags": sample.tags, "width": sample.width, "height": sample.height},
        "predictions": [],
    }
    if label is not None:
        result = {"from_name": LABEL, "to_name": "image", "type": "choices", "value": {"choices": [label]}}
        prediction = {"model_version": "finesight", "result": [result]}
        task["predictions"] = [prediction if score is None else prediction | {"score": round(score, 6)}]
    return task


def _findings(sample: Sample) -> Iterator[str]:
    if sample.suspect:
        yield f"label probably wrong ({sample.wrong:.0%}), suggested: {sample.suggested}"
    if sample.copy:
        yield f"a copy ({sample.copy}, group {sample.group})"
    if sample.outlier:
        yield f"an outlier: {', '.join(sample.outlier)}"


def _name(data: dict[str, Any]) -> str | None:
    """Return the path that an export of ours carries, else what its address says."""
    if isinstance(path := data.get("path"), str) and path:
        return path
    if not isinstance(image := data.get("image"), str) or not image:
        return None
    try:
        asked = parse_qs(urlsplit(image).query).get("d")
    except ValueError:
        return image
    return asked[0] if asked else image


def _annotated(annotations: Any) -> tuple[list[str], bool]:
    labels, drop = [], False
    for one in annotations if isinstance(annotations, list) else ():
        if not isinstance(one, dict) or one.get("was_cancelled"):
            continue
        results = one.get("result")
        for result in results if isinstance(results, list) else ():
            if not isinstance(result, dict) or result.get("type") != "choices":
                continue
            value = result.get("value")
            chosen = _texts(value.get("choices") if isinstance(value, dict) else None)
            if result.get("from_name") == DECISION:
                drop = drop or DROP in chosen
            else:
                labels += chosen
    return labels, drop


def _flat(task: dict[str, Any]) -> tuple[list[str], bool]:
    return _texts(task.get(LABEL)), DROP in _texts(task.get(DECISION))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = value.get("choices")
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str) and text]
