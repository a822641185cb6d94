"""Make the report of a recorded sweep again, from its records alone.

Exit code: 0 done, 2 the folder holds no records, nothing that a picture could show, or
cannot be written into.
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
        Path | None, typer.Option(help="also print the leading charts as a PNG or SVG")
    ] = None,
) -> None:
    """Make the report of a recorded sweep again, from its records alone."""
    store = read_store(out)
    if not store.cells:
        for fault in store.faults:
            typer.echo(f"fault: {fault}", err=True)
        what = "record that can be read" if store.faults else "records"
        typer.echo(f"peakcast report: {out} holds no {what}; a sweep writes them", err=True)
        raise typer.Exit(BAD_INPUT)
    from pipeline.report.page import write_page
    from pipeline.report.picture import write_picture

    console = make_console()
    print_table(console, store)
    print_outcomes(console, store)
    try:
        write_page(store, out / "report.html")
    except OSError as error:
        typer.echo(f"peakcast report: cannot write into {out}: {error.strerror}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    console.print(f"report   {out / 'report.html'}", soft_wrap=True, markup=False)
    if picture is not None:
        try:
            write_picture(store, picture)
        except (ValueError, OSError) as error:
            typer.echo(f"peakcast report: no picture: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from error
        console.print(f"picture  {picture}", soft_wrap=True, markup=False)
