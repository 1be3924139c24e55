"""``finesight serve``. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import CacheDir, Exact, Quiet
from finesight.cli.search import Engine, Model, Run, TextModel, engine_for
from finesight.errors import FineSightError, Interrupted
from finesight.search.engines import uri_help

if TYPE_CHECKING:
    from finesight.features.embedder import OnnxEmbedder, TorchEmbedder
    from finesight.search.base import Index
    from finesight.server.config import ServerConfig

Host = Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every network of the machine.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port.")]
Token = Annotated[
    str | None,
    typer.Option(envvar="FINESIGHT_TOKEN", show_envvar=True, help="A secret that every request must present."),
]
AllowHost = Annotated[
    list[str] | None, typer.Option(help="A host name that the server answers to, beside localhost and --host.")
]
OpenPage = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")]
Queue = Annotated[int, typer.Option(min=1, max=10_000, help="Most pictures that may wait for the network.")]
MetricsOpen = Annotated[bool, typer.Option("--metrics-open", help="Let /metrics be read without the token.")]
CameraDataOption = Annotated[
    bool | None,
    typer.Option(
        "--camera-data/--no-camera-data",
        help="Show when, by which camera and where photos were taken.  [default: if only this machine is served]",
        show_default=False,
    ),
]
MaxUpload = Annotated[float, typer.Option("--max-upload-mb", min=0.01, max=1000, help="Largest upload.")]


def serve(
    where: Annotated[list[str], typer.Argument(help=f"{uri_help()} Several are offered on one page.")],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    allow_host: AllowHost = None,
    open_page: OpenPage = False,
    queue: Queue = 32,
    max_upload_mb: MaxUpload = 20.0,
    metrics_open: MetricsOpen = False,
    camera_data: CameraDataOption = None,
    engine: Engine = None,
    model: Model = None,
    text_model: TextModel = None,
    update: Annotated[
        str | None, typer.Option(help="Bring the index up to date with its folder, given here, while serving.")
    ] = None,
    run: Run = None,
    exact: Exact = False,
    cache_dir: CacheDir = None,
    quiet: Quiet = False,
) -> None:
    """Search an index in the browser: a page, and an API that /docs describes."""
    from finesight.features.encoder_folder import warn_of_random
    from finesight.features.text_tower import TextTower
    from finesight.search.engines import open_index
    from finesight.search.open_embedder import open_embedder
    from finesight.server.run_server import bind, run_server, run_several, update_job

    config = server_config(
        host, port, token, allow_host, open_page, queue, max_upload_mb, cache_dir, metrics_open, camera_data
    )
    kind = engine_for(engine, model, run)
    bind(host, port).close()  # an address that cannot be used is refused before the slow part
    if len(where) > 1 and any(one is not None for one in (update, run, model, text_model)):
        raise FineSightError(
            "--update, --run, --model and --text-model are for one index: give one, or leave them out."
        )
    with stoppable():
        opened: list[tuple[str, Index, TorchEmbedder | OnnxEmbedder]] = []
        for one in where:
            index = open_index(one)
            known = [embedder for _, _, embedder in opened if embedder.fingerprint == index.meta.fingerprint]
            opened.append((one, index, known[0] if known else open_embedder(kind, index, model or run, exact=exact)))
            if not known:
                warn_of_random(opened[-1][2].facts.method, opened[-1][2].facts.weights)
        if len(opened) > 1:
            run_several(opened, config)
            return
        _, index, embedder = opened[0]
        job = None
        if update is not None:
            job = update_job(where[0], embedder, update, Path(index.meta.run), progress=not quiet)
        tower = None if text_model is None else TextTower.load(text_model, embedder)
        run_server(index, embedder, config, job, tower=tower)


def server_config(
    host: str,
    port: int,
    token: str | None,
    allow_host: list[str] | None,
    open_page: bool,
    queue: int,
    max_upload_mb: float,
    cache_dir: Path | None,
    metrics_open: bool = False,
    camera_data: bool | None = None,
) -> ServerConfig:
    """Return the settings that the options of ``serve`` and ``up`` stand for."""
    from finesight.server.config import ServerConfig

    upload_bytes = int(max_upload_mb * 2**20)
    return ServerConfig(
        host=host,
        port=port,
        token=token,
        allow_hosts=tuple(allow_host or ()),
        open_browser=open_page,
        cache_dir=cache_dir,
        metrics_open=metrics_open,
        camera_data=camera_data,
        queue=queue,
        upload_bytes=upload_bytes,
        all_uploads_bytes=max(ServerConfig.all_uploads_bytes, 2 * upload_bytes),
    )


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn Ctrl-C before the server answers into an ordinary end."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT, "Stopped.") from None
