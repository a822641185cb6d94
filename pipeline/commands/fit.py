"""Fit the copies of a table on measured cells or on a sweep's records, with a certificate.

Exit code: 0 done, 2 the input cannot be read or holds nothing to fit on, or the table cannot
be written.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pipeline.certificate import certificate_path
from pipeline.certificate_text import evidence_lines
from pipeline.certify import certify
from pipeline.observations import read_observations
from pipeline.output import require_writable, write
from pipeline.progress import make_console
from pipeline.regress.copies import Arguments
from planner.errors import PlannerError

BAD_INPUT = 2
DEFAULT = Arguments()


def run(
    cells: Annotated[
        list[Path], typer.Argument(help="measured cells (.csv), or folders of sweeps")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="table to write (.toml)")],
    prior: Annotated[
        str | None, typer.Option(help="table to begin at: nonfull-derived, or the records' own")
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="FACTOR",
            help="how firmly the fit holds to the prior: relative noise of the data over the "
            "prior's relative spread; 0 is not at all. By default 0.4 on measured cells, 0 on "
            "records",
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=0, metavar="N", help="bootstrap draws behind the intervals; 0: none")
    ] = DEFAULT.draws,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="seed of those draws")
    ] = DEFAULT.seed,
) -> None:
    """Fit the copies of a table on measured cells or on a sweep's records, with a certificate."""
    try:
        require_writable(output, ".toml")
        found = read_observations(*cells)
        found = found.under(prior or found.prior)
        arguments = found.arguments
        if strength is not None:
            arguments = replace(arguments, strength=strength)
        text, certificate = certify(
            found.sightings,
            prior or found.prior,
            name=output.stem,
            fitted_on=datetime.now(UTC).date(),
            arguments=replace(arguments, draws=draws, seed=seed),
            excluded=found.excluded,
            faults=found.faults,
            sources=found.sources,
        )
        beside = certificate_path(output)
        write(output, text)
        write(beside, json.dumps(certificate, indent=1) + "\n")
    except PlannerError as error:
        typer.echo(f"peakcast fit: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    console = make_console()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    for fault in found.faults:
        say(f"left out: {fault}")
    for one in certificate["coefficients"]:
        low, high = one["interval"]
        say(
            f"{one['name']}: {one['copies']:g} copies [{low:g}, {high:g}], "
            f"prior {one['prior']:g}, from {one['from']}"
        )
    for group in certificate["identifiability"]["collinear"]:
        say(f"not told apart by these data: {', '.join(group)}")
    for line in found.proposals(certificate["identifiability"]["collinear"]):
        say(line)
    for line in evidence_lines(certificate):
        say(line)
    say(f"table       {output}")
    say(f"certificate {beside}")
