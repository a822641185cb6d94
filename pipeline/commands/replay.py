"""Price recorded decisions again, and say which term moved.

Exit code: 0 every decision is the same to the byte, 1 one is not, 2 a file is no plan report.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.errors import ConfigError, PlannerError
from planner.plan_report import read_reports
from planner.replay import Replay, replay
from planner.units import gib

SAME, MOVED, BAD_INPUT = 0, 1, 2


def run(
    files: Annotated[
        list[Path], typer.Argument(help="plan reports (.json), or a rank's records (.jsonl)")
    ],
    coefficients: Annotated[
        str | None, typer.Option(help="another table than the recorded one")
    ] = None,
) -> None:
    """Price recorded decisions again, and say which term moved."""
    console = Console()
    code = SAME
    for path in files:
        try:
            if path.is_dir():
                raise ConfigError(f"{path} is a folder; name files in it, such as {path}/*.jsonl")
            replays = [replay(report, coefficients) for report in read_reports(path)]
        except PlannerError as error:
            typer.echo(f"peakcast replay: {error}", err=True)
            code = BAD_INPUT
            continue
        for number, again in enumerate(replays, start=1):
            name = f"{path} ({number} of {len(replays)})" if len(replays) > 1 else str(path)
            _show(name, again, console)
            if not again.same and code == SAME:
                code = MOVED
    raise typer.Exit(code)


def _show(name: str, again: Replay, console: Console) -> None:
    before, after = again.verdicts
    if again.same:
        changed = "; its table holds other figures now" if again.table_changed else ""
        console.print(Text(f"{name}: the same, {before}{changed}"), soft_wrap=True)
        return
    cause = "the table changed" if again.table_changed else "the code changed; the table did not"
    verdict = before if before == after else f"{before} then, {after} now"
    console.print(Text(f"{name}: moved ({cause}); {verdict}"), soft_wrap=True)
    table = Table("term", "moment", "rank", "then", "now", "change", box=None, pad_edge=False)
    for moved in again.moved:
        change = moved.after - moved.before
        table.add_row(
            moved.term,
            moved.moment,
            str(moved.rank),
            gib(moved.before),
            gib(moved.after),
            f"{'+' if change > 0 else ''}{gib(change)}",
        )
    if again.moved:
        console.print(table)
