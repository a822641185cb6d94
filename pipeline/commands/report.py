"""Make the report of a recorded sweep again, from its records alone.

Exit code: 0 done, 2 the folder holds no records.
"""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.progress import make_console
from pipeline.report.table import print_outcomes, print_table
from pipeline.store import read_store

BAD_INPUT = 2


def run(
    out: Annotated[Path, typer.Argument(help="folder of a sweep, such as outputs/default")],
    picture: Annotated[
        Path | None, typer.Option(help="also draw predicted against observed as a PNG")
    ] = None,
) -> None:
    """Make the report of a recorded sweep again, from its records alone."""
    store = read_store(out)
    if not store.cells:
        typer.echo(f"peakcast report: {out} holds no records; a sweep writes them", err=True)
        raise typer.Exit(BAD_INPUT)
    from pipeline.report.charts import write_picture
    from pipeline.report.page import write_page

    console = make_console()
    print_table(console, store)
    print_outcomes(console, store)
    write_page(store, out / "report.html")
    console.print(f"report   {out / 'report.html'}", soft_wrap=True, markup=False)
    if picture is not None:
        write_picture(store, picture)
        console.print(f"picture  {picture}", soft_wrap=True, markup=False)
