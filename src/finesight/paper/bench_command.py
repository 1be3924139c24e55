"""``finesight bench``: read the options and call."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import CacheDir, Half, Quiet, Workers
from finesight.cli.settings import assignments
from finesight.data.named_path import short_named_path
from finesight.errors import FineSightError
from finesight.paper.ablations import ABLATIONS

if TYPE_CHECKING:
    from finesight.training.config import RuntimeConfig

bench_app = typer.Typer(
    help="Reproduce the tables of the docs, and the paper's tables and ablations.", no_args_is_help=True
)
TABLES = {
    "table1": "The paper's Table 1: frozen, MoCo v2 and LCR by linear classification and retrieval",
    "table2": "The paper's Table 2: other frameworks by linear classification, time and memory",
    "table3": "The paper's Table 3: other ways to look at the object",
}

ProfileName = Annotated[str, typer.Option(help="cpu-50, cpu-200, cpu-200-320px, cpu-200-resnet18, paper or smoke.")]
Weights = Annotated[str, typer.Option(help="ImageNet weights: imagenet, or a weight file.")]
Seeds = Annotated[str, typer.Option(help="With commas.  [default: the profile's]")]
Show = Annotated[bool, typer.Option("--show", help="Train nothing: use the results there are.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, print the estimate and stop.")]
Devices = Annotated[int, typer.Option(min=1, help="GPUs or processes to train with.")]


@bench_app.command()
def birds(
    profile: ProfileName = "cpu-50",
    data: Annotated[Path | None, typer.Option(help="The folder CUB_200_2011.")] = None,
    weights: Weights = "imagenet",
    methods: Annotated[str, typer.Option(help="Rows to run, by name, with commas.  [default: all]")] = "",
    seeds: Seeds = "",
    runs: Annotated[Path, typer.Option(help="Where the trained networks go.")] = Path("runs/birds"),
    results: Annotated[Path, typer.Option(help="Where the results go.")] = Path("results/cub"),
    show: Show = False,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="The results as one JSON object.")] = False,
    update: Annotated[Path | None, typer.Option(help="Rewrite the tables marked in this markdown page.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Draw into this folder; with --data also where it looks.")
    ] = None,
    devices: Devices = 1,
    half: Half = False,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """CUB-200-2011: frozen ImageNet features, MoCo v2, LCR and their controls, beside the paper's numbers.

    Run it again to continue: what is done is skipped.
    """
    from finesight.paper.bench import run_birds
    from finesight.paper.profiles import find_profile

    run_birds(
        find_profile(profile),
        data=data,
        results=results,
        runs=runs,
        weights=weights,
        methods=split_names(methods),
        seeds=split_numbers(seeds),
        runtime=_runtime(cache_dir, workers, quiet, devices, half),
        show=show,
        dry_run=dry_run,
        json_output=as_json,
        page=update,
        figures=figures,
    )


@bench_app.command()
def defaults(
    data_birds: Annotated[Path | None, typer.Option(help="The folder CUB_200_2011.")] = None,
    data_cars: Annotated[Path | None, typer.Option(help="Stanford Cars; class folders in train and test do.")] = None,
    weights: Weights = "imagenet",
    minutes: Annotated[float, typer.Option(min=0, help="The budget of a training.")] = 20,
    seeds: Annotated[str, typer.Option(help="With commas.")] = "0,1,2",
    domains: Annotated[str, typer.Option(help="birds, cars, drawn, with commas.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Results that are made at a time.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Of each.  [default: the cores by the jobs]")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Where the results go.  [default: results/defaults; quick: below --work]")
    ] = None,
    work: Annotated[Path, typer.Option(help="Where runs, features and drawn images go.")] = Path("runs/defaults"),
    show: Show = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, say what is left to do and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The tables as one JSON object.")] = False,
    update: Annotated[Path | None, typer.Option(help="Rewrite the tables marked in this markdown page.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds on a tiny network: does it run?")] = False,
    task: Annotated[str, typer.Option(hidden=True, help="One result, as --jobs starts them.")] = "",
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """What `finesight train --minutes 20` leaves, against the frozen network under its best pooling, on three domains.

    Run it again to continue: what is done is skipped, a training that was cut off goes on.
    """
    from finesight.io.parallel import available_cores
    from finesight.paper.bench import run_defaults
    from finesight.paper.defaults import DefaultsBench, Task
    from finesight.training.config import RuntimeConfig

    given = {"birds": data_birds, "cars": data_cars}
    bench = DefaultsBench(
        data={domain: str(folder) for domain, folder in given.items() if folder is not None},
        weights=weights,
        minutes=0 if quick else minutes,
        results=results or (work / "results" if quick else Path("results/defaults")),
        work=work,
        threads=threads or max(1, available_cores() // jobs),
        jobs=jobs,
        runtime=RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=not quiet),
        quick=quick,
    )
    if task:
        bench.make_one(Task.parse(task))
        return
    run_defaults(
        bench,
        seeds=split_numbers(seeds) or (),
        domains=split_names(domains),
        show=show,
        dry_run=dry_run,
        json_output=as_json,
        page=update,
    )


def _runtime(cache_dir: Path | None, workers: int | None, quiet: bool, devices: int, half: bool) -> RuntimeConfig:
    from finesight.training.config import RuntimeConfig

    return RuntimeConfig(
        cache_dir=cache_dir,
        workers=workers,
        progress=not quiet,
        devices=devices,
        precision="bf16" if half else "auto",
    )


def _table(name: str) -> Callable[..., None]:
    """Return the command of a table; all have the same options."""

    def run(
        data: Annotated[
            list[str] | None,
            typer.Option(help="CUB_200_2011, Stanford Cars or FGVC Aircraft; once for each. None: show what there is."),
        ] = None,
        profile: ProfileName = "cpu-50",
        weights: Weights = "imagenet",
        methods: Annotated[str, typer.Option(help="Rows to run and show, with commas.  [default: all]")] = "",
        seeds: Seeds = "",
        runs: Annotated[Path, typer.Option(help="Where the trained networks go, a folder a dataset.")] = Path("runs"),
        results: Annotated[Path, typer.Option(help="Where the results go, a folder a dataset.")] = Path("results"),
        show: Show = False,
        dry_run: DryRun = False,
        as_json: Annotated[bool, typer.Option("--json", help="The table as one JSON object.")] = False,
        update: Annotated[Path | None, typer.Option(help="Rewrite the profile's tables in this markdown page.")] = None,
        figures: Annotated[
            Path | None, typer.Option(help="Draw into this folder what the rationale adds to each objective.")
        ] = None,
        devices: Devices = 1,
        half: Half = False,
        cache_dir: CacheDir = None,
        workers: Workers = None,
        quiet: Quiet = False,
    ) -> None:
        from finesight.paper.bench import run_table
        from finesight.paper.profiles import find_profile

        run_table(
            name,
            find_profile(profile),
            data=data or (),
            results=results,
            runs=runs,
            weights=weights,
            methods=split_names(methods),
            seeds=split_numbers(seeds),
            runtime=_runtime(cache_dir, workers, quiet, devices, half),
            show=show,
            dry_run=dry_run,
            json_output=as_json,
            page=update,
            figures=figures,
        )

    run.__doc__ = (
        f"{TABLES[name]}, the paper's numbers beside ours.\n\n"
        "What is missing is trained and scored; without --data, or with --show, nothing is. Run it again to continue."
    )
    return run


def _ablation(name: str) -> Callable[..., None]:
    """Return the command of an ablation; all have the same options."""

    def run(
        out: Annotated[Path, typer.Option(help="Where runs, results and figures go. The same command continues.")],
        data: Annotated[
            str, typer.Option(help="lookalikes: the built-in birds; or a folder, a list of paths, CUB_200_2011.")
        ] = "lookalikes",
        profile: Annotated[
            str | None,
            typer.Option(
                help="drawn, cpu-50, cpu-200, cpu-200-320px, cpu-200-resnet18 or paper "
                "(default: drawn for drawn birds, else cpu-50 with all classes)."
            ),
        ] = None,
        weights: Annotated[
            str | None, typer.Option(help="imagenet, random, or a weight file (default: the profile's).")
        ] = None,
        seed: Annotated[list[int] | None, typer.Option(help="May be given several times (default: 0).")] = None,
        settings: Annotated[list[str] | None, typer.Option("--set", help="Any setting, as epochs=4.")] = None,
        limit_classes: Annotated[int | None, typer.Option(min=2, help="Only the first classes.")] = None,
        half: Half = False,
        cache_dir: CacheDir = None,
        workers: Workers = None,
        as_json: Annotated[bool, typer.Option("--json", help="The results as one JSON object.")] = False,
        quiet: Quiet = False,
    ) -> None:
        from finesight.paper.ablation import open_ablation
        from finesight.paper.bench import run_ablation

        options = {"backbone.weights": weights, "limit_classes": limit_classes}
        given = {key: value for key, value in options.items() if value is not None}
        experiment = open_ablation(
            name,
            data,
            out,
            profile=profile,
            seeds=seed or (0,),
            given={**given, **assignments(settings or [])},
            runtime=_runtime(cache_dir, workers, quiet, 1, half),
        )
        words = {"--profile": profile, "--weights": weights and Path(weights).name, "--limit-classes": limit_classes}
        typed = [word for option, value in words.items() if value is not None for word in (option, str(value))]
        typed += [word for number in experiment.seeds for word in ("--seed", str(number))]
        typed += [word for setting in settings or [] for word in ("--set", setting)]
        typed += ["--half"] if half else []
        places = ["--data", short_named_path(data), "--out", out.absolute().name]  # others have other folders
        command = shlex.join(["finesight", "bench", name, *places, *typed])
        run_ablation(experiment, command, json_output=as_json)

    run.__doc__ = f"{ABLATIONS[name].title}: trained, scored and drawn. Run it again to continue."
    return run


for _name in ABLATIONS:
    bench_app.command(_name)(_ablation(_name))
for _name in TABLES:
    bench_app.command(_name)(_table(_name))


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def split_numbers(text: str) -> list[int] | None:
    """Return the numbers between commas, None for no text; raise a ``FineSightError`` for anything else."""
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise FineSightError(f"--seeds takes whole numbers from 0 on, with commas, not {text!r}.")
    return [int(part) for part in parts]
