"""``finesight bench table1``, ``table2``, ``table3``: parse, call, print; and what they share with ``bench birds``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import CacheDir, Quiet, Workers
from finesight.errors import FineSightError

if TYPE_CHECKING:
    from finesight.paper.engine import Bench
    from finesight.paper.systems import System
    from finesight.paper.tables import Cell, Found, PaperTable

TITLES = {
    "table1": "The paper's Table 1: frozen, MoCo v2 and LCR by linear classification and retrieval",
    "table2": "The paper's Table 2: other frameworks by linear classification, time and memory",
    "table3": "The paper's Table 3: other ways to look at the object",
}


def add_tables(app: typer.Typer) -> None:
    for name in TITLES:
        app.command(name)(_table(name))


def _table(name: str) -> Callable[..., None]:
    """The command of a table; all have the same options."""

    def run(
        data: Annotated[
            list[str] | None,
            typer.Option(help="CUB_200_2011, Stanford Cars or FGVC Aircraft; once for each. None: show what there is."),
        ] = None,
        profile: Annotated[str, typer.Option(help="cpu-50, cpu-200, paper or smoke.")] = "cpu-50",
        weights: Annotated[str, typer.Option(help="ImageNet weights: imagenet, or a weight file.")] = "imagenet",
        methods: Annotated[str, typer.Option(help="Rows to run and show, with commas.  [default: all]")] = "",
        seeds: Annotated[str, typer.Option(help="With commas.  [default: the profile's]")] = "",
        runs: Annotated[Path, typer.Option(help="Where the trained networks go, a folder a dataset.")] = Path("runs"),
        results: Annotated[Path, typer.Option(help="Where the results go, a folder a dataset.")] = Path("results"),
        show: Annotated[bool, typer.Option("--show", help="Train nothing: use the results there are.")] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, print the estimate and stop.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="The table as one JSON object.")] = False,
        update: Annotated[Path | None, typer.Option(help="Rewrite the profile's tables in this markdown page.")] = None,
        devices: Annotated[int, typer.Option(min=1, help="GPUs or processes to train with.")] = 1,
        cache_dir: CacheDir = None,
        workers: Workers = None,
        quiet: Quiet = False,
    ) -> None:
        from finesight.paper.engine import Bench
        from finesight.paper.markdown import check_page
        from finesight.paper.profiles import profile as named
        from finesight.paper.results import ResultFiles
        from finesight.paper.systems import chosen
        from finesight.paper.tables import TABLES
        from finesight.training.config import RuntimeConfig

        table, setting = TABLES[name], named(profile)
        wanted, numbers = split_names(methods), split_numbers(seeds)
        chosen(wanted, table.systems)
        if update is not None:
            check_page(update, profile, tuple(TABLES))
        if data and not show:
            from finesight.paper.table_datasets import DATASETS, recognized

            runtime = RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=not quiet, devices=devices)
            for kind, place in recognized(data).items():
                files, dataset = ResultFiles(results / kind / profile), DATASETS[kind]
                job = Bench(setting, place, weights, runs / dataset.runs, files, runtime, dataset, name)
                run_missing(job, wanted, numbers, table.systems, only_check=dry_run)
            if dry_run:
                return
        elif dry_run:
            raise FineSightError("Give --data what the estimate is to be of, without --show.")
        _print(table, profile, _found(results, profile), wanted, numbers, update, as_json=as_json)

    run.__doc__ = (
        f"{TITLES[name]}, the paper's numbers beside ours.\n\n"
        "What is missing is trained and scored; without --data, or with --show, nothing is. Run it again to continue."
    )
    return run


def run_missing(
    job: Bench, methods: Sequence[str], seeds: Sequence[int] | None, among: Mapping[str, System], *, only_check: bool
) -> None:
    """Say what is left to do and what it takes; then do it, unless it is only asked."""
    from finesight.io.console import console
    from finesight.paper import engine

    todo = engine.plan(job, methods, seeds, among)
    if not todo.rows:
        console.print("All of it is done.")
        return
    engine.dry_run(job, todo)
    if not only_check:
        engine.run(job, todo)


def _found(results: Path, profile: str) -> Found:
    """Whatever there is of each dataset, given or not."""
    from finesight.paper.results import ResultFiles
    from finesight.paper.table_datasets import DATASETS

    return {kind: ResultFiles(results / kind / profile).read() for kind in DATASETS}


def _print(
    table: PaperTable,
    profile: str,
    found: Found,
    methods: Sequence[str],
    seeds: Sequence[int] | None,
    page: Path | None,
    *,
    as_json: bool,
) -> None:
    from finesight.io.console import console
    from finesight.paper import tables
    from finesight.paper.markdown import paper_blocks, update_page

    if page is not None:
        new = update_page(page, paper_blocks(found, profile))
        console.print(f"{page} {'is up to date now' if new else 'was up to date'}.")
    cells = tables.cells(table, found, methods, seeds)
    if as_json:
        print(json.dumps(tables.as_json(table, profile, cells)))
    else:
        _print_table(table, profile, cells)


def _print_table(table: PaperTable, profile: str, cells: Sequence[Cell]) -> None:
    from finesight.io.console import print_table
    from finesight.paper.tables import notes, table_rows

    print(f"{table.title}\n{table.head}; ours is mean ± std over seeds of profile {profile}")
    print_table(table_rows(table, cells))
    for note in notes(cells) or [f"Nothing of profile {profile} was run yet."]:
        print(note)


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def split_numbers(text: str) -> list[int] | None:
    """None when nothing is given."""
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise FineSightError(f"--seeds takes whole numbers from 0 on, with commas, not {text!r}.")
    return [int(part) for part in parts]
