"""Say whether a table may be trusted: no observed peak above its bound, certified, within limits.

Exit code: 0 it may, 1 it may not (each reason is printed), 2 a file cannot be read.
"""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.gate import Limits, exceeded, ran_out, table_path, uncertified, unheld
from pipeline.observations import read_observations
from planner.coefficients import Coefficients, table_digest
from planner.errors import PlannerError

PASSED, FAILED, BAD_INPUT = 0, 1, 2


def run(
    records: Annotated[
        list[Path], typer.Option(help="measured cells (.csv), or a sweep's folder; may be repeated")
    ],
    coefficients: Annotated[str, typer.Option(help="table, by name or path")],
    limits: Annotated[
        Path | None, typer.Option(help="limits (.yaml) in place of conf/gate/default.yaml")
    ] = None,
) -> None:
    """Say whether a table may be trusted: its bound held, it is certified, errors are in limits."""
    try:
        allowed = Limits.load(limits)
        found = read_observations(*records).under(coefficients)
        table = Coefficients.load(coefficients)
        reasons = unheld(found.sightings, table)
    except PlannerError as error:
        typer.echo(f"peakcast gate: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    reasons += exceeded(found.sightings, table_digest(coefficients))
    against = ran_out(found.excluded)
    reasons += [f"ran out of memory, or passed its bound: {reason}" for reason in against]
    reasons += [f"fault: {fault}" for fault in found.faults]
    reasons += uncertified(table_path(coefficients), allowed)
    for reason in found.excluded:
        if reason in against:
            continue
        typer.echo(f"gate: not held against it: {reason}")
    for reason in reasons:
        typer.echo(f"gate: {reason}")
    typer.echo(
        f"gate: {coefficients} on {len(found.sightings)} observed calls: "
        + ("failed" if reasons else "passed")
    )
    raise typer.Exit(FAILED if reasons else PASSED)
