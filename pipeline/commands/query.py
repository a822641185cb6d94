"""Ask a sweep's records in SQL: its tables are records and terms.

Exit code: 0 done, 2 there are no records, or the statement is refused.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pipeline.progress import make_console
from pipeline.query import Answer, ask
from planner.errors import PlannerError

BAD_INPUT = 2
WIDEST = 100_000  # columns: room for any row


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
    console = make_console()
    if console.measure(table, options=console.options.update_width(WIDEST)).maximum > console.width:
        _print_apart(console, answer)
    else:
        console.print(table)
    if export is not None:
        typer.echo(f"parquet  {export}")


def _print_apart(console: Console, answer: Answer) -> None:
    """Print rows that are wider than the terminal one by one, a line a column."""
    names = max(map(len, answer.columns))
    for number, row in enumerate(answer.rows, start=1):
        console.print(f"row {number} of {len(answer.rows)}", style="italic")
        for name, value in zip(answer.columns, row, strict=True):
            shown = "" if value is None else str(value)
            console.print(f"{name:<{names}}  {shown}", markup=False, soft_wrap=True)
