"""``finesight bench``: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.errors import FineSightError

if TYPE_CHECKING:
    from finesight.bench.birds import Bench
    from finesight.bench.profiles import Profile
    from finesight.bench.results import ResultFiles, Results

bench_app = typer.Typer(help="Reproduce the tables of the docs.", no_args_is_help=True)


@bench_app.callback()
def _root() -> None:
    """Reproduce the tables of the docs."""


@bench_app.command()
def birds(
    profile: Annotated[str, typer.Option(help="cpu-50, cpu-200 or paper.")] = "cpu-50",
    data: Annotated[Path | None, typer.Option(help="The folder CUB_200_2011.")] = None,
    weights: Annotated[str, typer.Option(help="ImageNet weights: imagenet, or a weight file.")] = "imagenet",
    methods: Annotated[str, typer.Option(help="Rows to run, by name, with commas.  [default: all]")] = "",
    seeds: Annotated[str, typer.Option(help="With commas.  [default: the profile's]")] = "",
    runs: Annotated[Path, typer.Option(help="Where the trained networks go.")] = Path("runs/birds"),
    results: Annotated[Path, typer.Option(help="Where the results go.")] = Path("results/cub"),
    show: Annotated[bool, typer.Option("--show", help="Train nothing: use the results there are.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, print the estimate and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The results as one JSON object.")] = False,
    update: Annotated[Path | None, typer.Option(help="Rewrite the tables marked in this markdown page.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Draw into this folder; with --data also where it looks.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="GPUs or processes to train with.")] = 1,
    cache_dir: Annotated[Path | None, typer.Option(help="Where decoded images are kept.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads that decode images.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """CUB-200-2011: frozen ImageNet features, MoCo v2, LCR and their controls, beside the paper's numbers.

    Run it again to continue: what is done is skipped.
    """
    from finesight.bench.page import check_page, update_page
    from finesight.bench.profiles import profile as named
    from finesight.bench.results import ResultFiles
    from finesight.bench.systems import chosen
    from finesight.console import console

    wanted, numbers, setting = _names(methods), _numbers(seeds), named(profile)
    chosen(wanted)
    if update is not None:
        check_page(update, profile)
    files = ResultFiles(results / profile)
    job = None
    if data is not None:
        from finesight.bench.birds import Bench
        from finesight.config import RuntimeConfig

        runtime = RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=not quiet, devices=devices)
        job = Bench(setting, data, weights, runs, files, runtime)
    if not show:
        if job is None:
            raise FineSightError("Give --data the folder CUB_200_2011 (or --show, to see the results there are).")
        _run(job, wanted, numbers, only_check=dry_run)
        if dry_run:
            return
    found = files.read()
    if not found:
        raise FineSightError(f"There are no results in {files.folder} yet.")
    if update is not None:
        new = update_page(update, files, found, profile)
        console.print(f"{update} {'is up to date now' if new else 'was up to date'}.")
    if figures is not None:
        _draw(figures, setting, found, job)
    _print(files, {name: seeds for name, seeds in found.items() if not wanted or name in wanted}, as_json=as_json)


def _run(job: Bench, methods: list[str], seeds: list[int] | None, *, only_check: bool) -> None:
    from finesight.bench import birds as bench
    from finesight.console import console

    todo = bench.plan(job, methods, seeds)
    if not todo.rows:
        console.print("All of it is done.")
        return
    bench.dry_run(job, todo)
    if not only_check:
        bench.run(job, todo)


def _draw(folder: Path, profile: Profile, results: Results, job: Bench | None) -> None:
    from finesight.bench.pictures import attention_figure, k_figure
    from finesight.bench.results import put
    from finesight.console import console

    put(folder / f"{profile.name}-k.png", k_figure(profile, results))
    if job is None:
        return
    picture = attention_figure(job)
    if picture is None:
        console.print(f"No picture of the attention: MoCo v2 and LCR are not both trained in {job.runs}.")
    else:
        put(folder / f"{profile.name}-attention.png", picture)


def _print(files: ResultFiles, results: Results, *, as_json: bool) -> None:
    from finesight.bench.page import without_names
    from finesight.bench.table import difference_rows, score_rows
    from finesight.console import print_table

    if as_json:
        print(json.dumps(results))
        return
    rows = score_rows(results)
    if not rows:
        raise FineSightError(f"There are no results of these methods in {files.folder} yet.")
    print("Mean ± std over seeds; in brackets the paper's number (all 200 classes, 224 px, 100 epochs).")
    print_table(without_names(rows))
    if gains := difference_rows(files, results):
        print("LCR minus …: mean ± std over seeds, [95 % interval over queries]")
        print_table(without_names(gains))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int] | None:
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise FineSightError(f"--seeds takes whole numbers from 0 on, with commas, not {text!r}.")
    return [int(part) for part in parts]
