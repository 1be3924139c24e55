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

from finesight.cli.options import Cluster, Exact, Interval, Json, Quiet, Watch, Workers
from finesight.errors import FineSightError, Interrupted
from finesight.io.console import console, format_count, without_password
from finesight.search.engines import uri_help

if TYPE_CHECKING:
    from finesight.search.build import IndexUpdate
    from finesight.search.watch import Change, FolderWatch

CONTINUE = "What is done is kept; the same command continues."


def index(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A finished run, an encoder folder, or a file of `finesight export`; none with --features."
        ),
    ] = None,
    folder: Annotated[
        str | None, typer.Argument(help="The images: a folder, a list of paths, or a known dataset.")
    ] = None,
    index: Annotated[str | None, typer.Option("--index", help=f"{uri_help(new=True)}  [default: RUN/index]")] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="In place of a run: features that are in a file (.parquet, .arrow, .npz, .csv), by any program."
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="With --features: the folder of the images.  [default: that of the file]")
    ] = None,
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
    if features is not None:
        if run is not None or folder is not None or watch or verify or cluster is not None:
            raise FineSightError(
                "--features takes the place of a run and its images: give --index and --root beside it."
            )
        _index_file(features, index, root, as_json, quiet)
        return
    if run is None or folder is None or root is not None:
        raise FineSightError("Give a run and its images, as `finesight index RUN FOLDER`, or --features FILE.")
    from finesight.data.sources import open_source
    from finesight.features.embedder import OnnxEmbedder
    from finesight.features.encoder_folder import warn_of_random
    from finesight.search.build import open_or_create, update_run_index
    from finesight.search.open_embedder import open_indexing_embedder
    from finesight.search.run_index import usual_place
    from finesight.search.watch import FolderWatch

    embedder = open_indexing_embedder(run, exact=exact)
    warn_of_random(embedder.facts.method, embedder.facts.weights)
    home = run
    if isinstance(embedder, OnnxEmbedder):
        if cluster is not None:
            raise FineSightError("--cluster embeds with torch: give the run, not its exported file.")
        run, home = embedder.model, embedder.model.parent
    where = usual_place(home, embedder.fingerprint) if index is None else index
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
                home,
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


def _index_file(file: Path, where: str | None, root: Path | None, as_json: bool, quiet: bool) -> None:
    from finesight.features.reading import read_features
    from finesight.io.progress import phase_bar
    from finesight.search.build import PHASES, IndexUpdate
    from finesight.search.from_features import index_features

    if where is None:
        raise FineSightError("--features needs --index: where the index is to be.")
    table = read_features(file)
    with phase_bar({**PHASES, "embedding": "adding features"}, not quiet) as bar:
        made = index_features(table, where, root, callback=bar)
    with closing(made) as store:
        _tell(where, IndexUpdate(added=len(table)), store.facts(), as_json)


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
    where = without_password(where)
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
