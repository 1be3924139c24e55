"""``finesight judge``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import DATA_HELP, CacheDir, Quiet, Workers
from finesight.cli.serve import AllowHost, Host, Port, Token, server_config, stoppable
from finesight.errors import FineSightError
from finesight.io.console import printable

if TYPE_CHECKING:
    from finesight.evaluation.judging import Decision, Question
    from finesight.report.judge import Judge
    from finesight.server.config import ServerConfig
    from finesight.training.candidates import CandidateName

SHEET = "judging.png"  # beside the answers, while they are given in a terminal
KEYS = {  # what a terminal sends for the arrows, and letters for those who type
    **{"\x1b[D": "left", "\x1b[C": "right", "\x1b[A": "both", "\x1b[B": "neither"},
    **{"\x1bOD": "left", "\x1bOC": "right", "\x1bOA": "both", "\x1bOB": "neither"},
    **{"l": "left", "r": "right", "b": "both", "n": "neither"},
    **{"u": "undo", "\x7f": "undo", "\x08": "undo", "q": "quit", "\x04": "quit", "": "quit"},
}


def judge(
    a: Annotated[str, typer.Argument(help="A run, RUN:POOLING or RUN:frozen.", metavar="RUN_A")],
    b: Annotated[
        str | None,
        typer.Argument(help="Another. Without one, the frozen network of RUN_A is its rival.", metavar="[RUN_B]"),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help=f"{DATA_HELP}  [default: what the run was trained on]")
    ] = None,
    images: Annotated[int, typer.Option(min=3, max=100_000, help="Most that are searched, chosen by chance.")] = 2000,
    terminal: Annotated[bool, typer.Option("--terminal", help="Answer here by keys, not in a browser.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only say what the answers say so far.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Only write the answers so far to this .csv or .json file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object on standard output.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 0,
    token: Token = None,
    allow_host: AllowHost = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Choose between two candidates by a few clicks: whose nearest image is more like the query? Shown blind.

    The answers are kept in judgments.json of the second run; run it again to go on.
    """
    from finesight.io.console import console
    from finesight.report.judge import Judge, rewrite_verdict
    from finesight.training.candidates import candidate_names, judged_run, judgments_file, open_judging
    from finesight.training.config import RuntimeConfig

    names = candidate_names(a, b)
    if show or export is not None:
        _report(names, judgments_file(names), export, as_json)
        return
    config = server_config(host, port, token, allow_host, open_page, 32, 20.0, cache_dir)
    with stoppable():
        runtime = RuntimeConfig(cache_dir=cache_dir, workers=workers, progress=not quiet)
        judging, source = open_judging(names, data, runtime, images=images)
        run, verdict = judged_run(names), ""

        def on_end(decision: Decision) -> str | None:
            nonlocal verdict
            verdict = "" if run is None else rewrite_verdict(run, runtime) or ""
            return verdict

        session = Judge(judging, source, on_end=on_end)
        if terminal:
            _ask_here(session, judgments_file(names).with_name(SHEET))
        elif session.next() is not None:
            _ask_in_browser(session, config, on_end)
    _print(session.decision, as_json)
    if verdict:
        console.print(verdict, markup=False)


def _ask_in_browser(session: Judge, config: ServerConfig, on_end: Callable[[Decision], str | None]) -> None:
    from finesight.server.judge_desk import JudgeDesk, JudgeRoom
    from finesight.server.run_server import run_judge_server

    # Pictures may lie anywhere: the paths come from the command line, and only those are served.
    desk = JudgeDesk(session.judging, str(session.source.root), config, on_end, within="/")
    run_judge_server(JudgeRoom(lambda: desk, config))


def _ask_here(session: Judge, sheet: Path) -> None:
    """Ask in the terminal; the pictures are in a file that any viewer shows."""
    from finesight.io.console import console

    console.print(
        f"Open {sheet}: it shows the query and the two answers, and changes with every question.", markup=False
    )
    console.print("← left · → right · ↑ both · ↓ neither · u undo · q quit (or l, r, b, n)", markup=False)
    while (question := session.next()) is not None:
        _draw(session, question, sheet)
        names = " | ".join(printable(session.judging.paths[i]) for i in (question.query, question.left, question.right))
        console.print(f"{question.number}. {names}", markup=False)
        told = _key()
        if told == "quit":
            break
        try:
            session.undo() if told == "undo" else session.answer(told)
        except FineSightError as error:
            console.print(str(error), markup=False)
        console.print(repr(session), markup=False)
    sheet.unlink(missing_ok=True)


def _draw(session: Judge, question: Question, sheet: Path) -> None:
    from finesight.io.atomic import atomic_path

    with atomic_path(sheet) as scratch:
        session.sheet(question).save(scratch)


def _key() -> str:
    """Return what the next key, or line where there is no keyboard, stands for."""
    while True:
        if sys.stdin.isatty():
            text = typer.getchar()
        else:
            line = sys.stdin.readline()
            text = line.strip().lower() if line else "q"
            text = text[:1] if text in ("left", "right", "both", "neither", "undo", "quit") else text or "?"
        if (told := KEYS.get(text.lower() if len(text) == 1 else text)) is not None:
            return told


def _report(names: tuple[CandidateName, CandidateName], file: Path, export: Path | None, as_json: bool) -> None:
    """Say or write what was answered about these two."""
    from finesight.evaluation.judging import decide
    from finesight.evaluation.judgments import read_records
    from finesight.report.judge import export_record

    shown = names[0].short(names[1]), names[1].short(names[0])
    records = [one for one in read_records(file) if (one.a.name, one.b.name) == shown and one.judgments]
    if not records:
        raise FineSightError(f"{file} has no answers about {shown[0]} and {shown[1]} yet: run `finesight judge` first.")
    if export is not None:
        export_record(records[-1], export)
        return
    _print(decide(records[-1]), as_json)


def _print(decision: Decision, as_json: bool) -> None:
    print(json.dumps(decision.summary()) if as_json else printable(decision.words))
