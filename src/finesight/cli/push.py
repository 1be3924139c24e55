"""``finesight push``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finesight.cli.options import RunOrEncoder


def push(
    run: RunOrEncoder,
    name: Annotated[str, typer.Argument(help="The repository on the Hugging Face hub: OWNER/NAME.")],
    private: Annotated[bool, typer.Option("--private", help="If the repository is made: for its owner only.")] = False,
    revision: Annotated[str | None, typer.Option(help="The branch to write to.  [default: main]")] = None,
    message: Annotated[str, typer.Option(help="Of the commit.")] = "Upload a FineSight encoder",
    dry_run: Annotated[
        Path | None, typer.Option("--dry-run", help="Send nothing: write what would be sent into this folder.")
    ] = None,
) -> None:
    """Send the encoder of a run to the Hugging Face hub, with a model card that tells its settings and scores."""
    from finesight import api
    from finesight.features.hub import push_to_hub, save_pretrained

    encoder = api.load(run)
    if dry_run is not None:
        save_pretrained(encoder, dry_run, name, run)
        print(f"{dry_run} holds what would be sent to {name}: look at README.md, and add a license to it.")
        return
    address = push_to_hub(encoder, name, run=run, private=private, revision=revision, message=message)
    print(f'{address}: load it with finesight.load("hf-hub:{name}").')
