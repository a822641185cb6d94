"""Confirm a table as it stands on sweeps' records: a fit that begins at it must end there.

Exit code: 0 confirmed, its certificate is written; 1 the records say otherwise (each is printed);
2 the input cannot be read, or the certificate not be written.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pipeline.certificate import certificate_path
from pipeline.certificate_text import evidence_lines
from pipeline.certify import confirm, disagreements
from pipeline.gate import table_path
from pipeline.observations import read_observations
from pipeline.output import require_writable, write
from planner.errors import ConfigError, PlannerError

CONFIRMED, OTHERWISE, BAD_INPUT = 0, 1, 2


def run(
    records: Annotated[list[Path], typer.Argument(help="folders of sweeps")],
    coefficients: Annotated[str, typer.Option(help="table, by name or path")] = "megatron-local",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="certificate to write (.json); by default it lies beside the table",
        ),
    ] = None,
) -> None:
    """Confirm a table as it stands on sweeps' records: a fit that begins at it must end there."""
    path = output or certificate_path(table_path(coefficients))
    try:
        if output is not None:
            require_writable(output, ".json")
        found = read_observations(*records).under(coefficients)
        certificate = confirm(
            found.sightings,
            coefficients,
            confirmed_on=datetime.now(UTC).date(),
            arguments=found.arguments,
            excluded=found.excluded,
            faults=found.faults,
        )
    except PlannerError as error:
        typer.echo(f"peakcast certify: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    for fault in found.faults:
        typer.echo(f"left out: {fault}")
    for one in certificate["coefficients"]:
        if one["agrees"] != "within its interval":
            typer.echo(
                f"{one['name']}: {one['copies']:g} copies {one['interval']}, the table has "
                f"{one['prior']:g}: agrees {one['agrees']}"
            )
    for line in evidence_lines(certificate):
        typer.echo(line)
    otherwise = disagreements(certificate)
    if otherwise:
        typer.echo(f"{coefficients} is not confirmed: {len(otherwise)} copies are others")
        raise typer.Exit(OTHERWISE)
    try:
        write(path, json.dumps(certificate, indent=1) + "\n")
    except ConfigError as error:
        typer.echo(f"peakcast certify: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    typer.echo(f"certificate {path}")
