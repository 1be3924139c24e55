"""What the page does with groups of one's own, apart from the web: begin, name, merge, split, apply as labels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from fastapi import HTTPException

from finesight.errors import FineSightError
from finesight.search.groupings import Group, Grouping, NoSuchGroup
from finesight.server import note_schemas
from finesight.server.collection import Collection
from finesight.server.parameters import Page
from finesight.server.schemas import CLUSTER_IMAGES

T = TypeVar("T")


class GroupDesk:
    """The groups of a collection. The methods block; routes call them in a work queue."""

    def __init__(self, collection: Collection) -> None:
        self._collection, self._lock = collection, threading.Lock()
        self._last: Grouping | None = None

    def state(self) -> note_schemas.Groups:
        """Return all groups."""
        return self._describe(self._load())

    def start(self, wanted: note_schemas.GroupStart) -> note_schemas.Groups:
        """Begin anew with clusters; ``undo`` brings back what was there."""
        count = wanted.count if wanted.method == "kmeans" else None
        found = self._collection.features.get(wanted.features).clusters(wanted.method, count)
        with self._lock:
            return self._save(Grouping.of_clusters(found))

    def items(self, number: int, page: Page) -> note_schemas.GroupItems:
        """Return a part of one group, or raise 404."""
        grouping = self._load()
        try:
            group = (grouping or Grouping(())).group(number)
        except NoSuchGroup as error:
            raise HTTPException(404, str(error)) from None
        ids = self._present(group)
        index = self._collection.features.get().index
        items = self._collection.describe(index, ids[page.offset :][: page.limit])
        return note_schemas.GroupItems(id=number, name=group.name, size=len(ids), items=items)

    def change(self, wanted: note_schemas.GroupChange) -> note_schemas.Groups:
        """Change the groups, or raise 404, 409 or 422."""
        with self._lock:
            now = self._current(wanted.version)
            if wanted.action == "undo":
                self._collection.write(lambda: self._collection.notes.drop_grouping(now.version))
                return self.state()
            return self._save(self._tried(lambda: self._changed(now, wanted)))

    def apply(self, wanted: note_schemas.GroupApply) -> note_schemas.Changed:
        """Give every image of a group with a name that name as its label, in one change that can be taken back."""
        now = self._current(wanted.version)
        chosen = now.groups if not wanted.groups else [self._tried(lambda n=n: now.group(n)) for n in wanted.groups]  # type: ignore[misc]
        labels: dict[int, str | None] = {item: one.name for one in chosen if one.name for item in self._present(one)}
        if not labels:
            raise HTTPException(422, "None of these groups has a name: name one first.")
        number, changed = self._collection.write(lambda: self._collection.notes.change_each(labels))
        return self._collection.changed(number or self._collection.notes.last_change(), changed)

    def _changed(self, now: Grouping, wanted: note_schemas.GroupChange) -> Grouping:
        numbers, name = wanted.groups, wanted.name.strip()
        if wanted.action in ("rename", "split") and len(numbers) != 1:
            raise FineSightError(f"groups: {wanted.action} takes one group.")
        if wanted.action == "rename":
            return now.rename(numbers[0], name)
        if wanted.action == "merge":
            return now.merge(numbers)
        if wanted.action == "split":
            index = self._collection.features.get().index
            return now.split(numbers[0], wanted.parts, index, index.meta.spaces[0])
        if wanted.action == "remove":
            return now.remove(numbers)
        ids = self._collection.known(wanted.ids)
        if not ids:
            raise FineSightError("ids: none of these images is in the index.")
        return now.move(ids, numbers[0] if numbers else None, name)

    def _load(self) -> Grouping | None:
        """Return the grouping that was saved last, also by another process."""
        row = self._collection.notes.grouping_version()
        if row is None:
            self._last = None
        elif self._last is None or self._last.version != row:
            self._last = Grouping.load(self._collection.notes)
        return self._last

    def _current(self, version: int) -> Grouping:
        now = self._load()
        if now is None or now.version != version:
            raise HTTPException(409, "The groups were changed elsewhere meanwhile: look at them again.")
        return now

    def _save(self, grouping: Grouping) -> note_schemas.Groups:
        self._last = self._collection.write(lambda: grouping.save(self._collection.notes))
        return self._describe(self._last)

    @staticmethod
    def _tried(work: Callable[[], T]) -> T:
        try:
            return work()
        except NoSuchGroup as error:
            raise HTTPException(404, str(error)) from None
        except FineSightError as error:
            raise HTTPException(422, str(error)) from None

    def _present(self, group: Group) -> list[int]:
        """Return the images of a group that are still in the index."""
        there = self._collection.features.get().id_set()
        return [item for item in group.ids.tolist() if item in there]

    def _describe(self, grouping: Grouping | None) -> note_schemas.Groups:
        total = len(self._collection.features.get().listing()[0])
        if grouping is None:
            return note_schemas.Groups(version=None, groups=[], rest=total)
        rows, inside = [], 0
        for one in grouping.groups:
            ids = self._present(one)
            inside += len(ids)
            first = [str(item) for item in ids[:CLUSTER_IMAGES]]
            if ids:
                rows.append(note_schemas.GroupResponse(id=one.number, name=one.name, size=len(ids), items=first))
        return note_schemas.Groups(version=grouping.version, groups=rows, rest=total - inside)
