"""Bring an index up to date with its folder: embed what is new or changed, remove what vanished."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from finesight.data.places import as_path
from finesight.data.sources import ImageSource, open_source
from finesight.data.store import write_skipped
from finesight.errors import FineSightError, SkipImage
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder_folder import encoder_folder
from finesight.features.types import Embedder, IndexingEmbedder
from finesight.io.console import format_count
from finesight.io.parallel import available_cores, bounded_map
from finesight.io.progress import PhaseProgress, phase_bar
from finesight.search.base import Index, IndexMeta
from finesight.search.commit_batch import COMMIT_IMAGES, GROUP, CommitBatch
from finesight.search.engines import create_index, index_exists, open_index
from finesight.search.image_files import UNREADABLE_FOLDER, ImageFile, assign_ids, list_files
from finesight.search.open_embedder import require_same
from finesight.search.read_view import read_view

if TYPE_CHECKING:
    from finesight.features.on_ray import Embedded

PHASES = {"listing": "listing images", "embedding": "embedding", "finishing": "making the search fast"}


@dataclass
class IndexUpdate:
    """What an update did. Every file that is not in the index is in ``skipped``, with the reason."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    kept: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    stopped: bool = False  # on demand, before all was done

    @property
    def is_empty(self) -> bool:
        """Whether the index is as it was."""
        return not (self.added or self.changed or self.removed)

    def __str__(self) -> str:
        words = [f"{self.added:,} added", f"{self.changed:,} changed", f"{self.removed:,} removed"]
        words.append(f"{self.kept:,} as before")
        if self.skipped:
            words.append(f"{format_count(len(self.skipped), 'file')} left out")
        return ", ".join(words)


def update_index(
    index: Index,
    embedder: Embedder,
    folder: str | Path | ImageSource,
    *,
    workers: int | None = None,
    callback: PhaseProgress | None = None,
    stop: Callable[[], bool] | None = None,
    skipped_file: Path | None = None,
    commit_images: int = COMMIT_IMAGES,
    leave: Collection[str] = (),
    verify: bool = False,
    cluster: tuple[str, str | Path] | None = None,
) -> IndexUpdate:
    """Bring ``index`` up to date with ``folder`` and return what was done.

    It is safe to kill at any point and to run again: what was committed is not embedded twice, and nothing is doubled.
    ``stop`` is called after every image that was read, and while one is waited for; once it returns True, what was read
    is committed and ``IndexUpdate.stopped`` is set. Images that are left out are listed in ``skipped_file`` with the
    reason. Files of the folder that ``leave`` names are not read: the index keeps what it has of them. Items whose
    vectors are damaged are embedded again; ``verify`` reads all vectors to find them, however large the files are.
    ``cluster`` names a Ray cluster that embeds the images, and the run whose encoder it loads. Raises
    ``FineSightError`` if the index is of another encoder or another folder, if another process writes to it, or if the
    folder has no images.
    """
    report_progress = callback or (lambda phase, done, total: None)
    require_same(index, embedder, "the one given now")
    source = folder if isinstance(folder, ImageSource) else open_source(folder)
    require_root(index, source.root)
    with index.writing():
        report_progress("listing", 0, len(source))
        todo, ids, update = _remove_vanished(index, source, leave, verify=verify)
        if isinstance(embedder, TorchEmbedder) and cluster is None:
            embedder.encoder.prepare_for(len(todo))
        batch = CommitBatch(index, embedder, ids, update, commit_images)
        new_ids = assign_ids((file.path for file in todo), ids)
        work = _Work(todo, new_ids, Path(source.root), embedder, batch, report_progress, stop)
        report_progress("embedding", 0, len(todo))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="PIL")  # what matters of them is in the skip reasons
            update.stopped = not (work.embed(workers) if cluster is None else work.embed_on_cluster(*cluster))
            batch.embed()
            batch.commit()
            if not update.stopped:
                report_progress("embedding", len(todo), len(todo))
        if skipped_file is not None:
            write_skipped(sorted(update.skipped), skipped_file)
        if not update.stopped:
            report_progress("finishing", 0, 1)
            index.finish()
            report_progress("finishing", 1, 1)
    return update


def _remove_vanished(
    index: Index, source: ImageSource, leave: Collection[str], *, verify: bool
) -> tuple[list[ImageFile], dict[str, int], IndexUpdate]:
    """Remove items whose files are gone; return the files to embed, the ids of the items that stay, and what was done.

    Damaged items are embedded again.
    """
    listed = index.list_items()
    paths = listed.paths.tolist()
    ids = dict(zip(paths, listed.ids.tolist(), strict=True))
    stamps = dict(zip(paths, zip(listed.bytes.tolist(), listed.mtimes.tolist(), strict=True), strict=True))
    damaged = set(index.find_damaged(everything=verify).tolist())
    stamps = {path: stamp for path, stamp in stamps.items() if ids[path] not in damaged}
    files, skipped = list_files(source)
    present = {file.path for file in files}
    unreadable = tuple(f"{path}/" for path, reason in skipped if reason.startswith(UNREADABLE_FOLDER))
    todo = [f for f in files if stamps.get(f.path) != (f.bytes, f.mtime_ns) and f.path not in leave]
    gone = [ids.pop(path) for path in paths if path not in present and not path.startswith(unreadable)]
    if gone:
        index.remove(np.array(gone, np.int64))
    kept = len(ids) - sum(file.path in ids for file in todo)
    return todo, ids, IndexUpdate(removed=len(gone), kept=kept, skipped=skipped)


@dataclass(frozen=True)
class _Work:
    """The files of an update that are to be embedded, and what is needed for it."""

    todo: list[ImageFile]
    new_ids: dict[str, int]  # of the items of these files
    root: Path
    embedder: Embedder
    batch: CommitBatch
    report_progress: PhaseProgress
    stop: Callable[[], bool] | None

    def embed(self, workers: int | None) -> bool:
        """Read the files, and embed and commit batch by batch. Return whether all were taken."""
        workers = workers or available_cores()
        ahead = -(-2 * GROUP // workers)  # so that the next group is there when the network has finished one
        views = bounded_map(
            lambda file: read_view(self.root / file.path, self.embedder.framing),
            self.todo,
            workers,
            ahead=ahead,
            stop=self.stop,
            meanwhile=self.batch.embed_meanwhile,
        )
        done = 0
        for done, (file, result) in enumerate(views, 1):
            if isinstance(result, SkipImage):
                self.batch.skip(file.path, result)
            else:
                view, stamp = result
                self.batch.add(view, self.new_ids[file.path], file.path, stamp)
            if self._must_stop(done):
                return False
            self.report_progress("embedding", done - len(self.batch.waiting), len(self.todo))
        return done == len(self.todo)  # else it was stopped while one was waited for

    def embed_on_cluster(self, address: str, run: str | Path) -> bool:
        """Let a Ray cluster embed the files, and commit what it makes of them. Return whether all were taken."""
        for done, (file, made) in enumerate(self._made_on_cluster(address, run), 1):
            self.batch.take(file, made, self.new_ids[file.path])
            self.report_progress("embedding", done, len(self.todo))
            if self._must_stop(done):
                return False
        return True

    def _made_on_cluster(self, address: str, run: str | Path) -> Iterator[tuple[ImageFile, Embedded]]:
        """Yield what the cluster makes of the files, in any order."""
        if not self.todo:
            return
        from finesight.features.on_ray import embed_on_ray
        from finesight.features.ray_cluster import connected

        embedder = self.embedder
        exact = isinstance(embedder, TorchEmbedder) and embedder.encoder.exact
        files = [str(self.root / file.path) for file in self.todo]
        with connected(address) as ray:
            rows = embed_on_ray(ray, run, files, embedder.framing, embedder.spaces, exact=exact, progress=False)
            for made in rows:
                yield self.todo[made.number], made

    def _must_stop(self, done: int) -> bool:
        return self.stop is not None and done < len(self.todo) and self.stop()


def update_run_index(
    index: Index,
    embedder: Embedder,
    folder: str | Path | ImageSource,
    run: Path,
    *,
    workers: int | None = None,
    callback: PhaseProgress | None = None,
    stop: Callable[[], bool] | None = None,
    leave: Collection[str] = (),
    verify: bool = False,
    show: bool = True,
    cluster: str | None = None,
) -> IndexUpdate:
    """``update_index`` with a bar in the terminal; images that are left out are listed in the run's folder."""
    with phase_bar(PHASES, show) as bar:

        def report_progress(phase: str, done: int, total: int) -> None:
            bar(phase, done, total)
            if callback is not None:
                callback(phase, done, total)

        return update_index(
            index,
            embedder,
            folder,
            workers=workers,
            callback=report_progress,
            stop=stop,
            skipped_file=index.skipped_file(run),
            leave=leave,
            verify=verify,
            cluster=None if cluster is None else (cluster, run),
        )


def require_root(index: Index, root: str | Path) -> None:
    """Raise ``FineSightError`` if ``root`` is not the folder of the index: all items would seem to have vanished."""
    if os.path.realpath(root) != os.path.realpath(index.meta.root):
        raise FineSightError(
            f"The index is of the folder {index.meta.root}, not of {root}: an index belongs to one folder. "
            "Give that folder, or another place for a new index with --index."
        )


def open_or_create(where: str | Path, embedder: IndexingEmbedder, run: str | Path, root: str | Path) -> Index:
    """Open the index at ``where``, or make one for the encoder of ``run`` and the images below ``root``.

    ``run`` is a run, an encoder folder or an exported file.
    """
    if index_exists(where):
        return open_index(where)
    facts = embedder.facts
    meta = IndexMeta(
        fingerprint=embedder.fingerprint,
        method=facts.method,
        **asdict(embedder.framing),
        spaces=embedder.spaces,
        dimension=facts.channels,
        dimensions={space: width for space, width in facts.widths.items() if width != facts.channels},
        root=os.path.abspath(as_path(str(root))),
        run=os.path.abspath(run),
    )
    return create_index(where, meta, encoder_folder(run))
