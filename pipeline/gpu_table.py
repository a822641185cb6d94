"""A device's calls in a terminal: beside their prices, by the allocator, and what was missed."""

from collections.abc import Callable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from pipeline.gpu_row import Row
from pipeline.unit import Unit, unit_of_all

Column = tuple[str, Callable[[Row], int]]

PRICES: tuple[Column, ...] = (
    ("expected", lambda row: row.planned.expected_bytes),
    ("bound", lambda row: row.planned.bound_bytes),
    ("working\nset", lambda row: row.observed.working_set_bytes),
)
DEVICE: tuple[Column, ...] = (
    ("by the\nledger", lambda row: row.observed.peak_bytes),
    ("by the\nallocator", lambda row: row.device_peak_bytes),
    ("\nreserved", lambda row: row.reserved_peak_bytes),
    ("reserved,\nreplayed", lambda row: row.replayed_bytes),
    ("outside\ngrew by", lambda row: row.outside_growth_bytes),
)


def show(console: Console, found: Sequence[Row]) -> None:
    """Print two tables, each in one unit, and a line for each call that is outside the limits."""
    if not found:
        return
    unit = unit_of_all(size(row) for row in found for _, size in PRICES)
    prices = _table(PRICES)
    prices.add_column("off", justify="right")
    for row in found:
        mark = "[red]" if row.misses else ""
        prices.add_row(*_cells(row, PRICES, unit), f"{mark}{100 * row.off:+.2f} %")
    _print(console, f"The price of each call beside what the ledger saw, {unit.name}", prices)
    unit = unit_of_all(row.reserved_peak_bytes for row in found)
    device = _table(DEVICE)
    for row in found:
        device.add_row(*_cells(row, DEVICE, unit))
    title = f"Peak above what the call began with, and PyTorch's pool, {unit.name}"
    _print(console, title, device)
    for row in found:
        if row.misses:
            line = f"outside the limits: {row.cell} {row.temperature}: {'; '.join(row.misses)}"
            console.print(line, style="red", soft_wrap=True, markup=False)


def _print(console: Console, title: str, table: Table) -> None:
    console.print(f"{title}\n", style="italic")
    console.print(table)
    console.print()


def _table(columns: Sequence[Column]) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("cell", "calls"):
        table.add_column(name)
    for name, _ in columns:
        table.add_column(name, justify="right")
    return table


def _cells(row: Row, columns: Sequence[Column], unit: Unit) -> list[str]:
    return [row.cell, row.temperature, *(unit.show(size(row)) for _, size in columns)]
