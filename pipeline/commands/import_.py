"""Read a table of measured cells and write what it holds as one JSON line a cell.

Exit code: 0 every row was read or is no measurement, 1 some rows are wrong (each is said), 2 the
file cannot be read.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline.measured import read_measured
from planner.errors import PlannerError

DONE, PARTIAL, BAD_INPUT = 0, 1, 2


def run(
    cells: Annotated[Path, typer.Argument(help="measured cells (.csv)")],
    output: Annotated[Path, typer.Option("-o", "--output", help="file to write (.jsonl)")],
) -> None:
    """Read a table of measured cells and write what it holds as one JSON line a cell."""
    try:
        measured = read_measured(cells)
    except PlannerError as error:
        typer.echo(f"peakcast import: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for cell in measured.cells:
        seen = {phase or "peak": size for phase, size in cell.sighting.seen.items()}
        counts = cell.sighting.work._asdict()
        lines.append(
            {
                "label": cell.label,
                **cell.sighting.facts,
                "tokens": cell.tokens,
                "segments": counts["requests"],
                "routed_rows": counts["rows"],
                "returned_tokens": counts["head_tokens"],
                "observed_bytes": seen,
                "published_bytes": cell.published_bytes,
            }
        )
    output.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for fault in measured.faults:
        typer.echo(f"left out: {fault}", err=True)
    typer.echo(
        f"{len(lines)} measured cells, {len(measured.excluded)} rows that are no measurement, "
        f"{len(measured.faults)} wrong: {output}"
    )
    raise typer.Exit(PARTIAL if measured.faults else DONE)
