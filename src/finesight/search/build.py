"""Bring an index up to date with its folder: embed what is new or changed, remove what vanished."""

from __future__ import annotations

import io
import os
import stat
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from finesight.data.decode import UnreachableFile, os_reason
from finesight.data.geometry import Framing
from finesight.data.places import as_path, is_place, read_place
from finesight.data.places import stamp as place_stamp
from finesight.data.sources import ImageSource, open_source
from finesight.data.store import write_skipped
from finesight.errors import FineSightError, SkipImage
from finesight.features.embedder import TorchEmbedder, unit
from finesight.features.encoder_folder import encoder_folder
from finesight.features.preprocess import picture_view
from finesight.features.types import Embedder, Embedding, IndexingEmbedder, View
from finesight.io.console import format_count
from finesight.io.parallel import available_cores, bounded_map
from finesight.io.progress import PhaseProgress, phase_bar
from finesight.search.base import Index, IndexItem, IndexMeta, NewItems
from finesight.search.engines import create_index, index_exists, open_index
from finesight.search.image_files import UNREADABLE_FOLDER, ImageFile, assign_ids, list_files
from finesight.search.open_embedder import require_same

if TYPE_CHECKING:
    from finesight.features.on_ray import Embedded

COMMIT_IMAGES = 64  # images that are committed together …
COMMIT_SECONDS = 5.0  # … or what is done after so long: a kill loses no more, or one group …
GROUP = 32  # … of images that go through the network together
FIRST = 8  # images of the first group; the next are twice as large each: the network waits for the first one to be read
READ_TRIES, PAUSE = 3, 0.05  # to read a file that is being written, and seconds between them

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
        return _update(
            index, embedder, source, workers, report_progress, stop, skipped_file, commit_images, leave, verify, cluster
        )


def _update(
    index: Index,
    embedder: Embedder,
    source: ImageSource,
    workers: int | None,
    report_progress: PhaseProgress,
    stop: Callable[[], bool] | None,
    skipped_file: Path | None,
    commit_images: int,
    leave: Collection[str],
    verify: bool,
    cluster: tuple[str, str | Path] | None,
) -> IndexUpdate:
    """Bring an index that no one else writes to up to date."""
    report_progress("listing", 0, len(source))
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
    update = IndexUpdate(removed=len(gone), kept=kept, skipped=skipped)
    if isinstance(embedder, TorchEmbedder) and cluster is None:
        embedder.encoder.prepare_for(len(todo))
    batch = _Batch(index, embedder, ids, update, commit_images)
    new_ids, root = assign_ids((file.path for file in todo), ids), Path(source.root)
    report_progress("embedding", 0, len(todo))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # what matters of them is in the skip reasons
        local = todo if cluster is None else []
        for done, (file, made) in enumerate(_on_cluster(cluster, embedder, root, todo), 1):
            batch.take(file, made, new_ids[file.path])
            report_progress("embedding", done, len(todo))
            if stop is not None and done < len(todo) and stop():
                update.stopped = True
                break
        workers = workers or available_cores()
        ahead = -(-2 * GROUP // workers)  # so that the next group is there when the network has finished one
        views = bounded_map(
            lambda file: read_view(root / file.path, embedder.framing), local, workers, ahead=ahead, stop=stop
        )
        done = 0
        for done, (file, result) in enumerate(views, 1):
            if isinstance(result, SkipImage):
                batch.skip(file.path, result)
            else:
                view, stamp = result
                batch.add(view, new_ids[file.path], file.path, stamp)
            if stop is not None and done < len(todo) and stop():
                update.stopped = True
                break
            report_progress("embedding", done - len(batch.waiting), len(todo))
        update.stopped = update.stopped or done < len(local)  # while one was waited for
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


def _on_cluster(
    cluster: tuple[str, str | Path] | None, embedder: Embedder, root: Path, todo: Sequence[ImageFile]
) -> Iterator[tuple[ImageFile, Embedded]]:
    """Yield what a Ray cluster makes of the files, in any order; nothing without a cluster."""
    if cluster is None or not todo:
        return
    from finesight.features.on_ray import embed_on_ray
    from finesight.features.ray_cluster import connected

    address, run = cluster
    exact = isinstance(embedder, TorchEmbedder) and embedder.encoder.exact
    files = [str(root / file.path) for file in todo]
    with connected(address) as ray:
        rows = embed_on_ray(ray, run, files, embedder.framing, embedder.spaces, exact=exact, progress=False)
        for made in rows:
            yield todo[made.number], made


def require_root(index: Index, root: str | Path) -> None:
    """Raise ``FineSightError`` if ``root`` is not the folder of the index: all items would seem to have vanished."""
    if os.path.realpath(root) != os.path.realpath(index.meta.root):
        raise FineSightError(
            f"The index is of the folder {index.meta.root}, not of {root}: an index belongs to one folder. "
            "Give that folder, or another place for a new index with --index."
        )


class _Batch:
    """Embeds views up to ``GROUP`` at a time and commits them to the index ``size`` at a time, or after some seconds.

    ``ids`` are of items that the index had before.
    """

    def __init__(
        self, index: Index, embedder: Embedder, ids: Mapping[str, int], update: IndexUpdate, size: int
    ) -> None:
        self.index, self.embedder, self.ids, self.update, self.size = index, embedder, ids, update, size
        self.waiting: list[tuple[View, int, str, tuple[int, int]]] = []  # not embedded yet
        self.group = FIRST  # so many of these go through the network together
        self.first = 0.0  # when the first of these came
        self._clear()

    def _clear(self) -> None:
        self.items: list[IndexItem] = []
        self.embeddings: list[Embedding] = []
        self.unusable: list[int] = []
        self.since = time.monotonic()

    def add(self, view: View, number: int, path: str, stamp: tuple[int, int]) -> None:
        if not self.waiting:
            self.first = time.monotonic()
        self.waiting.append((view, number, path, stamp))
        is_full = len(self.waiting) >= min(self.group, self.size - len(self.items))
        if is_full or time.monotonic() - self.first >= COMMIT_SECONDS:
            self.embed()
            if len(self.items) >= self.size or time.monotonic() - self.since >= COMMIT_SECONDS:
                self.commit()

    def embed(self) -> None:
        """Embed the views that wait, together."""
        if not self.waiting:
            return
        embeddings = self.embedder.encode([view for view, *_ in self.waiting])
        for (view, number, path, stamp), embedding in zip(self.waiting, embeddings, strict=True):
            self.items.append(IndexItem(number, path, *stamp, view.width, view.height, embedding.mask))
            self.embeddings.append(embedding)
        self.waiting.clear()
        self.group = min(GROUP, 2 * self.group)

    def take(self, file: ImageFile, made: Embedded, number: int) -> None:
        """Take what a cluster made of a file; its size and time are those of the listing."""
        if made.reason:
            return self.skip(file.path, (UnreachableFile if made.unreachable else SkipImage)(made.reason))
        stamp = file.bytes, file.mtime_ns
        self.items.append(IndexItem(number, file.path, *stamp, made.width, made.height, made.mask))
        self.embeddings.append(Embedding({name: unit(values) for name, values in made.features.items()}, made.mask))
        if len(self.items) >= self.size:
            self.commit()
        return None

    def skip(self, path: str, reason: SkipImage) -> None:
        """Remove an item that is no picture any more; keep one that cannot be reached now, as it may come back."""
        self.update.skipped.append((path, str(reason)))
        if path in self.ids:
            if isinstance(reason, UnreachableFile):
                self.update.kept += 1
            else:
                self.unusable.append(self.ids[path])
                self.update.removed += 1

    def commit(self) -> None:
        if self.unusable:
            self.index.remove(np.array(self.unusable, np.int64))
        if self.items:
            spaces = self.index.meta.spaces
            vectors = {space: np.stack([one.features[space] for one in self.embeddings]) for space in spaces}
            self.index.add(NewItems(self.items, vectors))
            changed = sum(item.path in self.ids for item in self.items)
            self.update.changed += changed
            self.update.added += len(self.items) - changed
        self._clear()


def read_view(file: Path, framing: Framing) -> tuple[View, tuple[int, int]] | SkipImage:
    """Return the view of a file with its size and time, or why it cannot be used.

    A file that changes while it is read is read again: half of a picture is not damaged if the other half is just being
    written.
    """
    if is_place(file):
        try:
            return picture_view(io.BytesIO(read_place(file)), framing), place_stamp(file)
        except SkipImage as skip:
            return skip
    for _ in range(READ_TRIES):
        try:
            with open(file, "rb", opener=_open_nonblocking) as stream:
                before = _stamp(stream.fileno())
                result: tuple[View, tuple[int, int]] | SkipImage
                try:
                    result = picture_view(stream, framing), before
                except SkipImage as skip:
                    result = skip
                if _stamp(stream.fileno()) == before:
                    return result
        except SkipImage as skip:
            return skip
        except OSError as error:
            return UnreachableFile(os_reason(error))
        time.sleep(PAUSE)
    return UnreachableFile("it changed while it was read")


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without waiting: a pipe would block for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _stamp(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise UnreachableFile("not a regular file")
    return status.st_size, status.st_mtime_ns


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
