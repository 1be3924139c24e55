"""``finesight datasets``: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finesight.cli.options import DATA_HELP, Json, Quiet, Workers
from finesight.errors import FineSightError
from finesight.io.console import format_count, printable_line

if TYPE_CHECKING:
    from finesight.data.layouts.layout import DatasetLayout
    from finesight.data.quality import CheckReport, DuplicateGroup

EXAMPLES = 5

datasets_app = typer.Typer(
    help="List the named datasets, and find what is wrong with image data before you train on it."
)


@datasets_app.callback(invoke_without_command=True)
def _root(context: typer.Context, as_json: Json = False) -> None:
    """Print, without a command, what to get for each dataset, where it officially lives, and its tree."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise FineSightError(
                f"Put --json behind the command: finesight datasets {context.invoked_subcommand} --json"
            )
        return
    from finesight.data.layouts.layout import LAYOUTS

    listed = [layout for layout in LAYOUTS.values() if layout.listed]
    if as_json:
        print(json.dumps({layout.name: _layout_json(layout) for layout in listed}))
        return
    for layout in listed:
        print("\n".join(_describe(layout)), end="\n\n")
    print("Nothing is downloaded for you. `finesight datasets verify PATH` says whether a copy is whole;")
    print("--data PATH takes a part of one as well, --data NAME:PATH demands all of it.")


@datasets_app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name that `finesight datasets` lists.")], as_json: Json = False
) -> None:
    """Print what to get for one dataset, where it officially lives, and the tree it belongs in."""
    from finesight.data.layouts.layout import LAYOUTS

    layout = LAYOUTS.find(name.lower())
    print(json.dumps(_layout_json(layout)) if as_json else "\n".join(_describe(layout)))


@datasets_app.command()
def verify(
    path: Annotated[str, typer.Argument(help="The folder of a dataset; NAME:PATH if it is not recognized.")],
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 unless it is a whole dataset.")] = False,
    as_json: Json = False,
) -> None:
    """Compare a folder with the official dataset: images of both splits, classes, smallest classes, files."""
    from finesight.data import verification

    found = verification.verify(path)
    if as_json:
        print(json.dumps(found.to_json()))
    else:
        print(printable_line(f"{found.root}: {found.words()}"))
    if strict and not found.complete:
        raise typer.Exit(1)


@datasets_app.command()
def check(
    path: Annotated[str, typer.Argument(help=DATA_HELP)],
    resolution: Annotated[int, typer.Option(min=1, help="Pixels of a view: smaller images are counted.")] = 224,
    near: Annotated[bool, typer.Option(help="Look for near duplicates too, not only for equal files.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write report.json, duplicates.csv and skipped.csv here.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 on unreadable files or leakage.")] = False,
    as_json: Json = False,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Find duplicates, unreadable and tiny images, uneven classes, and test images that are in train."""
    from finesight.data.quality import check_source, make_folder, write_report
    from finesight.data.sources import open_source
    from finesight.data.verification import verify_source

    source = open_source(path)
    if out is not None:
        make_folder(out)  # what is wrong with it is better known before the images are read
    official = verify_source(source)
    report = check_source(source, resolution=resolution, near=near, workers=workers, progress=not quiet)
    if out is not None:
        write_report(report, out)
    if as_json:
        named = {} if official.dataset is None else {"verification": official.to_json()}
        print(json.dumps(report.to_json() | named))
    else:
        print(printable_line(source.describe().splitlines()[0]))
        if official.dataset is not None:
            print(printable_line(official.words()))
        for line in _report_lines(report):
            print(printable_line(line))
        if out is not None:
            print(printable_line(f"All of it: {out}"))
    if strict and not report.clean:
        raise typer.Exit(1)


def _layout_json(layout: DatasetLayout) -> dict[str, Any]:
    """Return a dataset for scripts."""
    official = layout.official
    return {
        "name": layout.name,
        "title": layout.title,
        "get": layout.download,
        "home": layout.homepage,
        "forms": [asdict(tree) for tree in layout.trees],
        "annotations": layout.annotations,
        "note": layout.note,
        "train": official and official.train,
        "test": official and official.test,
        "classes": official and official.classes,
        "images_of_smallest_class": official and {"train": official.smallest_train, "test": official.smallest_test},
    }


def _describe(layout: DatasetLayout) -> Iterator[str]:
    """Yield the lines on a dataset for people."""
    yield f"{layout.name}: {layout.title}"
    facts = [layout.annotations] if layout.annotations else []
    if official := layout.official:
        images = f"{official.train + official.test:,} images ({official.train:,} train + {official.test:,} test)"
        facts = [images, f"{official.classes:,} classes", *facts]
    if facts:
        yield f"  {', '.join(facts)}"
    for heading, words in (("get", layout.download), ("from", layout.homepage), ("note", layout.note)):
        if words:
            yield f"  {heading:<5}  {words}"
    for number, tree in enumerate(layout.trees):
        first, *rest = tree.lines()
        yield f"  {'or' if number else 'tree':<5}  {first}"
        yield from (f"         {line}" for line in rest)
    yield f"  use    --data {layout.name}:PATH"


def _report_lines(report: CheckReport) -> Iterator[str]:
    """Yield the report for people: counts first, then a few examples and what to do."""
    yield f"{report.readable:,} of {format_count(report.images, 'image')} readable"
    yield from _files(report)
    yield from _classes(report)
    yield from _duplicates(report)


def _files(report: CheckReport) -> Iterator[str]:
    if report.unreadable:
        yield f"{len(report.unreadable):,} unreadable"
        yield from _some([f"{image.path}: {image.reason}" for image in report.unreadable])
        yield "  -> training leaves them out; fetch them again or delete them"
    if report.left_out:
        yield f"{format_count(len(report.left_out), 'other entry', 'other entries')}, no images"
        yield from _some([f"{entry.path}: {entry.reason}" for entry in report.left_out])
    if report.tiny:
        yield f"{len(report.tiny):,} tiny (short side below 64 px)"
        yield from _some([f"{image.path}: {image.width}×{image.height}" for image in report.tiny])
        yield "  -> they show little detail; leave them out if you can"
    if report.small:
        yield f"{report.small:,} with a short side below {report.small_side} px"
        yield "  -> they are enlarged; if they are many, train with a smaller --resolution"
    if report.blank:
        yield f"{len(report.blank):,} of one color"
        yield from _some(report.blank)
        yield "  -> nothing can be learned from them; delete them"


def _classes(report: CheckReport) -> Iterator[str]:
    sizes = report.classes
    if sizes is None:
        return
    (least, fewest), (most, largest) = sizes.smallest, sizes.largest
    yield (
        f"{format_count(sizes.count, 'class', 'classes')}: smallest {least} ({format_count(fewest, 'image')}), "
        f"median {sizes.median:,g}, largest {most} ({largest:,})"
    )
    if report.unlabeled:
        yield f"{format_count(report.unlabeled, 'image')} without a label"
    if sizes.lonely:
        yield f"{format_count(len(sizes.lonely), 'class', 'classes')} with fewer than 2 readable images"
        yield from _some(sizes.lonely)
        yield "  -> retrieval cannot be scored on them; add images or drop the class"


def _duplicates(report: CheckReport) -> Iterator[str]:
    found = report.duplicates
    if not found:
        yield "no duplicates" if report.near else "no equal files (near duplicates not looked for)"
        return
    kinds = [image.kind for group in found for image in group.images]
    exact, near = kinds.count("exact"), kinds.count("near")
    equal, alike = f"{format_count(exact, 'image')} with equal bytes", f"{near:,} more that look the same"
    yield f"{format_count(len(found), 'group')} of duplicates: {equal}, {alike}"
    yield from _groups(found)
    if near:
        yield "  -> look at the near ones first: plain backgrounds can pass for the same picture"
    yield "  -> keep one image of each group; --out writes all groups to duplicates.csv"
    if report.leaks:
        yield f"{format_count(report.leaked, 'test image')} in train too ({format_count(len(report.leaks), 'group')})"
        yield from _groups(report.leaks)
        yield "  -> scores are too good with them; take them out of one split"
    if report.conflicts:
        yield f"{format_count(len(report.conflicts), 'group')} of duplicates with different labels"
        yield from _groups(report.conflicts)
        yield "  -> at most one label is right; correct the others or delete the images"


def _groups(found: Sequence[DuplicateGroup]) -> Iterator[str]:
    shown = []
    for group in found[:EXAMPLES]:
        more = len(group.images) - EXAMPLES
        names = ", ".join(image.path for image in group.images[:EXAMPLES])
        shown.append(f"{group.kind}: {names}" + (f" and {more:,} more" if more > 0 else ""))
    yield from _some(shown, len(found))


def _some(examples: Sequence[str], total: int | None = None) -> Iterator[str]:
    yield from (f"  {example}" for example in examples[:EXAMPLES])
    if (more := (len(examples) if total is None else total) - EXAMPLES) > 0:
        yield f"  and {more:,} more"
