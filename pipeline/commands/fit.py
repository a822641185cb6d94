"""Fit the copies of a table on measured cells or on a sweep's records, with a certificate.

Exit code: 0 done, 2 the input cannot be read or holds nothing to fit on.
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
            help="relative noise over the prior's relative spread (0: no prior); "
            "0.4 on measured cells, 0 on records"
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="draws of the bootstrap")] = DEFAULT.draws,
    seed: Annotated[int, typer.Option(help="of the bootstrap")] = DEFAULT.seed,
) -> None:
    """Fit the copies of a table on measured cells or on a sweep's records, with a certificate."""
    try:
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
    except PlannerError as error:
        typer.echo(f"peakcast fit: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    beside = certificate_path(output)
    beside.write_text(json.dumps(certificate, indent=1) + "\n", encoding="utf-8")
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
