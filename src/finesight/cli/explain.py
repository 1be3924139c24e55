"""``finesight explain``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from finesight.cli.options import Exact, Json, PoolingChoice, Quiet, Run
from finesight.errors import FineSightError
from finesight.io.console import console, format_count, printable

COUNT = 48


class Rectify(StrEnum):
    abs = "abs"
    relu = "relu"


def explain(
    run: Run,
    images: Annotated[list[str], typer.Argument(help="Image files, a folder, a list of paths, or a data set.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder for overlays, figures and index.html.")],
    beside: Annotated[
        list[Path] | None, typer.Option(help="Another run on the same images, side by side; may be repeated.")
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="At most so many images, evenly spaced; over the classes if there are labels.")
    ] = COUNT,
    every: Annotated[bool, typer.Option("--all", help="Every image, however many.")] = False,
    top: Annotated[int, typer.Option(min=0, help="Projections of highest variance to show.")] = 3,
    lowest: Annotated[int, typer.Option(min=0, help="Projections of lowest variance to show.")] = 3,
    pair: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Two images: which cells and projections make them alike.")
    ] = None,
    pooling: Annotated[
        PoolingChoice | None, typer.Option(help="How the pair is compared; by default as trained.")
    ] = None,
    rectify: Annotated[
        Rectify, typer.Option(help="Of GradCAM: its magnitude, or its positive half as the paper prints it.")
    ] = Rectify.abs,
    as_json: Json = False,
    exact: Exact = False,
    quiet: Quiet = False,
) -> None:
    """Show where a run looks: mask, GradCAM of its loss, projections; runs side by side; why two images are alike."""
    if pooling is not None and pair is None:
        raise FineSightError("--pooling says how a pair is compared: give --pair A B too.")
    from finesight.explain.batch import Options, explain_folder
    from finesight.explain.explainer import Explainer, make_folder
    from finesight.explain.inputs import select_images

    make_folder(out)
    selection = select_images(images, None if every else count)
    runs = [run, *(beside or [])]
    names = run_names(runs)
    explainers = {
        name: Explainer.load(one, rectify=rectify.value, exact=exact) for name, one in zip(names, runs, strict=True)
    }
    console.print(f"Explaining {selection.choice}.", markup=False)
    options = Options(top=top, lowest=lowest, pair=pair, by=pooling and str(pooling), progress=not quiet)
    summary = explain_folder(explainers, selection, out, options)
    for facts in summary["runs"]:
        if facts["no_gradcam"]:
            console.print(f"{facts['run']}: no GradCAM. {facts['no_gradcam']}", markup=False)
    if skipped := summary["skipped"]:
        first = printable(f"{skipped[0]['path']}: {skipped[0]['reason']}")
        left_out = format_count(len(skipped), "file was", "files were")
        console.print(f"{left_out} skipped, the first {first}", markup=False)
    if as_json:
        print(json.dumps(summary))
        return
    print(f"{format_count(summary['explained'], 'image is', 'images are')} explained in {out / 'index.html'}.")


def run_names(runs: list[Path]) -> list[str]:
    """Return the folders' names; where two are the same, with the folder they lie in."""
    places = [run.expanduser().absolute() for run in runs]
    if len(set(places)) < len(places):
        raise FineSightError("The same run is given twice: give --beside another.")
    shared = Counter(place.name for place in places)
    names = [place.name if shared[place.name] == 1 else f"{place.parent.name}/{place.name}" for place in places]
    return names if len(set(names)) == len(names) else [str(place) for place in places]
