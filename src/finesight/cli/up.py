"""``finesight up``: index, serve and train a folder. Heavy imports live inside the functions: --help is quick."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finesight.cli.options import (
    Backbone,
    CacheDir,
    Epochs,
    Interval,
    Minutes,
    Preset,
    PresetChoice,
    Quiet,
    Resolution,
    Settings,
    Watch,
    Weights,
    Workers,
)
from finesight.cli.serve import (
    AllowHost,
    CameraDataOption,
    Host,
    MaxUpload,
    MetricsOpen,
    OpenPage,
    Port,
    Queue,
    Token,
    server_config,
    stoppable,
)
from finesight.cli.settings import assignments
from finesight.errors import FineSightError

if TYPE_CHECKING:
    from finesight.server.config import ServerConfig
    from finesight.training.config import RuntimeConfig
    from finesight.training.run_folder import RunFolder

OPTIONS = "options.json"  # file of a run's frozen folder: the options that the run was begun with
OF_FROZEN = (  # names begin so
    *("backbone.", "views.resolution", "views.mean", "views.std", "views.interpolation", "views.crop_"),
    *("test_resolution", "seed"),
)


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
    batch_size: Annotated[int | None, typer.Option(help="Images per step.  [default: by the preset]")] = None,
    preset: Preset = PresetChoice("auto"),
    minutes: Minutes = None,
    settings: Settings = None,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Train in the background, or only search.")] = True,
    watch: Watch = False,
    interval: Interval = 5.0,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    allow_host: AllowHost = None,
    open_page: OpenPage = True,
    queue: Queue = 32,
    max_upload_mb: MaxUpload = 20.0,
    metrics_open: MetricsOpen = False,
    camera_data: CameraDataOption = None,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Search a folder in the browser at once, and train on it meanwhile. Run it again to continue."""
    from finesight.data.sources import open_source
    from finesight.server.run_server import bind
    from finesight.training.config import RuntimeConfig

    options = {
        "method": method,
        "backbone.weights": weights,
        "backbone.name": backbone,
        "views.resolution": resolution,
        "epochs": epochs,
        "batch_size": batch_size,
    }
    given = {key: value for key, value in options.items() if value is not None} | assignments(settings or [])
    config = server_config(
        host, port, token, allow_host, open_page, queue, max_upload_mb, cache_dir, metrics_open, camera_data
    )
    bind(host, port).close()  # an address that cannot be used is refused before anything else
    open_source(folder)  # so is a folder without images
    run, wanted = run_folder(folder, out), Wanted(given, str(preset), minutes)
    with stoppable():
        runtime = RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=not quiet)
        trains = prepare(run, folder, wanted, runtime) and train
        request = {"out": str(run), **asdict(wanted), "cache_dir": _text(cache_dir), "workers": workers}
        _serve(run, folder, config, request if trains else None, watch, interval, workers, not quiet)


@dataclass
class Wanted:
    """What to train, as far as it was said."""

    given: dict[str, Any] = field(default_factory=dict)  # settings
    preset: str = "auto"
    minutes: float | None = None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


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


def prepare(run: Path, folder: Path, wanted: Wanted, runtime: RuntimeConfig) -> bool:
    """Make the encoder that searches before training, unless there is one; return whether there is something to train.

    ``wanted`` is completed by what the run was begun with. Raises FineSightError if that is something else, or if the
    minutes are too few.
    """
    import json

    from finesight.io.atomic import write_atomic
    from finesight.methods.base import find_method
    from finesight.training.dotted_keys import flat
    from finesight.training.presets import plan_training
    from finesight.training.run_folder import RunFolder
    from finesight.training.save_encoder import frozen_encoder

    run_of, frozen = RunFolder(run), run / "frozen"
    _refuse_other_folder(run_of, frozen, folder)
    options = frozen / OPTIONS
    begun = Wanted(**json.loads(options.read_text(encoding="utf-8"))) if options.exists() else Wanted()
    wanted.given = {key: value for key, value in wanted.given.items() if begun.given.get(key) != value}
    own = {} if run_of.has_begun else begun.given  # a training that has begun keeps its own settings and its plan
    strict = wanted.minutes not in (None, begun.minutes)  # what a run was begun with was enough
    if not run_of.has_begun:
        wanted.preset = begun.preset if wanted.preset == "auto" else wanted.preset
        wanted.minutes = begun.minutes if wanted.minutes is None else wanted.minutes
    settings = {**own, **wanted.given, "data": str(folder)}
    plan = plan_training(
        settings, run_of, runtime, preset=wanted.preset, minutes=wanted.minutes, look=False, strict=strict
    )
    config = plan.config.with_absolute_paths()
    if "backbone.weights" in wanted.given:
        wanted.given["backbone.weights"] = config.backbone.weights
    made = (frozen / "encoder" / "encoder.json").exists()
    known = flat(run_of.config()) if run_of.config_file.exists() else begun.given
    _refuse_other_settings(run, known, {k: v for k, v in wanted.given.items() if k in known or k.startswith(OF_FROZEN)})
    wanted.given = {**own, **wanted.given, "data": config.data}
    trains = find_method(config.method).objective is not None
    former = not made and (run_of.encoder / "encoder.json").exists()  # a run of a former version has only that
    if not run_of.has_begun and not former:
        write_atomic(options, json.dumps(asdict(wanted)))
    if not made and not former:
        encoder = frozen_encoder(config)
        if not options.exists():  # a training that `finesight train` began
            write_atomic(options, json.dumps(asdict(Wanted())))
        encoder.save(frozen / "encoder")
        if not trains:
            with run_of.locked():
                run_of.enter(config, restart=False)
                encoder.save(run_of.encoder)
    return trains


def _refuse_other_folder(run: RunFolder, frozen: Path, folder: Path) -> None:
    """Raise FineSightError if the run is of other images, or no run at all."""
    from finesight.data.sources import open_source
    from finesight.search.build import require_root
    from finesight.search.engines import index_exists, open_index

    run.refuse_foreign()
    for index in (frozen / "index", run.root / "index"):
        if index_exists(index):
            require_root(open_index(index), open_source(folder).root)
    if run.config_file.exists() and Path(run.config().data).resolve() != folder.expanduser().resolve():
        raise FineSightError(f"{run.root} is the run of {run.config().data}, not of {folder}: give another --out.")


def _refuse_other_settings(run: Path, known: dict[str, Any], given: dict[str, Any]) -> None:
    """Raise FineSightError if settings are given that are not those of the run."""
    changed = [key for key, value in given.items() if known.get(key, "the default") != value]
    if known and changed:
        lines = "\n".join(f"  {key}: {known.get(key, 'the default')} there, {given[key]} now" for key in changed)
        raise FineSightError(
            f"{run} holds a run with another configuration:\n{lines}\n"
            "Give another --out, or the same options to continue it."
        )


def _serve(
    run: Path,
    folder: Path,
    config: ServerConfig,
    request: dict[str, Any] | None,
    watch: bool,
    interval: float,
    workers: int | None,
    progress: bool,
) -> None:
    """Serve at once: what is indexed already can be searched while the rest is added."""
    from finesight.data.sources import open_source
    from finesight.features.embedder import TorchEmbedder
    from finesight.features.encoder_folder import warn_of_random_weights
    from finesight.search.build import open_or_create
    from finesight.search.watch import FolderWatch
    from finesight.server.feature_sets import AFTER, BEFORE
    from finesight.server.run_server import run_server
    from finesight.server.upkeep import TrainingCommand, Upkeep

    name, home = (BEFORE, run / "frozen") if (run / "frozen" / "encoder").exists() else (AFTER, run)
    embedder = TorchEmbedder.load(home)
    warn_of_random_weights(home)
    index = open_or_create(home / "index", embedder, home, open_source(folder).root)
    command = [sys.executable, "-m", "finesight.cli.background"]
    training = None if request is None else TrainingCommand(command, request)
    folder_watch = FolderWatch(folder, interval)

    def judged(run: Path) -> str | None:
        from finesight.report.judge import rewrite_verdict
        from finesight.training.run_folder import RunFolder

        return rewrite_verdict(RunFolder(run))

    upkeep = Upkeep(run, folder_watch, training, watching=watch, workers=workers, progress=progress, judged=judged)
    run_server(index, embedder, config, upkeep, name=name)
