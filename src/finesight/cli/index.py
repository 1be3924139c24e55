"""``finesight index``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer

from finesight.cli.options import Json, Quiet, RunOrEncoder, Workers
from finesight.errors import Interrupted
from finesight.search.engines import uri_help

CONTINUE = "What is done is kept; the same command continues."


def index(
    run: RunOrEncoder,
    folder: Annotated[str, typer.Argument(help="The images: a folder, a list of paths, or a known dataset.")],
    index: Annotated[str | None, typer.Option("--index", help=f"{uri_help(new=True)}  [default: RUN/index]")] = None,
    as_json: Json = False,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Make an index of a folder, or bring it up to date: only new and changed images are embedded."""
    from finesight.data.sources import open_source
    from finesight.features.embedder import TorchEmbedder
    from finesight.io.console import console
    from finesight.io.progress import phase_bar
    from finesight.search.build import PHASES, open_or_create, update_index

    where = str(run / "index") if index is None else index
    embedder = TorchEmbedder.load(run)
    source = open_source(folder)
    with closing(open_or_create(where, embedder, run, source.root)) as store:
        with _stop_signals() as stop, phase_bar(PHASES, not quiet) as bar:
            update = update_index(
                store,
                embedder,
                source,
                workers=workers,
                callback=bar,
                stop=stop.is_set,
                skipped_file=store.skipped_file(run),
            )
        if update.stopped:
            done = update.added + update.changed
            raise Interrupted(stop.number, f"Stopped after {done:,} images. {CONTINUE}")
        facts = store.facts()
    if update.skipped:
        path, reason = sorted(update.skipped)[0]
        console.print(f"{len(update.skipped):,} files left out, the first {path}: {reason}", markup=False)
    if as_json:
        counts = {"added": update.added, "changed": update.changed, "removed": update.removed, "kept": update.kept}
        print(json.dumps({"index": where, **counts, "skipped": len(update.skipped), **facts}))
        return
    print(f"{where}: {facts['items']:,} images ({update}). Search: {facts['kind']}", end="")
    print("." if facts["kind"] == "exact" else f", recall@10 {facts['recall_at_10']:.3f} of exact.")


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
