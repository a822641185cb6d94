"""The report in a terminal: predicted against observed, a row a cell and temperature."""

from collections.abc import Callable
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.cut_short import told
from pipeline.logs import log_of
from pipeline.store import Cell, Store, labels, rows
from pipeline.summary import Summary, summarise
from pipeline.unit import Unit, unit_of_all

WIDE = 125  # columns that the whole comparison takes; narrower terminals get it in two tables


def print_table(console: Console, store: Store) -> None:
    """Print the comparison; the figures of a row are those of its fullest rank and call."""
    summaries = summarise(rows(store))
    if not summaries:
        return
    expected = [summary.fullest["planned_expected_bytes"] for summary in summaries]
    unit = unit_of_all(expected)
    title = f"the fullest rank and call of each cell, {unit.name}"
    if console.width >= WIDE:
        parts = {f"Predicted against observed: {title}": (*WORKING_SET, *BUFFERS)}
    else:
        narrow = tuple(column for column in WORKING_SET if column[0] != "error")
        parts = {f"Working set: {title}": narrow, f"Growth and held over: {title}": BUFFERS}
    for heading, columns in parts.items():
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
        for name in ("cell", "calls"):
            table.add_column(name)
        for name, _ in columns:
            table.add_column(name, justify="right")
        for summary in summaries:
            row = summary.fullest
            figures = [show(summary, unit) for _, show in columns]
            table.add_row(escape(row["label"]), calls_of(summary), *figures)
        console.print(f"{heading}\n", style="italic")
        console.print(table)
        console.print()


def _in_bound(summary: Summary, _: Unit) -> str:
    mark = "[red]" if summary.covered < summary.observed else ""
    return f"{mark}{summary.covered}/{summary.observed}" if summary.observed else ""


def _bytes(column: str) -> Callable[[Summary, Unit], str]:
    return lambda summary, unit: unit.show(summary.fullest[column])


def _observed(summary: Summary, unit: Unit) -> str:
    """Show what was observed, or how the call ended that was not."""
    row = summary.fullest
    return unit.show(row["observed_working_set_bytes"]) or str(row["outcome"])


Column = tuple[str, Callable[[Summary, Unit], str]]

WORKING_SET: tuple[Column, ...] = (
    ("expected", _bytes("planned_expected_bytes")),
    ("bound", _bytes("planned_bound_bytes")),
    ("observed", _observed),
    ("error", lambda s, _: percent(s.fullest["error_percent"])),
    ("worst\nerror", lambda s, _: percent(s.worst_percent if s.observed else None)),
    ("in\nbound", _in_bound),
)
BUFFERS: tuple[Column, ...] = (
    ("growth\npredicted", _bytes("planned_growth_bytes")),
    ("\nobserved", _bytes("observed_growth_bytes")),
    ("held over\npredicted", _bytes("planned_held_over_bytes")),
    ("\nobserved", _bytes("observed_held_over_bytes")),
)


def calls_of(summary: Summary) -> str:
    """Show which calls a line stands for: in how many children if split, how many failed."""
    row = summary.fullest
    split = f" in {row['children']}" if (row["children"] or 1) > 1 else ""
    failed = f", {summary.failed} failed" if summary.failed and summary.observed else ""
    return f"{row['temperature']}{split}{failed}"


def percent(value: float | None) -> str:
    """Show a signed percentage; nothing where there is no figure."""
    return "" if value is None else f"{value:+.2f} %"


def print_outcomes(console: Console, store: Store) -> None:
    """Print a line for each cell that failed, was refused or is incomplete, and each fault."""
    named = labels(store)
    for cell in store.cells:
        if cell.outcome != "ok":
            style = "yellow" if cell.outcome == "refused" else "red"
            _print_line(console, f"{cell.outcome}: {named[cell.key]}: {cell.error}", style)
            where = told(cell)
            if where:
                _print_line(console, f"  {where}", style)
            log = _first_log(store, cell)
            if log is not None:
                _print_line(console, f"  its log: {log}", style)
    for fault in store.faults:
        _print_line(console, f"fault: {fault}", "yellow")


def _first_log(store: Store, cell: Cell) -> Path | None:
    """Return the log of a rank that says what went wrong, else of any that has one."""
    records = sorted(cell.records, key=lambda record: not record.error)
    return next(filter(None, (log_of(store.out, record) for record in records)), None)


def _print_line(console: Console, line: str, style: str) -> None:
    """Print words of records, of which some may be no text that a terminal can be sent."""
    plain = line.encode("utf-8", "backslashreplace").decode("utf-8")
    console.print(plain, style=style, soft_wrap=True, markup=False)
