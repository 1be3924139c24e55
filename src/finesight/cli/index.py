"""``finesight index``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finesight.cli.options import Cluster, Exact, Interval, Json, Quiet, RunOrEncoder, Watch, Workers
from finesight.errors import FineSightError, Interrupted
from finesight.io.console import console, format_count
from finesight.search.engines import uri_help

if TYPE_CHECKING:
    from finesight.search.build import IndexUpdate
    from finesight.search.watch import Change, FolderWatch

CONTINUE = "What is done is kept; the same command continues."


def index(
    run: RunOrEncoder,
    folder: Annotated[str, typer.Argument(help="The images: a folder, a list of paths, or a known dataset.")],
    index: Annotated[str | None, typer.Option("--index", help=f"{uri_help(new=True)}  [default: RUN/index]")] = None,
    as_json: Json = False,
    workers: Workers = None,
    exact: Exact = False,
    cluster: Cluster = None,
    watch: Watch = False,
    interval: Interval = 5.0,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all vectors; images whose vectors are damaged are embedded again.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Make an index of a folder, or bring it up to date: only new and changed images are embedded."""
    from finesight.data.sources import open_source
    from finesight.features.embedder import TorchEmbedder
    from finesight.features.encoder_folder import warn_of_random_weights
    from finesight.search.build import open_or_create, update_run_index
    from finesight.search.watch import FolderWatch

    embedder = TorchEmbedder.load(run, exact=exact)
    warn_of_random_weights(run)
    where = _usual_place(run, embedder.fingerprint) if index is None else index
    source, leave = open_source(folder), set[str]()
    watcher = FolderWatch(folder, interval)
    with closing(open_or_create(where, embedder, run, source.root)) as store, _stop_signals() as stop:
        while True:
            change = _next_change(watcher, stop) if watch else None
            if change is not None:
                source, leave = change.source, change.unsettled
            if watch and change is None:
                raise Interrupted(stop.number, "Stopped. The index is as the folder was at the last look.")
            update = update_run_index(
                store,
                embedder,
                source,
                run,
                workers=workers,
                stop=stop.is_set,
                leave=leave,
                verify=verify,
                show=not quiet,
                cluster=cluster,
            )
            if update.stopped:
                done = update.added + update.changed
                raise Interrupted(stop.number, f"Stopped after {format_count(done, 'image')}. {CONTINUE}")
            if change is None or not (change.is_retry and update.is_empty):
                _tell(where, update, store.facts(), as_json)
            if change is None:
                return
            watcher.take(change, (path for path, _ in update.skipped))


def _usual_place(run: Path, fingerprint: str) -> str:
    """Return the index of a run: of the frozen network's own if that is the encoder that is kept."""
    from finesight.search.engines import index_exists, open_index
    from finesight.search.faiss_index import FROZEN_INDEX, RUN_INDEX

    frozen = run / FROZEN_INDEX
    if index_exists(frozen) and open_index(frozen).meta.fingerprint == fingerprint:
        return str(frozen)
    return str(run / RUN_INDEX)


def _next_change(watcher: FolderWatch, stop: _Stop) -> Change | None:
    """Wait until something of the folder has changed; None if the command is stopped. Trouble is told once."""
    told = ""
    while not stop.wait(watcher.wait()):
        try:
            if change := watcher.look():
                return change
            told = ""
        except FineSightError as error:
            if str(error) != told:
                console.print(f"{error} The index is left as it is.", markup=False)
            told = str(error)
    return None


def _tell(where: str, update: IndexUpdate, facts: dict[str, Any], as_json: bool) -> None:
    """Print what an update did."""
    if update.skipped:
        path, reason = sorted(update.skipped)[0]
        console.print(f"{format_count(len(update.skipped), 'file')} left out, the first {path}: {reason}", markup=False)
    if as_json:
        counts = {"added": update.added, "changed": update.changed, "removed": update.removed, "kept": update.kept}
        print(json.dumps({"index": where, **counts, "skipped": len(update.skipped), **facts}), flush=True)
        return
    found = "exact" if facts["kind"] == "exact" else f"{facts['kind']}, recall@10 {facts['recall_at_10']:.3f} of exact"
    print(f"{where}: {format_count(facts['items'], 'image')} ({update}). Search: {found}.", flush=True)


class _Stop(threading.Event):
    """Set when a signal asked to stop; ``number`` says which one."""

    number = 0


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Yield an event that the first Ctrl-C or SIGTERM sets, so that the image under way is finished.

    A second signal ends the command at once, which is safe too: Ctrl-C then raises ``Interrupted``.
    """
    stop = _Stop()
    previous: dict[int, Any] = {}

    def handle(number: int, frame: Any) -> None:
        stop.number = number
        stop.set()
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)
        previous.clear()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handle)
    try:
        yield stop
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT, f"Stopped. {CONTINUE}") from None
    finally:
        restore()
