"""A server from its first line to Ctrl-C."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from finesight.errors import FineSightError
from finesight.features.types import Embedder
from finesight.io.console import console
from finesight.io.progress import phase_bar
from finesight.search.base import Index
from finesight.search.build import PHASES, update_index
from finesight.search.engines import open_index
from finesight.server.app import create_app
from finesight.server.guard import Access, is_loopback
from finesight.server.jobs import Job
from finesight.server.limits import Limits
from finesight.server.listen import address_of, bind, serve_app
from finesight.server.service import Service

JOB_SECONDS = 5.0  # the image under way is finished; longer than that is not waited for


@dataclass(frozen=True)
class Place:
    """Where to listen, and to whom."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    allow_hosts: Sequence[str] = ()
    browser: bool = False

    def __post_init__(self) -> None:
        if self.token and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise FineSightError("--token must be letters, digits and signs of ASCII, without spaces.")


def run_server(
    index: Index,
    embedder: Embedder,
    place: Place,
    limits: Limits,
    *,
    job: Job | None = None,
    cache_dir: Path | None = None,
) -> None:
    """Until Ctrl-C. The address goes to standard output as soon as it answers."""
    bound = bind(place.host, place.port)
    access = Access.bound(place.host, place.allow_hosts, place.token)
    service = Service(index, embedder, limits, job=job, cache_dir=cache_dir)
    app = create_app(service, access)
    address = address_of(bound, place.host)
    if access.token is None and not is_loopback(place.host):
        console.print(
            f"Warning: everyone who reaches {place.host} can search and see the images of {index.meta.root}. "
            "Give --token to ask for a word first.",
            markup=False,
        )

    def started() -> None:
        link = address if access.token is None else f"{address}?token={quote(access.token, safe='')}"
        print(f"FineSight is at {link}", flush=True)
        console.print("Ctrl-C stops it.")
        if place.browser and _has_screen():
            webbrowser.open(link)

    if job is not None:
        job.start()
    try:
        serve_app(app, bound, limits, started)
    finally:
        if not service.close(JOB_SECONDS):
            sys.stdout.flush()
            os._exit(0)  # an index may be left at any point; waiting for a thread that builds one may take minutes
    console.print("Stopped.")


def update_job(
    where: str, embedder: Embedder, folder: str | Path, run: Path, *, workers: int | None = None, progress: bool = True
) -> Job:
    """Brings the index in ``where`` up to date with its folder, by a connection of its own: searching goes on."""

    def work(job: Job) -> None:
        with closing(open_index(where)) as index, phase_bar(PHASES, progress) as bar:

            def tell(phase: str, done: int, total: int) -> None:
                job.tell(phase, done, total)
                bar(phase, done, total)

            report = update_index(
                index,
                embedder,
                folder,
                workers=workers,
                callback=tell,
                stop=job.stopping,
                skipped_file=index.skipped_file(run),
            )
        if not report.stopped:
            console.print(f"The index is up to date: {report}.", markup=False)

    return Job(work)


def _has_screen() -> bool:
    """Without one, Python would start a text browser in the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
