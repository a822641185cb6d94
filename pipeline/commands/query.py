"""Ask a sweep's records in SQL: its tables are records and terms.

Exit code: 0 done, 2 there are no records, or the statement is refused.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pipeline.progress import make_console
from pipeline.query import ask
from planner.errors import PlannerError

BAD_INPUT = 2


def run(
    sql: Annotated[str, typer.Argument(help="one SELECT over records and terms")],
    out: Annotated[Path, typer.Option(help="folder of a sweep")] = Path("outputs/default"),
    export: Annotated[Path | None, typer.Option(help="also write the rows as Parquet")] = None,
) -> None:
    """Ask a sweep's records in SQL: its tables are records and terms."""
    try:
        answer = ask(out, sql, export)
    except PlannerError as error:
        typer.echo(f"peakcast query: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    for fault in answer.faults:
        typer.echo(f"peakcast query: left out: {fault}", err=True)
    table = Table(*answer.columns, box=None, pad_edge=False)
    for row in answer.rows:
        table.add_row(*["" if value is None else str(value) for value in row])
    make_console().print(table)
    if export is not None:
        typer.echo(f"parquet  {export}")
