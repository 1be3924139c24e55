"""How large the named datasets are as published: a copy that differs is no error, but its results are not theirs."""

from __future__ import annotations

import numpy as np

from finesight.data.sources import ImageSource

OFFICIAL = {  # kind: train images, test images, classes
    "cub": (5994, 5794, 200),
    "cars": (8144, 8041, 196),
    "inat2019": (265213, 3030, 1010),
    "aircraft": (6667, 3333, 100),
    "cifar100": (50000, 10000, 100),
}
_NAMED = 3  # classes without an image that are named


def missing_words(source: ImageSource) -> str | None:
    """What differs from the published dataset, in words; nothing when all is there or the kind is not one of them.

    Counted is what the dataset's lists hold: files that are listed but gone are found when they are read.
    """
    if source.kind not in OFFICIAL:
        return None
    *sizes, classes = OFFICIAL[source.kind]
    words = []
    if source.splits is None:
        words.append(_differs(len(source), sum(sizes), "images"))
        words.append("the train/test split is missing")
    else:
        for split, size in zip(("train", "test"), sizes, strict=True):
            words.append(_differs(int((source.splits == split).sum()), size, f"{split} images"))
    words += _class_words(source, classes)
    differences = "; ".join(word for word in words if word)
    return f"not the official {source.kind}: {differences}" if differences else None


def _class_words(source: ImageSource, official: int) -> list[str]:
    if source.labels is None:
        return ["the labels are missing"]
    used = set(np.unique(source.labels[source.labels >= 0]).tolist())
    unused = [name for i, name in enumerate(source.classes) if i not in used]
    word = _differs(len(used), official, "classes")
    if word and unused:
        more = f" and {len(unused) - _NAMED:,} more" if len(unused) > _NAMED else ""
        word += f" (no image of {', '.join(unused[:_NAMED])}{more})"
    unlabelled = int((source.labels < 0).sum())
    return [word, f"{unlabelled:,} labels missing" if unlabelled else ""]


def _differs(found: int, official: int, what: str) -> str:
    if found < official:
        return f"{official - found:,} of {official:,} {what} missing"
    return f"{found:,} {what} where {official:,} belong" if found > official else ""
