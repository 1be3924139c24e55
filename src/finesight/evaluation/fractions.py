"""Which train labels a probe may see: drawn by class, or read from a file so that others use the very same images."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finesight.data.decode import os_reason
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError

FORMAT = "finesight label fractions 1"
NAMED = 3  # images in an error message

Parts = dict[int, NDArray[np.int64]]  # percent: the images whose labels are used


def nested_fractions(
    labels: NDArray[np.int64], fractions: Sequence[float] = (1.0, 0.5, 0.2), seed: int = 0
) -> dict[float, NDArray[np.int64]]:
    """Ascending indices for each label fraction: drawn per class, rounded up, each inside every larger one.

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
    """``nested_fractions`` by percent."""
    found = nested_fractions(labels, [percent / 100 for percent in percents], seed)
    return {percent: found[percent / 100] for percent in percents}


def shuffled_classes(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """The images of each class in a random order that depends on the seed and the label alone."""
    return [
        np.random.default_rng([seed, label]).permutation(np.flatnonzero(labels == label))
        for label in np.unique(labels[labels >= 0]).tolist()
    ]


def join(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Ascending."""
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))


# --- files ------------------------------------------------------------------------------------------------------------


def write_parts(file: Path, source: ImageSource, train: NDArray[np.int64], parts: Parts, seed: int | None) -> None:
    """Percent, class, paths: small enough to share, one class a line. ``parts`` are indices into ``train``.

    A hundred percent is not written: it is every labeled train image.
    """
    head: dict[str, Any] = {
        "format": FORMAT,
        "dataset": source.kind,
        "train_images": len(train),
        "classes": len(np.unique(_labels(source)[train][_labels(source)[train] >= 0])),
        "seed": seed,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    blocks = []
    for percent in sorted((percent for percent in parts if percent != 100), reverse=True):
        by_class = _by_class(source, train[parts[percent]])
        rows = (f"   {json.dumps(name)}: {json.dumps(paths)}" for name, paths in by_class.items())
        blocks.append(f'  "{percent}": {{\n' + ",\n".join(rows) + "\n  }")
    lines.append(' "fractions": {\n' + ",\n".join(blocks) + "\n }")
    _put(file, "{\n" + ",\n".join(lines) + "\n}\n")


def read_parts(
    file: Path, source: ImageSource, train: NDArray[np.int64], percents: Sequence[int], limit_classes: int | None = None
) -> tuple[Parts, int | None]:
    """What ``write_parts`` wrote, as indices into ``train``, and its seed. Every image must be there, of its class.

    Of a source that is limited to its first classes, the images of the others are left out.
    """
    told = _read(file)
    missing = [percent for percent in percents if percent != 100 and str(percent) not in told["fractions"]]
    if missing:
        raise FineSightError(
            f"{file} has no images for {missing[0]} % of the labels, only for "
            f"{', '.join(f'{percent} %' for percent in told['fractions']) or 'none'}; choose by --fractions."
        )
    labels = _labels(source)[train]
    classes = {name: label for label, name in enumerate(source.classes)}
    place = {path: i for i, path in enumerate(source.paths[train].tolist())}
    parts = {}
    for percent in percents:
        if percent == 100:
            parts[percent] = np.flatnonzero(labels >= 0)
            continue
        chosen = []
        for name, paths in told["fractions"][str(percent)].items():
            if limit_classes is None or classes.get(name, -1) < limit_classes:
                chosen += [(name, path) for path in paths]
        _check(file, source, chosen, place, labels)
        parts[percent] = np.unique(np.array([place[path] for _, path in chosen], dtype=np.int64))
    return parts, told.get("seed")


def _check(
    file: Path,
    source: ImageSource,
    chosen: Sequence[tuple[str, str]],
    place: Mapping[str, int],
    labels: NDArray[np.int64],
) -> None:
    if gone := [path for _, path in chosen if path not in place]:
        more = f" and {len(gone) - NAMED:,} more" if len(gone) > NAMED else ""
        raise FineSightError(
            f"{file} lists images that are not among the readable train images of {source.root}: "
            f"{', '.join(gone[:NAMED])}{more}. It must belong to the same data set, in the same layout."
        )
    for name, path in chosen:
        label = int(labels[place[path]])
        if label < 0 or source.classes[label] != name:
            here = repr(source.classes[label]) if label >= 0 else "without a label"
            raise FineSightError(f"{path} is of class {name!r} by {file}, but {here} in {source.root}.")
    if len({path for _, path in chosen}) < len(chosen):
        raise FineSightError(f"{file} lists an image twice in one fraction.")
    if not chosen:
        raise FineSightError(f"{file} lists no image of the classes that are evaluated.")


def _read(file: Path) -> dict[str, Any]:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FineSightError(f"--labels {file} cannot be read: {os_reason(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise FineSightError(f"--labels {file} is not JSON ({error}).") from error
    if not _is_label_file(told):
        raise FineSightError(f"--labels {file} is not a list of label fractions ({FORMAT!r}), see docs/protocols.md.")
    return dict(told)


def _is_label_file(told: Any) -> bool:
    if not isinstance(told, dict) or told.get("format") != FORMAT or not isinstance(told.get("fractions"), dict):
        return False
    lists = [paths for part in told["fractions"].values() if isinstance(part, dict) for paths in part.values()]
    return all(isinstance(part, dict) for part in told["fractions"].values()) and all(
        isinstance(paths, list) and all(isinstance(path, str) for path in paths) for paths in lists
    )


def _by_class(source: ImageSource, images: NDArray[np.int64]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for label, path in sorted(zip(_labels(source)[images].tolist(), source.paths[images].tolist(), strict=True)):
        found.setdefault(source.classes[label], []).append(path)
    return found


def _labels(source: ImageSource) -> NDArray[np.int64]:
    assert source.labels is not None
    return source.labels


def _put(file: Path, text: str) -> None:
    scratch = file.with_name(f".{file.name}.tmp")
    try:
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, file)
    except OSError as error:
        raise FineSightError(f"--save-labels {file} cannot be written: {os_reason(error)}.") from error
    finally:
        scratch.unlink(missing_ok=True)
