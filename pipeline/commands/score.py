"""Price measured cells under a table, beside what was observed.

Exit code: 0 done, 2 a file cannot be read. A cell above its bound is said, not an exit code: the
gate decides.
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.measured import read_measured
from pipeline.progress import make_console
from pipeline.score import Scored, as_json, score, summarise
from pipeline.unit import unit_of_all
from planner.coefficients import Coefficients
from planner.errors import PlannerError

BAD_INPUT = 2
LINE = "  {:<13} {:>7} {:>10} {:>10} {:>8} {:>10} {:>9}"
"""Of a cell; red where the bound lay under what was observed."""


def run(
    cells: Annotated[Path, typer.Argument(help="measured cells (.csv)")],
    coefficients: Annotated[str, typer.Option(help="table, by name or path")] = "nonfull-h200",
    as_document: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Price measured cells under a table, beside what was observed."""
    try:
        measured = read_measured(cells)
        scored = score(measured.cells, Coefficients.load(coefficients))
    except PlannerError as error:
        typer.echo(f"peakcast score: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    for fault in measured.faults:
        typer.echo(f"peakcast score: left out: {fault}", err=True)
    summary = summarise(scored)
    if as_document:
        document = {
            "coefficients": coefficients,
            "cells": as_json(scored),
            "summary": summary,
            "excluded": list(measured.excluded),
            "faults": list(measured.faults),
        }
        typer.echo(json.dumps(document, indent=1))
        return
    _print(scored, summary, len(measured.excluded))


def _print(scored: list[Scored], summary: dict[str, Any], excluded: int) -> None:
    console = make_console()
    unit = unit_of_all(cell.expected_bytes for cell in scored)
    console.print(f"A line a size, under what it ran on, {unit.name}", style="italic")
    heads = ("size", "tokens", "observed", "expected", "error", "bound", "bound/obs")
    console.print(LINE.format(*heads), style="bold", markup=False)
    for kind, cells in groupby(scored, key=lambda cell: cell.label.rpartition(" ")[0]):
        console.print(kind, markup=False, soft_wrap=True)
        for cell in cells:
            line = LINE.format(
                cell.label.rpartition(" ")[2],
                f"{cell.tokens:,}",
                unit.show(cell.observed_bytes),
                unit.show(cell.expected_bytes),
                f"{100 * cell.error:+.1f} %",
                unit.show(cell.bound_bytes),
                f"{cell.bound_bytes / cell.observed_bytes:.3f}",
            )
            console.print(line, style="" if cell.covered else "red", markup=False)
    for name, figures in summary.items():
        for part, values in figures.items() if name == "published" else [("", figures)]:
            words = ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in values.items())
            line = f"{name} {part}".strip().replace("_", " ") + f": {words}"
            console.print(line, markup=False, soft_wrap=True)
    console.print(f"{excluded} rows are no measurement and were left out")
