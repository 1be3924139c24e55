"""``finesight datasets``: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.options import Json, Quiet, Workers

if TYPE_CHECKING:
    from finesight.data.check import CheckReport, Group

EXAMPLES = 5

datasets_app = typer.Typer(help="Look at image data before training on it.", no_args_is_help=True)


@datasets_app.callback()
def _root() -> None:
    """Look at image data before training on it."""


@datasets_app.command()
def check(
    path: Annotated[str, typer.Argument(help="A folder of images, a list of paths, or CUB_200_2011.")],
    resolution: Annotated[int, typer.Option(min=1, help="Pixels of a view: smaller images are counted.")] = 224,
    near: Annotated[bool, typer.Option(help="Look for near duplicates too, not only for equal files.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write report.json, duplicates.csv and skipped.csv here.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 on unreadable files or leakage.")] = False,
    as_json: Json = False,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Find duplicates, unreadable and tiny images, uneven classes, and test images that are in train."""
    from finesight.data.check import check_source, make_folder, write_report
    from finesight.data.sources import open_source

    source = open_source(path)
    if out is not None:
        make_folder(out)  # what is wrong with it is better known before the images are read
    report = check_source(source, resolution=resolution, near=near, workers=workers, progress=not quiet)
    if out is not None:
        write_report(report, out)
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        print(_shown(source.describe().splitlines()[0]))
        for line in lines(report):
            print(_shown(line))
        if out is not None:
            print(_shown(f"All of it: {out}"))
    if strict and not report.clean:
        raise typer.Exit(1)


def lines(report: CheckReport) -> Iterator[str]:
    """The report for people: counts first, a few examples, what to do."""
    yield f"{report.readable:,} of {report.images:,} images readable"
    yield from _files(report)
    yield from _classes(report)
    yield from _duplicates(report)


def _files(report: CheckReport) -> Iterator[str]:
    if report.unreadable:
        yield f"{len(report.unreadable):,} unreadable"
        yield from _some([f"{image.path}: {image.reason}" for image in report.unreadable])
        yield "  -> training leaves them out; fetch them again or delete them"
    if report.left_out:
        yield f"{_count(len(report.left_out), 'other entry', 'other entries')}, no images"
        yield from _some([f"{entry.path}: {entry.reason}" for entry in report.left_out])
    if report.tiny:
        yield f"{len(report.tiny):,} tiny (short side below 64 px)"
        yield from _some([f"{image.path}: {image.width}×{image.height}" for image in report.tiny])
        yield "  -> they show little detail; leave them out if you can"
    if report.small:
        yield f"{report.small:,} with a short side below {report.small_side} px"
        yield "  -> they are enlarged; if they are many, train with a smaller --resolution"
    if report.blank:
        yield f"{len(report.blank):,} of one colour"
        yield from _some(report.blank)
        yield "  -> nothing can be learned from them; delete them"


def _classes(report: CheckReport) -> Iterator[str]:
    sizes = report.classes
    if sizes is None:
        return
    (least, fewest), (most, largest) = sizes.smallest, sizes.largest
    yield (
        f"{_count(sizes.count, 'class', 'classes')}: smallest {least} ({_count(fewest, 'image')}), "
        f"median {sizes.median:,g}, largest {most} ({largest:,})"
    )
    if report.unlabelled:
        yield f"{_count(report.unlabelled, 'image')} without a label"
    if sizes.lonely:
        yield f"{_count(len(sizes.lonely), 'class', 'classes')} with fewer than 2 readable images"
        yield from _some(sizes.lonely)
        yield "  -> retrieval cannot be scored on them; add images or drop the class"


def _duplicates(report: CheckReport) -> Iterator[str]:
    found = report.duplicates
    if not found:
        yield "no duplicates" if report.near else "no equal files (near duplicates not looked for)"
        return
    kinds = [image.kind for group in found for image in group.images]
    exact, near = kinds.count("exact"), kinds.count("near")
    equal, alike = f"{_count(exact, 'image')} with equal bytes", f"{near:,} more that look the same"
    yield f"{_count(len(found), 'group')} of duplicates: {equal}, {alike}"
    yield from _groups(found)
    if near:
        yield "  -> look at the near ones first: plain backgrounds can pass for the same picture"
    yield "  -> keep one image of each group; --out writes all groups to duplicates.csv"
    if report.leaks:
        yield f"{_count(report.leaked, 'test image')} in train too ({_count(len(report.leaks), 'group')})"
        yield from _groups(report.leaks)
        yield "  -> scores are too good with them; take them out of one split"
    if report.conflicts:
        yield f"{_count(len(report.conflicts), 'group')} of duplicates with different labels"
        yield from _groups(report.conflicts)
        yield "  -> at most one label is right; correct the others or delete the images"


def _groups(found: Sequence[Group]) -> Iterator[str]:
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


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _shown(line: str) -> str:
    """File names may hold line breaks, and bytes that are no text."""
    return line if line.isprintable() else repr(line)[1:-1]
