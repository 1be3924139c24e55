"""FiftyOne's own format on disk, ``FiftyOneDataset``: ``metadata.json`` and ``samples.json``, images where they are.

Written without the ``fiftyone`` package, which needs a database; files of version 1 load in every later one.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from finesight.curation.imported import Imported, read_json, require
from finesight.curation.samples import Sample
from finesight.features.types import Floats
from finesight.io.atomic import atomic_path

VERSION = "1.0.0"  # of FiftyOne whose format this is: it brings older files up to date by itself
CORE = "fiftyone.core"
TEXT, NUMBER, WHOLE, YES_NO = (f"{CORE}.fields.{name}Field" for name in ("String", "Float", "Int", "Boolean"))
LIST, VECTOR, EMBEDDED = (f"{CORE}.fields.{name}Field" for name in ("List", "Vector", "EmbeddedDocument"))
CLASSIFICATION = {
    "tags": (LIST, TEXT),
    "label": (TEXT, None),
    "confidence": (NUMBER, None),
    "logits": (VECTOR, None),
}
PLAIN = {  # field of a sample -> its type, and that of what is in it
    "filepath": (TEXT, None),
    "tags": (LIST, TEXT),
    "embedding": (VECTOR, None),
    "cluster": (WHOLE, None),
    "uniqueness": (NUMBER, None),
    "label_wrong": (NUMBER, None),
    "duplicate_group": (WHOLE, None),
    "duplicate_kind": (TEXT, None),
    "is_duplicate": (YES_NO, None),
    "is_outlier": (YES_NO, None),
    "outlier_why": (TEXT, None),
    "outlier_score": (NUMBER, None),
    "neighbors": (LIST, TEXT),
    "neighbor_cosines": (LIST, NUMBER),
}
LABELS = ("ground_truth", "suggested_label")
SAMPLES, METADATA = "samples.json", "metadata.json"


def write(out: Path, samples: Sequence[Sample], classes: Sequence[str]) -> list[str]:
    """Write the folder; return the names of its files."""
    out.mkdir(parents=True, exist_ok=True)
    fields = [_field("id", f"{CORE}.fields.ObjectIdField", None, "_id")]
    fields += [_field(name, *kind) for name, kind in PLAIN.items()]
    inner = [_field("id", f"{CORE}.fields.ObjectIdField", None, "_id")]
    inner += [_field(name, *kind) for name, kind in CLASSIFICATION.items()]
    for name in LABELS:
        document = _field(name, EMBEDDED, None)
        fields.append(document | {"embedded_doc_type": f"{CORE}.labels.Classification", "fields": inner})
    metadata = {
        "version": VERSION,
        "media_type": "image",
        "sample_fields": fields,
        "info": {"made by": "finesight"},
        "classes": {"ground_truth": list(classes)} if classes else {},
        "default_classes": list(classes),
    }
    with atomic_path(out / METADATA) as scratch:
        scratch.write_text(json.dumps(metadata), encoding="utf-8")
    with atomic_path(out / SAMPLES) as scratch, scratch.open("w", encoding="utf-8") as stream:
        stream.write('{"samples": [')
        for number, sample in enumerate(samples):  # one at a time: embeddings of many images are long
            stream.write((",\n" if number else "\n") + json.dumps(_sample(sample)))
        stream.write("\n]}\n")
    return [METADATA, SAMPLES]


def read(path: Path, field: str = "ground_truth") -> Iterator[Imported]:
    """Yield what a folder of ``dataset.export(..., dataset_type=fo.types.FiftyOneDataset)`` holds.

    A sample with the tag ``drop`` is to be left out.
    """
    file = path / SAMPLES if path.is_dir() else path
    content = read_json(file, "the samples.json of a FiftyOneDataset")
    samples = content.get("samples") if isinstance(content, dict) else None
    require(isinstance(samples, list), f"{file} is no samples.json of a FiftyOneDataset: it has no list of samples.")
    assert isinstance(samples, list)
    for number, sample in enumerate(samples):
        is_sample = isinstance(sample, dict) and isinstance(sample.get("filepath"), str)
        require(is_sample, f"{file}: sample {number} has no filepath.")
        label = sample.get(field)
        known = label is None or (isinstance(label, dict) and isinstance(label.get("label"), str | None))
        require(known, f"{file}: the field {field!r} of {sample['filepath']!r} is no Classification.")
        name = label.get("label") if isinstance(label, dict) else None
        tags = sample.get("tags")
        yield Imported(sample["filepath"], () if not name else (name,), isinstance(tags, list) and "drop" in tags)


def _field(name: str, kind: str, inner: str | None, stored: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "ftype": kind,
        "embedded_doc_type": None,
        "subfield": inner,
        "fields": [],
        "db_field": stored or name,
        "description": None,
        "info": None,
        "read_only": False,
        "created_at": None,
    }


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "_id": {"$oid": _id(sample.file)},
        "filepath": sample.file,
        "tags": sample.tags,
        "_media_type": "image",
        "_rand": int(_id(sample.file)[:8], 16) / 2**32,
        "ground_truth": _classification(sample, "ground_truth", sample.label, None),
        "suggested_label": _classification(
            sample, "suggested_label", sample.suggested if sample.suspect else None, sample.wrong
        ),
        "embedding": {"$binary": {"base64": _vector(sample.embedding), "subType": "00"}},
        "cluster": sample.cluster,
        "uniqueness": sample.uniqueness,
        "label_wrong": sample.wrong,
        "duplicate_group": sample.group,
        "duplicate_kind": sample.copy,
        "is_duplicate": sample.copy is not None,
        "is_outlier": bool(sample.outlier),
        "outlier_why": "; ".join(sample.outlier) or None,
        "outlier_score": sample.distance,
        "neighbors": [near.path for near in sample.neighbors],
        "neighbor_cosines": [near.cosine for near in sample.neighbors],
    }


def _classification(sample: Sample, field: str, label: str | None, confidence: float | None) -> dict[str, Any] | None:
    if label is None:
        return None
    known = {"_id": {"$oid": _id(f"{field} {sample.file}")}, "_cls": "Classification", "tags": [], "label": label}
    return known if confidence is None else known | {"confidence": confidence}


def _id(text: str) -> str:
    """Return an id of 12 bytes, as its database has them; the same for the same text."""
    return blake2b(text.encode(), digest_size=12).hexdigest()


def _vector(values: Floats) -> str:
    """Return an array as FiftyOne keeps it: the bytes of a .npy file, compressed."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values, np.float32), allow_pickle=False)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode()
