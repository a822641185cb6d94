"""The report in a terminal: predicted against observed, a row a cell and temperature."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from pipeline.store import Store, rows
from pipeline.summary import Summary, summarise
from planner.units import MIB


def print_table(console: Console, store: Store) -> None:
    """Print the comparison; the figures of a row are those of its fullest rank and call."""
    summaries = summarise(rows(store))
    if not summaries:
        return
    table = Table(
        title="Predicted against observed: the fullest rank and call of each cell, MiB",
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for name in ("cell", "calls"):
        table.add_column(name, no_wrap=True)
    for name in ("expected", "bound", "observed", "error", "worst\nerror", "in\nbound"):
        table.add_column(name, justify="right")
    for name in ("growth\npredicted", "\nobserved", "held over\npredicted", "\nobserved"):
        table.add_column(name, justify="right")
    for summary in summaries:
        table.add_row(*_cells(summary))
    console.print(table)


def _cells(summary: Summary) -> list[str]:
    row = summary.fullest
    covered = "[red]" if summary.covered < summary.observed else ""
    grown = "" if summary.growth_matches else "[red]"
    return [
        row["label"],
        row["temperature"],
        mib(row["planned_expected_bytes"]),
        mib(row["planned_bound_bytes"]),
        mib(row["observed_working_set_bytes"]) or row["outcome"],
        percent(row["error_percent"]),
        percent(summary.worst_percent if summary.observed else None),
        f"{covered}{summary.covered}/{summary.observed}" if summary.observed else "",
        mib(row["planned_growth_bytes"]),
        grown + mib(row["observed_growth_bytes"]),
        mib(row["planned_held_over_bytes"]),
        mib(row["observed_held_over_bytes"]),
    ]


def mib(size: int | None) -> str:
    """Show bytes in MiB; nothing where there is no figure."""
    if size is None:
        return ""
    return f"{size / MIB:,.2f}" if size else "0"


def percent(value: float | None) -> str:
    """Show a signed percentage; nothing where there is no figure."""
    return "" if value is None else f"{value:+.2f} %"


def print_outcomes(console: Console, store: Store) -> None:
    """Print a line for each cell that failed, was refused or is incomplete, and each fault."""
    for cell in store.cells:
        if cell.outcome != "ok":
            style = "yellow" if cell.outcome == "refused" else "red"
            logs = store.out / "jobs" / f"{cell.key}.a{cell.attempt}"
            line = f"{cell.outcome}: {cell.label}: {cell.error}; logs: {logs}"
            console.print(line, style=style, soft_wrap=True, markup=False)
    for fault in store.faults:
        console.print(f"fault: {fault}", style="yellow", soft_wrap=True, markup=False)
