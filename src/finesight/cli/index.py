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

from finesight.cli.options import Json, Quiet, Workers
from finesight.errors import Interrupted
from finesight.search.engines import uri_help

if TYPE_CHECKING:
    from finesight.search.build import Report

CONTINUE = "What is done is kept; the same command continues."


def index(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, or of an encoder.")],
    folder: Annotated[str, typer.Argument(help="The images: a folder, a list of paths, or a known dataset.")],
    index: Annotated[
        str | None,
        typer.Option("--index", help=f"{uri_help(new=True)}  [default: RUN/index]"),
    ] = None,
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
    with closing(open_or_create(where, embedder, run, source.root)) as store, _stoppable() as stop:
        with phase_bar(PHASES, not quiet) as tell:
            report = _finished(
                lambda: update_index(
                    store,
                    embedder,
                    source,
                    workers=workers,
                    callback=tell,
                    stop=stop.is_set,
                    skipped_file=store.skipped_file(run),
                ),
                stop,
            )
        facts = store.facts()
    if report.skipped:
        path, reason = sorted(report.skipped)[0]
        console.print(f"{len(report.skipped):,} files left out, the first {path}: {reason}", markup=False)
    if as_json:
        print(json.dumps(summary(where, report, facts)))
        return
    print(f"{where}: {facts['items']:,} images ({report}). Search: {facts['kind']}", end="")
    print("." if facts["kind"] == "exact" else f", recall@10 {facts['recall_at_10']:.3f} of exact.")


def summary(where: str, report: Report, facts: dict[str, object]) -> dict[str, object]:
    """What --json prints."""
    counts = {"added": report.added, "changed": report.changed, "removed": report.removed, "kept": report.kept}
    return {"index": where, **counts, "skipped": len(report.skipped), **facts}


class _Stop(threading.Event):
    """Which signal asked to stop."""

    number = 0


@contextmanager
def _stoppable() -> Iterator[_Stop]:
    """The first Ctrl-C lets the image under way be finished; a second one ends at once, which is safe too."""
    stop = _Stop()
    previous: dict[int, Any] = {}

    def ask(number: int, frame: Any) -> None:
        stop.number = number
        stop.set()
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)
        previous.clear()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()


def _finished(work: Any, stop: _Stop) -> Report:
    try:
        report: Report = work()
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT, f"Stopped. {CONTINUE}") from None
    if report.stopped:
        done = report.added + report.changed
        raise Interrupted(stop.number, f"Stopped after {done:,} images. {CONTINUE}")
    return report
