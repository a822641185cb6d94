"""Print the published allocator facts beside what a traced study says, as Markdown.

Exit code: 0 printed, 2 the folder holds no call that was observed.
"""

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
    """Print the published allocator facts beside what a traced study says, as Markdown."""
    store = read_store(out)
    for fault in store.faults:
        typer.echo(f"peakcast facts: left out: {fault}", err=True)
    if not any(record.planned and record.measured for c in store.cells for record in c.records):
        typer.echo(
            f"peakcast facts: {out} holds no call that was observed to its end; run python -m "
            "pipeline study=full_scale",
            err=True,
        )
        raise typer.Exit(BAD_INPUT)
    typer.echo(page(store), nl=False)
