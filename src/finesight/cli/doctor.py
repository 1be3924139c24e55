"""``finesight doctor``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import Json
from finesight.errors import FineSightError

if TYPE_CHECKING:
    from finesight.report.doctor import Fact

MARKS = {"ok": "", "note": "", "slow": "slow", "broken": "broken"}


def doctor(
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure how fast images are decoded and embedded.")
    ] = False,
    encoder: Annotated[
        Path | None, typer.Option(help="With --measure: a run or an exported file.  [default: a ResNet-50 in torch]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what is installed, what this machine gives, and what is slow here and why. Exit code 1 if it is broken."""
    from finesight.report.doctor import as_json as to_json
    from finesight.report.doctor import examine

    if encoder is not None and not measure:
        raise FineSightError("--encoder is for --measure.")
    facts = examine()
    measured = _measure(encoder) if measure else {}
    if as_json:
        print(json.dumps({**to_json(facts), **({"measured": measured} if measure else {})}))
    else:
        _print(facts)
        for what, rate in measured.items():
            print(f"{what}: {rate:g} images a second")
    if any(fact.state == "broken" for fact in facts):
        raise typer.Exit(1)


def _measure(encoder: Path | None) -> dict[str, float]:
    from finesight.report.speed_probe import measure_decoding, measure_embedding

    measured = {"decoding JPEGs of 1000 × 750 px": round(measure_decoding(), 1)}
    if (embedded := measure_embedding(encoder)) is not None:
        name, rate = embedded
        measured[f"embedding by {name}"] = round(rate, 2)
    return measured


def _print(facts: list[Fact]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from finesight.io.console import TABLE_WIDTH
    from finesight.io.terminal import safe_text

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=False)
    table.add_column(overflow="fold")
    table.add_column(style="yellow", no_wrap=True)
    section = ""
    for fact in facts:
        if section and fact.section != section:
            table.add_section()
        title = fact.section if fact.section != section else ""
        section = fact.section
        table.add_row(title, *(safe_text(text) for text in (fact.name, fact.value, MARKS[fact.state])))
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False, markup=False).print(table)
    for state, heading in (("broken", "What is broken:"), ("slow", "What is slow here, and why:")):
        advice = [fact.advice for fact in facts if fact.state == state]
        if advice:
            print(heading)
            print("\n".join(f"  {safe_text(text)}" for text in advice))
    if all(fact.state in ("ok", "note") for fact in facts):
        print("Nothing is broken, and nothing here makes it slow.")
