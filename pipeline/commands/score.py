"""Price measured cells under a table, beside what was observed.

Exit code: 0 done, 2 a file cannot be read. A cell above its bound is said, not an exit code: the
gate decides.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pipeline.measured import read_measured
from pipeline.progress import make_console
from pipeline.score import Scored, as_json, score, summarise
from planner.coefficients import Coefficients
from planner.errors import PlannerError
from planner.units import gib

BAD_INPUT = 2


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
    table = Table("cell", "tokens", "observed", "expected", "error", "bound", "bound/observed")
    for cell in scored:
        table.add_row(
            cell.label,
            str(cell.tokens),
            gib(cell.observed_bytes),
            gib(cell.expected_bytes),
            f"{cell.error:+.1%}",
            gib(cell.bound_bytes) + ("" if cell.covered else " UNDER"),
            f"{cell.bound_bytes / cell.observed_bytes:.3f}",
        )
    console.print(table)
    for name, figures in summary.items():
        for part, values in figures.items() if name == "published" else [("", figures)]:
            words = ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in values.items())
            console.print(f"{name} {part}".strip().replace("_", " ") + f": {words}", markup=False)
    console.print(f"{excluded} rows are no measurement and were left out")
