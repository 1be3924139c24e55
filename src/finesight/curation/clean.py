"""``clean``: labels that are probably wrong, copies and outliers of a source, in one pass of a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finesight.curation.embedding import embed_cached
from finesight.curation.findings import (
    EXACT,
    MIRRORED,
    NEAR,
    SIMILAR,
    Cleaning,
    Copies,
    Copy,
    Outlier,
    Suspect,
    find_neighbors,
    label_of,
    split_of,
)
from finesight.curation.outliers import FAR, compared, far_from_all
from finesight.curation.page import write_page
from finesight.curation.suspects import THRESHOLD, judge_labels
from finesight.data.cache import open_cache
from finesight.data.image_hash import NEAR as NEAR_BITS
from finesight.data.image_hash import group_duplicates, merge_groups
from finesight.data.quality import TINY, ImageFacts, read_facts
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.evaluation.retrieval import neighbors
from finesight.features.encoder import Encoder
from finesight.features.types import Floats
from finesight.features.wide import Features
from finesight.io.atomic import explain_write_errors, require_writable
from finesight.io.console import format_count

USUAL = 0.1  # share of the images: what is wrong with more of them makes none of them an outlier
NEAREST = 20  # neighbors that are looked up for each image
SAME = 0.92  # cosine from which two images are one picture to the network: chosen on train images (docs/clean.md)
FEATURES, REPORT, TABLE = "features", "report.html", "clean.csv"  # in the output folder


def prepare_folder(out: Path, source: ImageSource) -> None:
    """Make the folder for the results before the work is done; it must not lie among the images."""
    if out.is_file():
        raise FineSightError(f"{out} is a file: give -o a folder.")
    place, root = out.absolute().resolve(), Path(source.root).resolve()
    if source.kind not in ("list", "shards") and (place == root or root in place.parents):
        raise FineSightError(f"-o {out} lies inside {root}: nothing is written among the images.")
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    for name in (REPORT, TABLE):
        require_writable(out / name)


def clean(
    data: str | Path | ImageSource,
    encoder: Encoder,
    *,
    out: Path | None = None,
    store: Path | None = None,
    pooling: str | None = None,
    threshold: float = THRESHOLD,
    same: float = SAME,
    far: float = FAR,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Cleaning:
    """Find labels that are probably wrong, copies and outliers. Nothing of the data is changed.

    Parameters
    ----------
    data
        A folder, a list, or a known dataset. Without labels, copies and outliers are found.
    encoder
        The network whose features are compared.
    out
        A folder for ``report.html``, ``clean.csv`` and the features, which a later call uses again.
    store
        A folder for the features alone, by default ``out/features``.
    threshold, same, far
        The probability from which a label is suspected, the cosine from which two images are copies, and the robust
        standard deviations from which an image is an outlier.

    Raises ``FineSightError`` if there is nothing to read, or ``out`` cannot be written.
    """
    source = data if isinstance(data, ImageSource) else open_source(data)
    if out is not None:
        prepare_folder(out, source)
        store = out / FEATURES if store is None else store
    cache = open_cache(source, encoder.config.framing.scale, cache_dir=cache_dir, workers=workers, progress=progress)
    features = embed_cached(encoder, cache, store=store, pooling=pooling, progress=progress)
    readable = replace(cache.source, skipped=())
    found = examine(
        readable,
        features,
        threshold=threshold,
        same=same,
        far=far,
        skipped=cache.skipped,
        workers=workers,
        progress=progress,
    )
    if out is not None:
        found.write_csv(out / TABLE)
        write_page(out / REPORT, found, f"{Path(source.root).name}: labels, copies, outliers")
    return found


def clean_index(
    where: str | Path, space: str | None = None, *, workers: int | None = None, progress: bool = True
) -> Cleaning:
    """Examine the images of an index by the features it has; labels are those that its folder shows."""
    from finesight.search.engines import open_index

    with closing(open_index(where)) as index:
        name = index.meta.spaces[0] if space is None else index.check_space(space)
        listed = index.list_items()
        ids = dict(zip(listed.paths.tolist(), listed.ids.tolist(), strict=True))
        source = open_source(index.meta.root)
        there = np.array([path in ids for path in source.paths.tolist()], bool)
        if not there.any():
            raise FineSightError(f"None of the images of {where} is in {index.meta.root} any more.")
        source = replace(source.select(there), skipped=())
        features = index.vectors(np.array([ids[path] for path in source.paths.tolist()], np.int64), name)
    return examine(source, features, workers=workers, progress=progress)


def examine(
    source: ImageSource,
    features: Features,
    *,
    threshold: float = THRESHOLD,
    same: float = SAME,
    far: float = FAR,
    skipped: Sequence[tuple[str, str]] = (),
    workers: int | None = None,
    progress: bool = True,
) -> Cleaning:
    """Return what is wrong with images whose features (N, D) are known."""
    for name, value in (("threshold", threshold), ("same", same)):
        if not 0 < value <= 1:
            raise FineSightError(f"{name} must be above 0 and at most 1, not {value:g}.")
    facts = read_facts(source, looks=True, workers=workers, progress=progress)
    every, wide = neighbors(features, np.arange(len(source)), compared(len(source)))
    nearest, cosines = every[:, :NEAREST], wide[:, :NEAREST]
    groups = _find_copies(source, facts, nearest, cosines, same)
    notes: list[str] = []
    wrong = suggested = None
    if reason := _no_labels(source):
        notes.append(f"{reason}, so labels were not checked: only copies and outliers were looked for.")
    else:
        assert source.labels is not None
        group = np.arange(len(source))
        for one in groups:
            group[[copy.image for copy in one.images]] = one.images[0].image
        wrong, suggested = judge_labels(features, source.labels, len(source.classes), group)
    distance = far_from_all(wide)
    why, usual = _reasons(facts, distance, far)
    notes += usual
    return Cleaning(
        source=source,
        sizes=np.array([one.size for one in facts], np.int64).reshape(-1, 2),
        features=features,
        nearest=nearest,
        cosines=cosines,
        wrong=wrong,
        suggested=suggested,
        distance=distance,
        suspects=tuple(_suspects(source, wrong, suggested, threshold, nearest, cosines)),
        duplicates=tuple(sorted(groups, key=lambda group: (-len(group.images), group.images[0].path))),
        outliers=tuple(_outliers(source, why, distance, nearest, cosines)),
        skipped=tuple(skipped),
        notes=tuple(notes),
    )


def _no_labels(source: ImageSource) -> str:
    """Return why labels cannot be checked; nothing if they can."""
    if source.labels is None or not (source.labels >= 0).any():
        return "The images have no labels"
    counts = np.bincount(source.labels[source.labels >= 0])
    if (counts > 0).sum() < 2:
        return "All images have the same label"
    return "" if counts.max() > 1 else "Every class has one image"


def _suspects(
    source: ImageSource,
    wrong: Floats | None,
    suggested: NDArray[np.int64] | None,
    threshold: float,
    nearest: NDArray[np.int64],
    cosines: Floats,
) -> Iterator[Suspect]:
    if wrong is None or suggested is None:
        return
    for i in np.argsort(-wrong, kind="stable").tolist():
        given = label_of(source, i)
        if wrong[i] < threshold or given is None:
            return
        yield Suspect(
            image=i,
            path=str(source.paths[i]),
            score=float(wrong[i]),
            given=given,
            suggested=source.classes[suggested[i]],
            split=split_of(source, i),
            neighbors=find_neighbors(source, nearest, cosines, i),
        )


def _find_copies(
    source: ImageSource, facts: Sequence[ImageFacts], nearest: NDArray[np.int64], cosines: Floats, same: float
) -> list[Copies]:
    """Group images that show one picture: by bytes, by hash, by the hash of the mirror image, by features."""
    contents, hashes = [one.content for one in facts], [one.hash for one in facts]
    group = group_duplicates(contents, hashes, mirrored=[one.mirrored for one in facts])
    rows, columns = np.nonzero(cosines >= same)
    if len(np.unique(rows)) > USUAL * len(source):  # to this network many images are the same: it cannot tell
        rows, columns = rows[:0], columns[:0]
    merge_groups(group, rows, nearest[rows, columns])
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return [_copies(source, facts, part.tolist(), nearest, cosines) for part in parts if len(part) > 1]


def _copies(
    source: ImageSource,
    facts: Sequence[ImageFacts],
    images: list[int],
    nearest: NDArray[np.int64],
    cosines: Floats,
) -> Copies:
    images.sort(key=lambda i: (-facts[i].size[0] * facts[i].size[1], i))
    first = images[0]
    near = dict(zip(nearest[first].tolist(), cosines[first].tolist(), strict=True))
    return Copies(
        tuple(
            Copy(
                image=i,
                path=str(source.paths[i]),
                kind=EXACT if i == first else _kind(facts, images, i),
                cosine=1.0 if i == first else near.get(i, float(cosines[i].max(initial=0))),
                label=label_of(source, i),
                split=split_of(source, i),
                width=facts[i].size[0],
                height=facts[i].size[1],
            )
            for i in images
        )
    )


def _kind(facts: Sequence[ImageFacts], images: Sequence[int], i: int) -> str:
    """Return the surest way in which an image is a copy of another one of its group."""
    own = facts[i]
    others = [facts[j] for j in images if j != i]
    if own.content is not None and any(one.content == own.content for one in others):
        return EXACT
    if own.hash is not None and any(one.hash is not None and _bits(one.hash, own.hash) <= NEAR_BITS for one in others):
        return NEAR
    if any(
        one.mirrored is not None and own.hash is not None and _bits(one.mirrored, own.hash) <= NEAR_BITS
        for one in others
    ):
        return MIRRORED
    return SIMILAR


def _bits(one: int, two: int) -> int:
    return (one ^ two).bit_count()


def _reasons(facts: Sequence[ImageFacts], distance: Floats, far: float) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return why each image is an outlier, and notes on what is usual here: what many images are, no outlier is."""
    looks: list[list[str]] = []
    for one in facts:
        small = ["small"] if 0 < min(one.size) < TINY else []
        looks.append([*small, *(one.looks.reasons() if one.looks is not None else ())])
    counts = Counter(word for words in looks for word in words)
    usual = {word for word, count in counts.items() if count > USUAL * len(facts)}
    why = [
        (*(["far from all others"] if value >= far else []), *(word for word in words if word not in usual))
        for words, value in zip(looks, distance.tolist(), strict=True)
    ]
    notes = [
        f"{format_count(counts[word], 'image is', 'images are')} {word}: so many that they are not listed as outliers."
        for word in sorted(usual)
    ]
    return why, notes


def _outliers(
    source: ImageSource,
    why: Sequence[tuple[str, ...]],
    distance: Floats,
    nearest: NDArray[np.int64],
    cosines: Floats,
) -> Iterator[Outlier]:
    for i in np.lexsort((np.arange(len(source)), -distance)).tolist():
        if why[i]:
            yield Outlier(
                image=i,
                path=str(source.paths[i]),
                score=float(distance[i]),
                why=why[i],
                label=label_of(source, i),
                split=split_of(source, i),
                neighbors=find_neighbors(source, nearest, cosines, i),
            )
