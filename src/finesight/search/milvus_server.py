"""An index in a Milvus server: one collection for each space, which a manifest holds together (``milvus_manifest``).

    NAME__fs_eN          the manifest: an empty collection, whose properties say what is committed and who writes
    NAME__fs_TOKEN_n     the vectors of the n-th space, each with its own graph; the first has paths and masks, too

A row is never changed. An image that is added again gets a new row; the manifest then hides the old one, which is
deleted after that. Readers search under the manifest they know and look afterwards whether it is still the same.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy as np

from finesight.errors import FineSightError
from finesight.features.types import Floats
from finesight.search.base import Ids, IndexItem, IndexMeta, ItemList, NewItems
from finesight.search.image_files import path_id
from finesight.search.milvus_client import (
    FIELDS,
    Address,
    PatientClient,
    from_entity,
    milvus_errors,
    milvus_exceptions,
    path_to_text,
    text_to_path,
)
from finesight.search.milvus_index import EXACT, NO_INDEX, Hits, MilvusIndex, MilvusLimits
from finesight.search.milvus_manifest import COMMIT_ROWS, MAX_DEAD, Lease, Manifest, ManifestLog, key_runs, run_keys
from finesight.search.milvus_spaces import GRAPH_ROWS, Spaces

EFFORT = 256  # candidates of a graph whose recall is not measured yet
REMEASURE = 0.1  # share of the images that may change before the recall is measured anew
READ_TRIES = 20  # to read while others change the index
PAUSES = (0.5, 2.0, 5.0)  # seconds after which rows are sent again that could not be

T = TypeVar("T")


class MilvusServerIndex(MilvusIndex):
    """Wrap the collections that the newest manifest names."""

    def __init__(self, address: Address, client: Any, limits: MilvusLimits) -> None:
        super().__init__(address, client, limits)
        self._patient = PatientClient(client, limits.timeout)
        self._log = ManifestLog(self._patient, address, limits.timeout)
        self._lease: Lease | None = None
        self._abandoned = ""  # the writer of a lease that was given up
        self._deleted = True  # what the last commit hid
        entry = self._log.newest()
        if entry is None:
            raise FineSightError(NO_INDEX.format(address.shown))
        self._held = entry, entry.manifest
        self.meta = IndexMeta.parse(entry.meta, f"The index {address.shown}")
        self._spaces = Spaces(self._patient, address, self.meta, limits.timeout)
        self._spaces.load(self._held[1])

    @classmethod
    def prepare(cls, address: Address, client: Any, meta: IndexMeta, kind: str, limits: MilvusLimits) -> None:
        client = PatientClient(client, limits.timeout)
        spaces, log = Spaces(client, address, meta, limits.timeout), ManifestLog(client, address, limits.timeout)
        names = spaces.make(uuid.uuid4().hex[:8], kind or "HNSW")
        entry = log.create(1, meta.model_dump_json(), Manifest(collections=names))
        if entry is None:
            spaces.drop(names.values())
            raise FineSightError(f"There is an index {address.shown} already.")
        log.release(entry)

    # --- reading --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        with milvus_errors(self.address):
            return self._refresh().items

    def list_items(self) -> ItemList:
        def ask(now: Manifest) -> list[tuple[int, str, int, int]]:
            pages = self._spaces.pages(now, self.meta.spaces[0], ("path", "bytes", "mtime_ns"), self.limits.page_rows)
            rows = (row for page in pages for row in page)
            return [(row["id"], text_to_path(row["path"]), row["bytes"], row["mtime_ns"]) for row in rows]

        return ItemList.from_rows(sorted(self._read(ask), key=lambda row: (row[1], row[0])))

    def items(self, ids: Sequence[int]) -> list[IndexItem | None]:
        wanted, step = [int(item) for item in ids], self.limits.page_rows
        rows = self._read(lambda now: self._spaces.of_ids(now, self.meta.spaces[0], wanted, FIELDS, step))
        items = {row["id"]: from_entity(row) for row in rows}
        return [items.get(item) for item in wanted]

    def vectors(self, ids: Ids, space: str) -> Floats:
        wanted = np.asarray(ids, np.int64).reshape(-1).tolist()
        step = self._page_rows(self.limits.page_rows, self.check_space(space))
        rows = self._read(lambda now: self._spaces.of_ids(now, space, wanted, ("vector",), step))
        found = {row["id"]: np.array(row["vector"], np.float32) for row in rows}
        if missing := [item for item in wanted if item not in found]:
            raise FineSightError(f"The index has no item {missing[0]}.")
        return np.array([found[item] for item in wanted], np.float32).reshape(-1, self.meta.width(space))

    def blocks(self, space: str, rows: int = 4096) -> Iterator[tuple[Ids, Floats]]:
        """Yield all vectors. Of images that another process replaces meanwhile, some may be missing."""
        step = self._page_rows(rows, self.check_space(space))
        with milvus_errors(self.address):
            for page in self._spaces.pages(self._refresh(), space, ("vector",), step):
                yield np.array([row["id"] for row in page]), np.array([row["vector"] for row in page], np.float32)

    def _facts(self, space: str) -> dict[str, Any]:
        return dict(self._held[1].facts.get(space, EXACT))

    def _ask(self, queries: Floats, k: int, space: str, effort: int) -> tuple[Floats, Ids]:
        return self._read(lambda now: self._search(queries, k, space, effort or EFFORT, now))

    def _nearest(self, queries: Floats, limit: int, space: str, options: dict[str, Any], now: Manifest) -> list[Hits]:
        return self._spaces.nearest(now, space, queries, limit, options)

    def _refresh(self) -> Manifest:
        """Return the manifest that counts now: the same object as long as nothing changed."""
        known, manifest = self._held
        entry = self._log.newest(known)
        if entry is None:
            raise FineSightError(NO_INDEX.format(self.address.shown))
        if entry.text != known.text:
            manifest = entry.manifest
        self._held = entry, manifest
        return manifest

    def _read(self, ask: Callable[[Manifest], T]) -> T:
        """Return what was read under one manifest, which still counted after that.

        The rows of a state are all there until some of them die, so a manifest that was read for this purpose will do
        as long as nothing was removed since. An older one must not have changed at all.
        """
        with milvus_errors(self.address):
            now, is_new = self._held[1], False
            for _ in range(READ_TRIES):
                try:
                    found, failure = ask(now), None
                except milvus_exceptions() as error:
                    failure = error
                later = self._refresh()
                if failure is None and (later is now or (is_new and later.removed == now.removed)):
                    return found
                if failure is not None and later is now:
                    raise failure
                now, is_new = later, True
        raise FineSightError(f"The index {self.address.shown} changes too often to be read: try again later.")

    # --- writing --------------------------------------------------------------------------------------------------

    def add(self, batch: NewItems) -> None:
        """Add items; up to ``COMMIT_ROWS`` are committed as a whole."""
        items = self.check_batch(batch)
        for start in range(0, len(items), COMMIT_ROWS):
            part = slice(start, start + COMMIT_ROWS)
            with self._writing() as lease:
                dead = self._replaced(lease.manifest, items[part])
                self._send(lease, items[part], {space: batch.vectors[space][part] for space in self.meta.spaces})
                self._commit(lease, len(items[part]), dead)

    def remove(self, ids: Ids) -> None:
        """Remove items; up to ``MAX_DEAD`` are removed as a whole."""
        wanted = np.asarray(ids, np.int64).tolist()
        for start in range(0, len(wanted), MAX_DEAD):
            with self._writing() as lease:
                condition = f"id in {wanted[start : start + MAX_DEAD]}"
                rows = self._spaces.query(lease.manifest, self.meta.spaces[0], condition, ())
                if rows:
                    self._commit(lease, 0, [row["pk"] for row in rows])

    def finish(self) -> None:
        """Wait until the graphs are built, measure their recall if much has changed, and let other processes write."""
        with milvus_errors(self.address):
            if self._lease is None and not self._is_due(self._refresh()):
                return
        with self._writing() as lease:
            if self._is_due(lease.manifest):
                kinds = self._spaces.build_graphs(lease.manifest)
                facts = {space: self._fit(space, kind) for space, kind in kinds.items()}
                lease.commit(lease.manifest.model_copy(update={"facts": facts, "changed": 0}))
            self._delete_dead(lease)
            if lease.manifest.dead:
                lease.commit(lease.manifest.model_copy(update={"dead": (), "time": self._patient.alloc_timestamp()}))
            self._spaces.drop_unnamed(lease.manifest)
            self._lease = None
            lease.release()

    def close(self) -> None:
        if self._open and self._lease is not None:
            with suppress(FineSightError, *milvus_exceptions()):
                self._lease.release()
            self._lease = None
        super().close()

    def _is_due(self, now: Manifest) -> bool:
        """Return whether the recall is to be measured."""
        return set(now.facts) != set(self.meta.spaces) or now.changed > REMEASURE * now.items

    @contextmanager
    def _writing(self) -> Iterator[Lease]:
        """Be the only writer in the block and after it; give that up if the block fails."""
        with milvus_errors(self.address):
            if self._lease is None:
                self._lease, failed = Lease.acquire(self._log, self.limits.lease, self._abandoned)
                self._deleted = not self._lease.manifest.dead
                if failed:
                    self._delete_late(self._lease.manifest)
            lease = self._lease
            try:
                yield lease
            except BaseException:
                self._lease, self._abandoned = None, lease.writer
                lease.abandon()
                raise

    def _replaced(self, now: Manifest, items: Sequence[IndexItem]) -> list[int]:
        """Return the keys of the rows that have the id or the path of one of these items."""
        if not now.items:
            return []
        ids, paths = {item.id for item in items}, {path_to_text(item.path) for item in items}
        condition = f"(id in {sorted(ids)} or path_key in {sorted({path_id(item.path) for item in items})})"
        rows = self._spaces.query(now, self.meta.spaces[0], condition, ("path",))
        return [row["pk"] for row in rows if row["id"] in ids or row["path"] in paths]

    def _send(self, lease: Lease, items: Sequence[IndexItem], vectors: dict[str, Floats]) -> None:
        """Send rows, and do so again if that fails.

        Whether a request that failed arrived is not known: it may even arrive later. So the next try uses other keys.
        """
        for pause in (*PAUSES, None):
            try:
                return self._spaces.send(lease.manifest, items, vectors)
            except milvus_exceptions():
                if pause is None:
                    raise
                time.sleep(pause)
                lease.commit(lease.manifest.skip())
                self._spaces.delete(lease.manifest, range(*lease.manifest.holes[-1]))

    def _commit(self, lease: Lease, added: int, dead: list[int]) -> None:
        """Show new rows and hide old ones, and then delete these."""
        self._delete_dead(lease)
        now = lease.manifest
        change = {
            "rows": now.rows + added,
            "items": now.items + added - len(dead),
            "removed": now.removed + len(dead),
            "changed": now.changed + added + len(dead),
            "dead": key_runs(dead),
            "time": self._patient.alloc_timestamp(),
        }
        lease.commit(now.model_copy(update=change))
        self._deleted = not dead
        self._delete_dead(lease)

    def _delete_dead(self, lease: Lease) -> None:
        if not self._deleted:
            self._spaces.delete(lease.manifest, run_keys(lease.manifest.dead))
            self._deleted = True

    def _delete_late(self, now: Manifest) -> None:
        """Delete what the writer that failed last had sent and not committed, and what of the first may have come
        since: its keys are the next that the manifest forgets."""
        for first, end in {now.holes[0], now.holes[-1]}:
            self._spaces.delete(now, range(first, end))

    def _fit(self, space: str, kind: str) -> dict[str, Any]:
        facts = self._measure(space, kind)
        is_exact = len(self) < GRAPH_ROWS and facts["recall_at_10"] == 1.0
        return dict(EXACT) if is_exact else facts
