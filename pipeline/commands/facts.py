"""Write the published allocator facts beside what a traced study says, as Markdown."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.facts import page
from pipeline.store import read_store

BAD_INPUT = 2


def run(
    out: Annotated[Path, typer.Argument(help="folder of the study's results")] = Path(
        "outputs/full_scale"
    ),
) -> None:
    """Print the page."""
    store = read_store(out)
    if not store.cells:
        typer.echo(f"{out} has no records; run python -m pipeline study=full_scale", err=True)
        sys.exit(BAD_INPUT)
    typer.echo(page(store), nl=False)
