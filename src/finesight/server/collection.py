"""The images of a folder with what people wrote about them: which of them match a filter, and how one is described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np
from fastapi import HTTPException

from finesight.io.natural import natural_key
from finesight.io.table import table_text
from finesight.search.base import Hit, Ids, Index, IndexItem
from finesight.search.notes import NOTHING, Note, Notes, NotesReadOnly, NotTheLastChange
from finesight.server import note_schemas, schemas
from finesight.server.camera_store import CameraStore
from finesight.server.feature_sets import FeatureSet, FeatureSets
from finesight.server.image_store import file_name, printable
from finesight.server.parameters import ItemFilter

T = TypeVar("T")
FOLDERS = 2000  # that are listed


class Collection:
    """Images and notes. The methods block; routes call them in a work queue."""

    def __init__(self, features: FeatureSets, notes: Notes, camera: CameraStore) -> None:
        self.features, self.notes, self.camera = features, notes, camera

    # --- images ---------------------------------------------------------------------------------------------------

    def matching(self, wanted: ItemFilter) -> list[int]:
        """Return the ids of the images that match, by path."""
        ids, paths = self.features.get().listing()
        tests = self._tests(wanted)
        if not tests:
            return ids
        return [item for item, path in zip(ids, paths, strict=True) if all(test(item, path) for test in tests)]

    def among(self, wanted: ItemFilter) -> Ids | None:
        """Return the ids that a search may find; None for all."""
        return np.array(self.matching(wanted), np.int64) if self._tests(wanted) else None

    def _tests(self, wanted: ItemFilter) -> list[Callable[[int, str], bool]]:
        tests: list[Callable[[int, str], bool]] = []
        if wanted.text:
            text = wanted.text.lower()
            tests.append(lambda item, path: text in path)
        if wanted.folder:
            folder = wanted.folder.lower().strip("/") + "/"
            tests.append(lambda item, path: path.startswith(folder))
        notes = self.notes.all() if wanted.label or wanted.tag or wanted.labeled is not None else {}
        if wanted.label:
            tests.append(lambda item, path: notes.get(item, NOTHING).label == wanted.label)
        if wanted.labeled is not None:
            tests.append(lambda item, path: bool(notes.get(item, NOTHING).label) is wanted.labeled)
        if wanted.tag:
            tests.append(lambda item, path: wanted.tag in notes.get(item, NOTHING).tags)
        if wanted.since or wanted.until:
            since, until = wanted.since or "", (wanted.until or "9999-12-31") + "T99"
            tests.append(lambda item, path: since <= (self.camera.get(item).taken or "") <= until)
            tests.append(lambda item, path: self.camera.get(item).taken is not None)
        if wanted.camera:
            tests.append(lambda item, path: self.camera.get(item).camera == wanted.camera)
        return tests

    def fields(self, item: IndexItem | Hit, notes: Mapping[int, Note] | None = None) -> dict[str, Any]:
        """Return what every answer says of an image; ``notes`` are all of them, if they are known."""
        note = (self.notes.all() if notes is None else notes).get(item.id, NOTHING)
        return {
            "id": str(item.id),
            "path": printable(item.path),
            "name": file_name(item.path),
            "width": item.width,
            "height": item.height,
            "label": note.label,
            "tags": list(note.tags),
        }

    def describe(self, index: Index, ids: Sequence[int]) -> list[schemas.ItemResponse]:
        """Return those of the images that are still there."""
        notes = self.notes.all()
        return [schemas.ItemResponse(**self.fields(item, notes)) for item in index.items(ids) if item is not None]

    def list_items(self, ids: Iterable[str]) -> schemas.Items:
        """Return the images with these ids, in their order."""
        found = self.describe(self.features.get().index, self.known(ids))
        return schemas.Items(total=len(found), items=found)

    def folders(self) -> schemas.Folders:
        """Return the folders that images are in, with the number of images in each and below it."""
        ids, _ = self.features.get().listing()
        counts: Counter[str] = Counter()
        for path in self.features.get().paths():
            for parent in PurePosixPath(path).parents:
                if (name := str(parent)) not in (".", "/"):
                    counts[name] += 1
        names = sorted(counts, key=natural_key)[:FOLDERS]
        return schemas.Folders(items=len(ids), folders=[schemas.NamedCount(name=n, count=counts[n]) for n in names])

    # --- labels and tags ------------------------------------------------------------------------------------------

    def labels(self) -> note_schemas.Labels:
        """Return all labels and tags with the number of images that have them."""
        ids, notes = self.features.get().id_set(), self.notes.all()
        here = [note for item, note in notes.items() if item in ids]
        labels = Counter(note.label for note in here if note.label)
        tags = Counter(tag for note in here for tag in note.tags)
        return note_schemas.Labels(
            labels=_counted(labels),
            tags=_counted(tags),
            unlabeled=len(ids) - labels.total(),
            change=self.notes.last_change(),
        )

    def change_labels(self, change: note_schemas.LabelChange) -> note_schemas.Changed:
        """Label and tag images of the index; others that are named are left out."""
        known = self.known(change.ids)
        label = None if change.label is None else change.label.strip()
        add, remove = (_clean(tags) for tags in (change.add_tags, change.remove_tags))
        number, changed = self.write(lambda: self.notes.change(known, label=label, add=add, remove=remove))
        return self.changed(number or self.notes.last_change(), changed)

    def undo(self, change: int) -> note_schemas.Changed:
        """Take back the last change."""
        changed = self.write(lambda: self.notes.undo(change))
        return self.changed(self.notes.last_change(), changed)

    def changed(self, number: int | None, ids: Sequence[int]) -> note_schemas.Changed:
        """Return what a change left."""
        notes = self.notes.all()
        told = [(item, notes.get(item, NOTHING)) for item in ids[: note_schemas.MOST_TOLD]]
        return note_schemas.Changed(
            change=number,
            changed=len(ids),
            notes=[note_schemas.NoteResponse(id=str(item), label=one.label, tags=list(one.tags)) for item, one in told],
        )

    def export(self, kind: str, wanted: ItemFilter) -> str:
        """Return the labels of the images that match: as a table, or as a list that --data reads."""
        notes = self.notes.all()
        matching = [item for item in self.matching(wanted) if item in notes]
        items = [item for item in self.features.get().index.items(matching) if item is not None]
        if kind == "list":
            labeled = [(item, notes.get(item.id, NOTHING).label) for item in items]
            rows = [(item.path, label) for item, label in labeled if label and "\n" not in item.path]
            return table_text(("path", "label"), rows)
        table = [
            (item.path, note.label, ";".join(note.tags), str(item.id))
            for item in items
            if (note := notes.get(item.id, NOTHING)) != NOTHING
        ]
        return table_text(("path", "label", "tags", "id"), table)

    def known(self, ids: Iterable[str]) -> list[int]:
        """Return those of the ids that are of the index."""
        there = self.features.get().id_set()
        return [item for item in dict.fromkeys(map(int, ids)) if item in there]

    # --- names of parts, saved views, pins -------------------------------------------------------------------------

    def part_names(self, features: FeatureSet) -> dict[str, str]:
        """Return the names that people gave to the projections of an encoder, by number."""
        return self.notes.kept(f"part:{features.fingerprint}")

    def name_part(self, wanted: note_schemas.PartName) -> note_schemas.PartNames:
        """Name a part; an empty name takes it away."""
        used, name = self.features.get(wanted.features), wanted.name.strip()
        self.write(lambda: self.notes.keep(f"part:{used.fingerprint}", str(wanted.k), name or None))
        return note_schemas.PartNames(names=self.part_names(used))

    def saved(self) -> note_schemas.Saved:
        """Return the saved views and the pinned images that are still there."""
        views = [
            note_schemas.SavedView(name=name, address=address) for name, address in self.notes.kept("view").items()
        ]
        pins = self.known(self.notes.kept("pins").get("pins", []))
        return note_schemas.Saved(views=views, pins=self.describe(self.features.get().index, pins))

    def save_view(self, wanted: note_schemas.SaveView) -> note_schemas.Saved:
        """Save a view under a name; without an address it is forgotten."""
        name = wanted.name.strip()
        if not name:
            raise HTTPException(422, "name: A saved view needs a name.")
        if wanted.address and len(self.notes.kept("view")) >= note_schemas.MOST_VIEWS:
            raise HTTPException(409, f"No more than {note_schemas.MOST_VIEWS} views can be saved: remove one first.")
        self.write(lambda: self.notes.keep("view", name, wanted.address))
        return self.saved()

    def save_pins(self, wanted: note_schemas.Pins) -> note_schemas.Saved:
        """Keep the pinned images."""
        self.write(lambda: self.notes.keep("pins", "pins", list(dict.fromkeys(wanted.ids)) or None))
        return self.saved()

    @staticmethod
    def write(work: Callable[[], T]) -> T:
        """Run what writes notes; raise 409 if that is not possible."""
        try:
            return work()
        except (NotesReadOnly, NotTheLastChange) as error:
            raise HTTPException(409, str(error)) from None


def _counted(counts: Counter[str]) -> list[schemas.NamedCount]:
    return [schemas.NamedCount(name=name, count=counts[name]) for name in sorted(counts, key=natural_key)]


def _clean(tags: Sequence[str]) -> list[str]:
    return [tag for tag in dict.fromkeys(tag.strip() for tag in tags) if tag]
