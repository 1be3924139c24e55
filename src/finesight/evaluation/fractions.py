"""Which train labels a probe may see: drawn by class, or read from a file so that others use the very same images."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from finesight.data.decode import os_reason
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.io.atomic import write_atomic

FORMAT = "finesight label fractions 1"
NAMED = 3  # images in an error message

Parts = dict[int, NDArray[np.int64]]  # percent: the images whose labels are used


def nested_fractions(
    labels: NDArray[np.int64], fractions: Sequence[float] = (1.0, 0.5, 0.2), seed: int = 0
) -> dict[float, NDArray[np.int64]]:
    """Return ascending indices for each label fraction: drawn per class, rounded up, each inside every larger one.

    A class's draw depends on the seed and its own label only, not on which other classes there are. Images
    without a label (-1) are in no fraction.
    """
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise ValueError(f"label fractions must be above 0 and at most 1, not {tuple(fractions)}")
    shuffled = shuffled_classes(np.asarray(labels), seed)
    return {
        fraction: join(order[: math.ceil(fraction * len(order) - 1e-9)] for order in shuffled) for fraction in fractions
    }


def draw_parts(labels: NDArray[np.int64], percents: Sequence[int], seed: int) -> Parts:
    """Return ``nested_fractions`` by percent."""
    parts = nested_fractions(labels, [percent / 100 for percent in percents], seed)
    return {percent: parts[percent / 100] for percent in percents}


def shuffled_classes(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Return the images of each class in a random order that depends on the seed and the label alone."""
    return [
        np.random.default_rng([seed, label]).permutation(np.flatnonzero(labels == label))
        for label in np.unique(labels[labels >= 0]).tolist()
    ]


def join(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return all of them in one ascending array."""
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))


# --- files ------------------------------------------------------------------------------------------------------------


def write_parts(file: Path, source: ImageSource, train: NDArray[np.int64], parts: Parts, seed: int | None) -> None:
    """Write the paths of each fraction by class, one class a line; ``parts`` are indices into ``train``.

    A hundred percent is not written: it is every labeled train image.
    """
    labels = _labels(source)
    head: dict[str, Any] = {
        "format": FORMAT,
        "dataset": source.kind,
        "train_images": len(train),
        "classes": len(np.unique(labels[train][labels[train] >= 0])),
        "seed": seed,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    blocks = []
    for percent in sorted((percent for percent in parts if percent != 100), reverse=True):
        images, by_class = train[parts[percent]], defaultdict[str, list[str]](list)
        for label, path in sorted(zip(labels[images].tolist(), source.paths[images].tolist(), strict=True)):
            by_class[source.classes[label]].append(path)
        rows = (f"   {json.dumps(name)}: {json.dumps(paths)}" for name, paths in by_class.items())
        blocks.append(f'  "{percent}": {{\n' + ",\n".join(rows) + "\n  }")
    lines.append(' "fractions": {\n' + ",\n".join(blocks) + "\n }")
    try:
        write_atomic(file, "{\n" + ",\n".join(lines) + "\n}\n")
    except OSError as error:
        raise FineSightError(f"--save-labels {file} cannot be written: {os_reason(error)}.") from error


def read_parts(
    file: Path, source: ImageSource, train: NDArray[np.int64], percents: Sequence[int], limit_classes: int | None = None
) -> tuple[Parts, int | None]:
    """Read what ``write_parts`` wrote; return indices into ``train`` and the seed.

    Of a source that is limited to its first classes, the images of the others are left out.

    Raises
    ------
    FineSightError
        If the file cannot be read, lacks a fraction, or lists an image that is not a train image of that class.
    """
    content = _read(file)
    missing = [percent for percent in percents if percent != 100 and str(percent) not in content["fractions"]]
    if missing:
        raise FineSightError(
            f"{file} has no images for {missing[0]} % of the labels, only for "
            f"{', '.join(f'{percent} %' for percent in content['fractions']) or 'none'}; choose by --fractions."
        )
    labels = _labels(source)[train]
    classes = {name: label for label, name in enumerate(source.classes)}
    index = {path: i for i, path in enumerate(source.paths[train].tolist())}
    parts = {}
    for percent in percents:
        if percent == 100:
            parts[percent] = np.flatnonzero(labels >= 0)
            continue
        chosen = []
        for name, paths in content["fractions"][str(percent)].items():
            if limit_classes is None or classes.get(name, -1) < limit_classes:
                chosen += [(name, path) for path in paths]
        _check(file, source, chosen, index, labels)
        parts[percent] = np.unique(np.array([index[path] for _, path in chosen], dtype=np.int64))
    return parts, content.get("seed")


def _check(
    file: Path,
    source: ImageSource,
    chosen: Sequence[tuple[str, str]],
    index: Mapping[str, int],
    labels: NDArray[np.int64],
) -> None:
    if gone := [path for _, path in chosen if path not in index]:
        more = f" and {len(gone) - NAMED:,} more" if len(gone) > NAMED else ""
        raise FineSightError(
            f"{file} lists images that are not among the readable train images of {source.root}: "
            f"{', '.join(gone[:NAMED])}{more}. It must belong to the same data set, in the same layout."
        )
    for name, path in chosen:
        label = int(labels[index[path]])
        if label < 0 or source.classes[label] != name:
            here = repr(source.classes[label]) if label >= 0 else "without a label"
            raise FineSightError(f"{path} is of class {name!r} by {file}, but {here} in {source.root}.")
    if len({path for _, path in chosen}) < len(chosen):
        raise FineSightError(f"{file} lists an image twice in one fraction.")
    if not chosen:
        raise FineSightError(f"{file} lists no image of the classes that are evaluated.")


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FineSightError(f"--labels {file} cannot be read: {os_reason(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise FineSightError(f"--labels {file} is not JSON ({error}).") from error
    try:
        TypeAdapter(dict[str, dict[str, list[str]]]).validate_python(content["fractions"], strict=True)
        known = content["format"] == FORMAT
    except (KeyError, TypeError, ValidationError):
        known = False
    if not known:
        raise FineSightError(f"--labels {file} is not a list of label fractions ({FORMAT!r}), see docs/protocols.md.")
    return dict(content)


def _labels(source: ImageSource) -> NDArray[np.int64]:
    assert source.labels is not None
    return source.labels
