"""``finesight up``: train, index and serve a folder. Heavy imports live inside the functions: --help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finesight.cli.options import Backbone, CacheDir, Epochs, Quiet, Resolution, Settings, Weights, Workers
from finesight.cli.serve import AllowHost, Host, MaxUpload, OpenPage, Port, Queue, Token, server_config, stoppable
from finesight.cli.settings import assignments
from finesight.errors import FineSightError

if TYPE_CHECKING:
    from finesight.server.config import ServerConfig
    from finesight.training.config import TrainConfig
    from finesight.training.run_folder import RunFolder

BATCH = 128  # of training, where there are that many images


def up(
    folder: Annotated[Path, typer.Argument(help="A folder of images, a list of paths, or a known dataset.")],
    out: Annotated[
        Path | None, typer.Option(help="The run folder.  [default: finesight-NAME beside the folder]")
    ] = None,
    method: Annotated[str | None, typer.Option(help="lcr, or frozen to train nothing.  [default: lcr]")] = None,
    weights: Weights = None,
    backbone: Backbone = None,
    resolution: Resolution = None,
    epochs: Epochs = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images per step.  [default: 128, or fewer if there are]")
    ] = None,
    settings: Settings = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    allow_host: AllowHost = None,
    open_page: OpenPage = True,
    queue: Queue = 32,
    max_upload_mb: MaxUpload = 20.0,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Train on a folder, index it and serve the page. Run it again to continue, or to use what is there."""
    from finesight.data.sources import open_source
    from finesight.server.run_server import bind

    options = {
        "method": method,
        "backbone.weights": weights,
        "backbone.name": backbone,
        "views.resolution": resolution,
        "epochs": epochs,
        "batch_size": batch_size,
    }
    given = {key: value for key, value in options.items() if value is not None} | assignments(settings or [])
    config = server_config(host, port, token, allow_host, open_page, queue, max_upload_mb, cache_dir)
    bind(host, port).close()  # an address that cannot be used is refused before hours of training
    images = len(open_source(folder).split("train"))
    run = run_folder(folder, out)
    with stoppable():
        _train(run, folder, images, given, cache_dir, workers, not quiet)
        _serve(run, folder, config, workers, not quiet)


def run_folder(folder: Path, out: Path | None) -> Path:
    """Return where the run goes: beside the images, never among them."""
    source = folder.expanduser().resolve()
    name = source.stem if source.is_file() else source.name
    if out is None and not name:
        raise FineSightError(f"{folder} has no name to call a run by: give --out a folder.")
    run = (out if out is not None else source.parent / f"finesight-{name}").expanduser().resolve()
    if source.is_dir() and (run == source or source in run.parents):
        raise FineSightError(f"--out {run} lies inside {folder}: nothing is written among the images.")
    return run


def _train(
    run: Path,
    folder: Path,
    images: int,
    given: dict[str, Any],
    cache_dir: Path | None,
    workers: int | None,
    progress: bool,
) -> None:
    """Train the encoder of the run, unless a fitting one is there already."""
    from finesight.io.console import console
    from finesight.methods.base import find_method
    from finesight.training.run_folder import RunFolder

    folder_of_run = RunFolder(run)
    if (folder_of_run.encoder / "encoder.json").exists() and not given and _same_data(folder_of_run, folder):
        console.print(f"Using the encoder of {run}.", markup=False)
        return
    config = training_config(folder_of_run, folder, images, given)
    if find_method(config.method).objective is None:
        _save_frozen(folder_of_run, config.with_absolute_paths())
        return
    from finesight.report.train import train_and_report
    from finesight.training.config import RuntimeConfig

    train_and_report(config, run, RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=progress))


def _save_frozen(run: RunFolder, config: TrainConfig) -> None:
    """Save the encoder of a method without training. Unlike ``train``, this decodes no image."""
    from finesight.training.save_encoder import save_frozen

    with run.locked():
        run.enter(config, restart=False)
        if not (run.encoder / "encoder.json").exists():
            save_frozen(config, run)


def _same_data(run: RunFolder, folder: Path) -> bool:
    return Path(run.config().data).resolve() == folder.expanduser().resolve()


def training_config(run: RunFolder, folder: Path, images: int, given: dict[str, Any]) -> TrainConfig:
    """Return the settings of the run that is there, if any, and those given; training refuses if they differ."""
    from finesight.training.config import build_config, dotted, read_yaml
    from finesight.training.renamed import current_settings

    known: dict[str, Any] = current_settings(dotted(read_yaml(run.config_file)))[0] if run.config_file.exists() else {}
    if not known or given.get("method", known.get("method")) != known.get("method"):
        known = {"batch_size": max(2, min(BATCH, int(0.9 * images)))}  # a tenth may be held out, or unreadable
    return build_config({**known, **given, "data": str(folder)})


def _serve(run: Path, folder: Path, config: ServerConfig, workers: int | None, progress: bool) -> None:
    """Serve at once: what is indexed already can be searched while the rest is added."""
    from finesight.data.sources import open_source
    from finesight.features.embedder import TorchEmbedder
    from finesight.search.build import open_or_create
    from finesight.server.run_server import run_server, update_job

    embedder = TorchEmbedder.load(run)
    where = str(run / "index")
    index = open_or_create(where, embedder, run, open_source(folder).root)
    job = update_job(where, embedder, folder, run, workers=workers, progress=progress)
    run_server(index, embedder, config, job)
