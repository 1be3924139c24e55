"""Groups of images that people name, merge and split. They begin as clusters and are kept with the notes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from finesight.errors import FineSightError
from finesight.search.base import Ids, Index
from finesight.search.clusters import KMEANS_NUMBERS, Clustering, first_centers, kmeans
from finesight.search.nearest import vectors_of
from finesight.search.notes import Notes

STEPS_BACK = 20  # groupings that are kept, to go back to


class NoSuchGroup(FineSightError):
    """There is no group of that number."""


@dataclass(frozen=True)
class Group:
    """Some images, and what people call them."""

    number: int  # stays the same while the group is there
    ids: Ids
    name: str = ""


@dataclass(frozen=True)
class Grouping:
    """Groups that share no image. Every change returns a new one; ``save`` keeps it."""

    groups: tuple[Group, ...]
    version: int = 0  # of the notes
    next_number: int = 0

    @classmethod
    def of_clusters(cls, found: Clustering | None) -> Grouping:
        """Begin with clusters, which have no names yet."""
        members = [] if found is None else [found.members(number) for number in range(len(found))]
        return cls(tuple(Group(number, ids) for number, ids in enumerate(members)), next_number=len(members))

    @classmethod
    def load(cls, notes: Notes) -> Grouping | None:
        """Read the grouping that was saved last."""
        row = notes.grouping()
        if row is None:
            return None
        version, facts, packed = row
        read, members = json.loads(facts), np.frombuffer(zlib.decompress(packed), np.int64)
        ends = np.cumsum([one["size"] for one in read["groups"]])
        parts = np.split(members, ends[:-1]) if len(ends) else []
        groups = [Group(one["number"], ids, one["name"]) for one, ids in zip(read["groups"], parts, strict=True)]
        return cls(tuple(groups), version, read["next"])

    def save(self, notes: Notes) -> Grouping:
        """Keep it, and return it with its version."""
        rows = [{"number": one.number, "name": one.name, "size": len(one.ids)} for one in self.groups]
        members = np.concatenate([np.zeros(0, np.int64), *(one.ids for one in self.groups)])
        facts = json.dumps({"groups": rows, "next": self.next_number})
        version = notes.put_grouping(facts, zlib.compress(members.tobytes(), 1), keep=STEPS_BACK)
        return replace(self, version=version)

    def group(self, number: int) -> Group:
        """Return one group, or raise ``NoSuchGroup``."""
        for one in self.groups:
            if one.number == number:
                return one
        raise NoSuchGroup(f"There is no group {number} any more.")

    def rename(self, number: int, name: str) -> Grouping:
        """Give a group a name; an empty one takes it away."""
        return self._with(replace(self.group(number), name=name))

    def merge(self, numbers: Sequence[int]) -> Grouping:
        """Put groups together, in the place of the first; the first name that there is stays."""
        merged = [self.group(number) for number in dict.fromkeys(numbers)]
        if len(merged) < 2:
            raise FineSightError("Two groups or more are needed to merge them.")
        name = next((one.name for one in merged if one.name), "")
        whole = Group(merged[0].number, np.concatenate([one.ids for one in merged]), name)
        gone = {one.number for one in merged[1:]}
        return replace(self, groups=tuple(one for one in self.groups if one.number not in gone))._with(whole)

    def split(self, number: int, parts: int, index: Index, space: str) -> Grouping:
        """Split a group into that many by k-means. The largest keeps its number and its name."""
        pieces = split_images(index, self.group(number).ids, parts, space)
        if len(pieces) < 2:
            raise FineSightError("The pictures of this group are copies of one another: it cannot be split.")
        first = replace(self.group(number), ids=pieces[0])
        more = [Group(self.next_number + n, ids) for n, ids in enumerate(pieces[1:])]
        at = [one.number for one in self.groups].index(number)
        groups = (*self.groups[:at], first, *more, *self.groups[at + 1 :])
        return replace(self, groups=groups, next_number=self.next_number + len(more))

    def move(self, ids: Sequence[int], number: int | None, name: str = "") -> Grouping:
        """Put images into a group, or into a new one at the front; they leave the one they were in."""
        moved = np.array(list(dict.fromkeys(ids)), np.int64)
        target = None if number is None else self.group(number)
        rest = tuple(replace(one, ids=one.ids[~np.isin(one.ids, moved)]) for one in self.groups)
        if target is None:
            groups: tuple[Group, ...] = (Group(self.next_number, moved, name), *rest)
        else:
            groups = tuple(
                replace(one, ids=np.concatenate([one.ids, moved])) if one.number == target.number else one
                for one in rest
            )
        filled = tuple(one for one in groups if len(one.ids))
        return replace(self, groups=filled, next_number=self.next_number + (target is None))

    def remove(self, numbers: Sequence[int]) -> Grouping:
        """Forget groups; their images are in none."""
        gone = {self.group(number).number for number in numbers}
        return replace(self, groups=tuple(one for one in self.groups if one.number not in gone))

    def _with(self, changed: Group) -> Grouping:
        return replace(self, groups=tuple(changed if one.number == changed.number else one for one in self.groups))


def split_images(index: Index, ids: Ids, parts: int, space: str, seed: int = 0) -> list[Ids]:
    """Return the images in at most ``parts`` groups by k-means, the largest first; those that are gone are left out."""
    pairs = list(vectors_of(index, ids, space))
    known = np.concatenate([np.zeros(0, np.int64), *(one for one, _ in pairs)])
    if len(known) < 2:
        return [known]
    vectors = np.concatenate([rows for _, rows in pairs])
    random = np.random.default_rng(seed)
    most = max(1, KMEANS_NUMBERS // vectors.shape[1])
    learned = vectors if len(vectors) <= most else vectors[np.sort(random.choice(len(vectors), most, replace=False))]
    centers = kmeans(learned, first_centers(learned, min(parts, len(learned)), random))
    products = vectors @ centers.T
    labels, scores = products.argmax(1), products.max(1)
    found = [np.flatnonzero(labels == label) for label in range(len(centers))]
    ordered = [places[np.lexsort((known[places], -scores[places]))] for places in found if len(places)]
    return [known[places] for places in sorted(ordered, key=len, reverse=True)]
