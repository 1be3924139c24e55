"""``finesight bench``: parse, call, print."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finesight.cli.options import CacheDir, Quiet, Workers
from finesight.cli.settings import assignments
from finesight.data.named_path import short_named_path
from finesight.errors import FineSightError
from finesight.paper.ablations import ABLATIONS, PAPER_SETTING, paper_column
from finesight.paper.tables_command import add_tables, run_missing, split_names, split_numbers

if TYPE_CHECKING:
    from finesight.paper.engine import Bench
    from finesight.paper.profiles import Profile
    from finesight.paper.results import ResultFiles, Results

bench_app = typer.Typer(
    help="Reproduce the tables of the docs, and the paper's tables and ablations.", no_args_is_help=True
)

SHOWN_UNSCORED = ("loss", "kl", "kl_target_uniform", "mask_entropy", "embedding_spread", "effective_rank")
NOT_OURS = (
    "The paper's numbers are of the data named above them and of a larger training: not to be compared with ours."
)
UNSCORED = (
    "Without labels nothing can be scored. These are the training's own numbers (means over its last epoch): they tell "
    "a healthy training from a collapsed one, not good features from bad ones."
)


@bench_app.callback()
def _root() -> None:
    """The tables of the docs, and the paper's tables and ablations."""


@bench_app.command()
def birds(
    profile: Annotated[str, typer.Option(help="cpu-50, cpu-200, paper or smoke.")] = "cpu-50",
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
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """CUB-200-2011: frozen ImageNet features, MoCo v2, LCR and their controls, beside the paper's numbers.

    Run it again to continue: what is done is skipped.
    """
    from finesight.io.console import console
    from finesight.paper.markdown import blocks, check_page, update_page
    from finesight.paper.profiles import profile as named
    from finesight.paper.results import ResultFiles
    from finesight.paper.systems import SYSTEMS, chosen

    wanted, numbers, setting = split_names(methods), split_numbers(seeds), named(profile)
    chosen(wanted)
    if update is not None:
        check_page(update, profile)
    files = ResultFiles(results / profile)
    job = None
    if data is not None:
        from finesight.paper.engine import Bench
        from finesight.training.config import RuntimeConfig

        runtime = RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=not quiet, devices=devices)
        job = Bench(setting, data, weights, runs, files, runtime)
    if not show:
        if job is None:
            raise FineSightError("Give --data the folder CUB_200_2011 (or --show, to see the results there are).")
        run_missing(job, wanted, numbers, SYSTEMS, only_check=dry_run)
        if dry_run:
            return
    found = files.read()
    if not found:
        raise FineSightError(f"There are no results in {files.folder} yet.")
    if update is not None:
        new = update_page(update, blocks(files, found, profile))
        console.print(f"{update} {'is up to date now' if new else 'was up to date'}.")
    if figures is not None:
        _draw(figures, setting, found, job)
    _print(files, {name: seeds for name, seeds in found.items() if not wanted or name in wanted}, as_json=as_json)


def _draw(folder: Path, profile: Profile, results: Results, job: Bench | None) -> None:
    from finesight.io.atomic import write_atomic
    from finesight.io.console import console
    from finesight.paper.bird_figures import attention_figure, k_figure

    write_atomic(folder / f"{profile.name}-k.png", k_figure(profile, results))
    if job is None:
        return
    picture = attention_figure(job)
    if picture is None:
        console.print(f"No picture of the attention: MoCo v2 and LCR are not both trained in {job.runs}.")
    else:
        write_atomic(folder / f"{profile.name}-attention.png", picture)


def _print(files: ResultFiles, results: Results, *, as_json: bool) -> None:
    from finesight.io.console import print_table
    from finesight.paper.markdown import without_names
    from finesight.paper.table import difference_rows, score_rows

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


# --- ablations --------------------------------------------------------------------------------------------------------


def _ablation(name: str) -> Callable[..., None]:
    """The command of an ablation; all have the same options."""

    def run(
        out: Annotated[Path, typer.Option(help="Where runs, results and figures go. The same command continues.")],
        data: Annotated[
            str, typer.Option(help="lookalikes: the built-in birds; or a folder, a list of paths, CUB_200_2011.")
        ] = "lookalikes",
        profile: Annotated[
            str | None,
            typer.Option(
                help="drawn, cpu-50, cpu-200 or paper (default: drawn for drawn birds, else cpu-50 with all classes)."
            ),
        ] = None,
        weights: Annotated[
            str | None, typer.Option(help="imagenet, random, or a weight file (default: the profile's).")
        ] = None,
        seed: Annotated[list[int] | None, typer.Option(help="May be given several times (default: 0).")] = None,
        settings: Annotated[list[str] | None, typer.Option("--set", help="Any setting, as epochs=4.")] = None,
        limit_classes: Annotated[int | None, typer.Option(min=2, help="Only the first classes.")] = None,
        cache_dir: CacheDir = None,
        workers: Workers = None,
        as_json: Annotated[bool, typer.Option("--json", help="The results as one JSON object.")] = False,
        quiet: Quiet = False,
    ) -> None:
        from finesight.paper import ablation_run, ablation_study
        from finesight.training.config import RuntimeConfig

        options = {"backbone.weights": weights, "limit_classes": limit_classes}
        given = {key: value for key, value in options.items() if value is not None}
        study = ablation_study.open_study(
            name,
            data,
            out,
            profile=profile,
            seeds=seed or (0,),
            given={**given, **assignments(settings or [])},
            runtime=RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=not quiet),
        )
        words = {"--profile": profile, "--weights": weights and Path(weights).name, "--limit-classes": limit_classes}
        typed = [word for option, value in words.items() if value is not None for word in (option, str(value))]
        typed += [word for number in study.seeds for word in ("--seed", str(number))]
        typed += [word for setting in settings or [] for word in ("--set", setting)]
        places = ["--data", short_named_path(data), "--out", out.absolute().name]  # others have other folders
        records = ablation_run.run(study)
        results = ablation_run.write(study, records, shlex.join(["finesight", "bench", name, *places, *typed]))
        _print_ablation(results, out, as_json=as_json)

    run.__doc__ = f"{ABLATIONS[name].title}: trained, scored and drawn. Run it again to continue."
    return run


for _name in ABLATIONS:
    bench_app.command(_name)(_ablation(_name))
add_tables(bench_app)


def _print_ablation(results: Mapping[str, Any], out: Path, *, as_json: bool) -> None:
    from finesight.io.console import print_table

    if as_json:
        print(json.dumps(results))
        return
    print(f"{results['title']}: {results['about']}")
    table = ablation_table(results)
    if not results["labelled"]:
        print(UNSCORED)
    elif any(column.startswith("paper") for column in table[0]):
        print(NOT_OURS)
    if results["paper"]:
        print(f"The paper: {results['paper']}")
    print_table(table)
    print(f"{out / 'results.csv'}, {out / 'results.json'}, {out / 'figure.png'}")


def ablation_table(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Mean ± std over seeds, and the paper's number in a column that says of which data it is."""
    from finesight.evaluation.metrics import retrieval_metrics
    from finesight.paper.table import spread

    titles = {metric.key: metric.title for metric in retrieval_metrics()} | {"attention": "attention on object"}
    shown = titles if results["labelled"] else {name: name.replace("_", " ") for name in SHOWN_UNSCORED}
    shown = {column: words for column, words in shown.items() if column in results["rows"][0]}
    papers = {
        paper_column(data, metric): f"paper's {titles[metric]} ({setting})"
        for data, setting in PAPER_SETTING.items()
        for metric in ("rank1", "mAP")
        if results["labelled"] and paper_column(data, metric) in results["rows"][0]
    }
    table = []
    for words in dict.fromkeys(row["row"] for row in results["rows"]):
        seeds = [row for row in results["rows"] if row["row"] == words]
        cells = {"": words, "seeds": str(len(seeds))}
        cells |= {head: spread(_numbers_of(seeds, column)) for column, head in shown.items()}
        cells |= {
            head: "" if seeds[0][column] is None else f"{seeds[0][column]:.2f}" for column, head in papers.items()
        }
        table.append(cells)
    return table


def _numbers_of(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    return [row[column] for row in rows if row[column] is not None]
