"""The command line. Each command has a file of its own beside this one: parse, call, print."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Annotated

import typer

from finesight.cli.clean import clean
from finesight.cli.clusters import clusters, duplicates
from finesight.cli.compare import compare
from finesight.cli.datasets import datasets_app
from finesight.cli.demo import demo
from finesight.cli.doctor import doctor
from finesight.cli.embed import embed
from finesight.cli.evaluate import evaluate
from finesight.cli.exits import exit_with_message
from finesight.cli.explain import explain
from finesight.cli.export import export
from finesight.cli.index import index
from finesight.cli.inspect import inspect
from finesight.cli.judge import judge
from finesight.cli.labels import labels_app
from finesight.cli.lookalikes import lookalikes
from finesight.cli.methods import methods
from finesight.cli.options import RenamedOptions
from finesight.cli.push import push
from finesight.cli.search import search
from finesight.cli.serve import serve
from finesight.cli.train import train
from finesight.cli.up import up
from finesight.cli.verdict import verdict
from finesight.io.terminal import guard_terminal
from finesight.version import __version__

app = typer.Typer(
    name="finesight",
    help="Learn, without labels, features that tell look-alike images apart.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(datasets_app, name="datasets")
app.add_typer(labels_app, name="labels")
COMMANDS = (
    *(clean, clusters, compare, duplicates, evaluate, explain, export, index, judge, push, search, serve, up, verdict),
    *(train, methods, embed, inspect, lookalikes, demo, doctor),
)
for command in COMMANDS:
    app.command(cls=RenamedOptions)(command)
for group in entry_points(group="finesight.commands"):  # ``bench`` of finesight.paper, and those of other distributions
    app.add_typer(group.load(), name=group.name)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"finesight {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn, without labels, features that tell look-alike images apart."""


def main() -> None:
    """Run the app; an error that is the user's to fix is one message and exit code 2, without a trace."""
    # Threads that wait by spinning make a busy machine many times slower; must be set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    guard_terminal()
    with exit_with_message():
        app()


if __name__ == "__main__":
    main()
