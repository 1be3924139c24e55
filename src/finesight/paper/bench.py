"""What the commands of ``finesight bench`` do once their options are read: run what is missing, write and print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finesight.errors import FineSightError, unknown
from finesight.io.atomic import write_atomic
from finesight.io.console import console, format_count, print_table
from finesight.paper.ablation import AblationExperiment
from finesight.paper.ablation_results import summary_table, write_results
from finesight.paper.benchmark import Benchmark
from finesight.paper.bird_figures import attention_figure, k_figure
from finesight.paper.datasets import DATASETS, recognize_datasets
from finesight.paper.defaults import DOMAINS, DefaultsBench
from finesight.paper.defaults_table import bar_rows, blocks, plan_rows, read_results
from finesight.paper.defaults_table import score_rows as default_rows
from finesight.paper.markdown import PAPER_PARTS, bird_blocks, check_page, paper_blocks, update_page, without_names
from finesight.paper.profiles import Profile
from finesight.paper.rows import Row
from finesight.paper.scores import difference_rows, score_rows
from finesight.paper.selection import select_rows
from finesight.paper.store import Results, ResultStore
from finesight.paper.summary import summary_figure
from finesight.paper.tables import TABLES, Cell, PaperTable, as_json, notes, table_cells, table_rows
from finesight.training.config import RuntimeConfig

NOT_OURS = (
    "The paper's numbers are of the data named above them and of a larger training: not to be compared with ours."
)
UNSCORED = (
    "Without labels nothing can be scored. These are the training's own numbers (means over its last epoch): they tell "
    "a healthy training from a collapsed one, not good features from bad ones."
)

DEFAULTS_WORDS = {
    "scores": "Rank-1, rank-5 and mAP of leave-one-out retrieval on the test images; mean ± std over seeds.",
    "bar": (
        "Gain over the frozen network under its best pooling (the best on the test images, for each metric): mean ± "
        "std over seeds, [95 % interval over queries]. Bar: rank-1 and mAP not below by more than the deviation; on "
        "birds and cars 3 points of rank-1 above."
    ),
    "plans": "What each training decided and took; pixels: in training / in use.",
}


def run_birds(
    profile: Profile,
    *,
    data: Path | None,
    results: Path,
    runs: Path,
    weights: str = "imagenet",
    methods: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    runtime: RuntimeConfig | None = None,
    show: bool = False,
    dry_run: bool = False,
    json_output: bool = False,
    page: Path | None = None,
    figures: Path | None = None,
) -> None:
    """Make the missing results of the birds, unless ``show``; then update the page, draw and print."""
    rows = select_rows(methods)
    if page is not None:
        check_page(page, profile.name)
    store = ResultStore(results / profile.name)
    bench = None
    if data is not None:
        bench = Benchmark(
            command="birds",
            profile=profile,
            data=data,
            weights=weights,
            runs=runs,
            store=store,
            runtime=runtime or RuntimeConfig(),
            rows=rows,
        )
    if not show:
        if bench is None:
            raise FineSightError("Give --data the folder CUB_200_2011 (or --show, to see the results there are).")
        run_missing(bench, seeds, only_estimate=dry_run)
        if dry_run:
            return
    stored = store.read()
    if not stored:
        raise FineSightError(f"There are no results in {store.folder} yet.")
    if page is not None:
        _update(page, bird_blocks(store, stored, profile.name))
    if figures is not None:
        _draw(figures, profile, stored, bench)
    chosen = {name: own for name, own in stored.items() if not methods or name in methods}
    if json_output:
        print(json.dumps(chosen))
    else:
        _print_birds(store, chosen, rows)


def run_table(
    name: str,
    profile: Profile,
    *,
    data: Sequence[str],
    results: Path,
    runs: Path,
    weights: str = "imagenet",
    methods: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    runtime: RuntimeConfig | None = None,
    show: bool = False,
    dry_run: bool = False,
    json_output: bool = False,
    page: Path | None = None,
    figures: Path | None = None,
) -> None:
    """Make the missing results of one of the paper's tables on ``data``, unless ``show``; then update, draw, print."""
    table = TABLES[name]
    rows = select_rows(methods, tuple(table.all_rows))
    if page is not None:
        check_page(page, profile.name, PAPER_PARTS)
    if dry_run and (show or not data):
        raise FineSightError("Give --data what the estimate is to be of, without --show.")
    for kind, folder in recognize_datasets(() if show else data).items():
        bench = Benchmark(
            command=name,
            profile=profile,
            data=folder,
            weights=weights,
            runs=runs / DATASETS[kind].runs,
            store=ResultStore(results / kind / profile.name),
            runtime=runtime or RuntimeConfig(),
            dataset=DATASETS[kind],
            rows=rows,
        )
        run_missing(bench, seeds, only_estimate=dry_run)
    if dry_run:
        return
    stored = {kind: ResultStore(results / kind / profile.name).read() for kind in DATASETS}
    if page is not None:
        _update(page, paper_blocks(stored, profile.name))
    if figures is not None:
        write_atomic(figures / f"{profile.name}-summary.png", summary_figure(stored))
    cells = table_cells(table, stored, methods, seeds)
    if json_output:
        print(json.dumps(as_json(table, profile.name, cells)))
    else:
        _print_cells(table, profile.name, cells)


def run_ablation(experiment: AblationExperiment, command: str, *, json_output: bool = False) -> None:
    """Make the missing results of an ablation; then write and print its table."""
    summary = write_results(experiment, experiment.run_missing(), command)
    if json_output:
        print(json.dumps(summary))
        return
    print(f"{summary['title']}: {summary['about']}")
    table = summary_table(summary)
    if not summary["labelled"]:
        print(UNSCORED)
    elif any(column.startswith("paper") for column in table[0]):
        print(NOT_OURS)
    if summary["paper"]:
        print(f"The paper: {summary['paper']}")
    print_table(table)
    print(", ".join(str(experiment.out / name) for name in ("results.csv", "results.json", "figure.png")))


def run_defaults(
    bench: DefaultsBench,
    *,
    seeds: Sequence[int],
    domains: Sequence[str] = (),
    show: bool = False,
    dry_run: bool = False,
    json_output: bool = False,
    page: Path | None = None,
) -> None:
    """Make the missing results of the defaults, unless ``show``; then update the page and print."""
    if wrong := [name for name in domains if name not in DOMAINS]:
        raise unknown("domain", wrong[0], DOMAINS)
    if page is not None:
        check_page(page, "defaults", ("scores", "bar", "plans"))
    if not show:
        own = [name for name in DOMAINS if name == "drawn" or name in bench.data] if bench.quick else list(DOMAINS)
        missing = bench.missing(domains or own, seeds)
        trainings = sum(task.seed is not None for task in missing)
        console.print(
            f"{format_count(len(missing), 'result')} to make, {format_count(trainings, 'training')} of "
            f"{format_count(bench.minutes, 'minute')} among them, {bench.jobs} at a time with "
            f"{format_count(bench.threads, 'thread')} each."
            if missing
            else "All of it is done."
        )
        if dry_run:
            return
        bench.make(missing)
    stored = read_results(bench.results)
    if page is not None:
        _update(page, blocks(stored))
    found = {domain: known for domain, known in stored.items() if domain in (domains or DOMAINS)}
    if not found:
        raise FineSightError(f"There are no results in {bench.results} yet.")
    tables = {"scores": default_rows(found), "bar": bar_rows(found), "plans": plan_rows(found)}
    if json_output:
        print(json.dumps(tables))
        return
    for name, rows in tables.items():
        if rows:
            print(DEFAULTS_WORDS[name])
            print_table(rows)


def run_missing(bench: Benchmark, seeds: Sequence[int] | None, *, only_estimate: bool) -> None:
    """Print what is left to do and what it takes; then do it, unless only the estimate is wanted."""
    plan = bench.missing(bench.profile.seeds if seeds is None else seeds)
    if not plan:
        console.print("All of it is done.")
        return
    bench.estimate(plan)
    if not only_estimate:
        bench.make(plan)


def _update(page: Path, blocks: Mapping[str, str]) -> None:
    changed = update_page(page, blocks)
    console.print(f"{page} {'is up to date now' if changed else 'was up to date'}.")


def _draw(folder: Path, profile: Profile, results: Results, bench: Benchmark | None) -> None:
    write_atomic(folder / f"{profile.name}-k.png", k_figure(profile, results))
    if bench is None:
        return
    if (picture := attention_figure(bench)) is None:
        console.print(f"No picture of the attention: MoCo v2 and LCR are not both trained in {bench.runs}.")
    else:
        write_atomic(folder / f"{profile.name}-attention.png", picture)


def _print_birds(store: ResultStore, results: Results, rows: Mapping[str, Row]) -> None:
    lines: list[dict[str, Any]] = without_names(score_rows(results, rows))
    if not lines:
        raise FineSightError(f"There are no results of these methods in {store.folder} yet.")
    print("Mean ± std over seeds; in brackets the paper's number (ResNet-50, all 200 classes, 224 px, 100 epochs).")
    print_table(lines)
    if gains := difference_rows(store, results):
        print("LCR minus …: mean ± std over seeds, [95 % interval over queries]")
        print_table(without_names(gains))


def _print_cells(table: PaperTable, profile: str, cells: Sequence[Cell]) -> None:
    print(f"{table.title}\n{table.head}; ours is mean ± std over seeds of profile {profile}")
    print_table(table_rows(table, cells))
    for note in notes(cells) or [f"Nothing of profile {profile} was run yet."]:
        print(note)
