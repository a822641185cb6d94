"""Show the last lines of each rank's log, of the cells that failed or of those named.

Exit code: 0 done, 2 the folder holds no records, or no such cell.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from pipeline.logs import log_of, tail_of
from pipeline.plain import plain
from pipeline.store import Cell, Store, labels, read_store

BAD_INPUT = 2


def run(
    out: Annotated[Path, typer.Argument(help="folder of a sweep, such as outputs/default")],
    cells: Annotated[
        list[str] | None, typer.Argument(help="beginnings of keys; by default what failed")
    ] = None,
    lines: Annotated[int, typer.Option(min=1, help="last lines of each log")] = 20,
) -> None:
    """Show the last lines of each rank's log, of the cells that failed or of those named."""
    store = read_store(out)
    if not store.cells:
        typer.echo(f"peakcast logs: {out} holds no records; a sweep writes them", err=True)
        raise typer.Exit(BAD_INPUT)
    for begins in cells or ():
        if not any(cell.key.startswith(begins) for cell in store.cells):
            typer.echo(f"peakcast logs: no cell's key begins with {begins} in {out}", err=True)
            raise typer.Exit(BAD_INPUT)
    named = labels(store)
    chosen = _chosen(store, cells or ())
    if not chosen:
        typer.echo(f"none of {len(store.cells)} cells failed; name a key to see its logs")
    for cell in chosen:
        for rank, log in _logs(store, cell):
            typer.echo(f"== {named[cell.key]}, {cell.outcome}, rank {rank}: {log or 'no log'}")
            if log is not None:
                typer.echo("\n".join(plain(tail_of(log), keep="\n\t").splitlines()[-lines:]))


def _chosen(store: Store, keys: list[str] | tuple[()]) -> list[Cell]:
    if not keys:
        return [cell for cell in store.cells if cell.outcome in ("failed", "incomplete")]
    return [cell for cell in store.cells if cell.key.startswith(tuple(keys))]


def _logs(store: Store, cell: Cell) -> Iterator[tuple[int, Path | None]]:
    """Find the log of every rank that left a record."""
    last = {record.rank: record for record in cell.records}
    for rank in sorted(last):
        yield rank, log_of(store.out, last[rank])
