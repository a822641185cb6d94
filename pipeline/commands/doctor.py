"""Say what this machine offers to a sweep, and how to get what it lacks.

Exit code: 0 all that every sweep needs is here and works, and all that --require names; 1 some of
it is not; 2 bad input. No secret is shown: of a key, only whether there is one.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pipeline.doctor.examine import NAMES, examine, lacking
from pipeline.doctor.finding import Finding
from pipeline.progress import make_console

WHOLE, LACKING, BAD_INPUT = 0, 1, 2


def run(
    out: Annotated[Path, typer.Option(help="folder where results would go")] = Path("outputs"),
    require: Annotated[
        str, typer.Option(help="names that must be ok, with commas: cuda,slurm,accounting")
    ] = "",
    as_document: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what this machine offers to a sweep, and how to get what it lacks."""
    required = [name for name in require.split(",") if name]
    if unknown := sorted(set(required) - set(NAMES)):
        names = ", ".join(NAMES)
        typer.echo(f"peakcast doctor: --require {unknown[0]}: it looks at {names}", err=True)
        raise typer.Exit(BAD_INPUT)
    findings = examine(out)
    missing = lacking(findings, required)
    if as_document:
        document = {"ok": not missing, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(document, indent=1))
    else:
        show(findings, missing)
    raise typer.Exit(LACKING if missing else WHOLE)


def show(findings: list[Finding], missing: list[Finding]) -> None:
    """Print what was found, how to get what is not here, and what of it is needed."""
    console = make_console()
    table = Table("", "", "found", "needed for", box=None, padding=(0, 2, 0, 0))
    style = {"ok": "green", "absent": "yellow", "broken": "red"}
    for finding in findings:
        table.add_row(
            f"[{style[finding.status]}]{finding.status}[/]",
            finding.name,
            finding.found.replace("[", r"\["),
            finding.needed_for,
        )
    console.print(table)
    for finding in findings:
        if finding.fix:
            console.print(f"{finding.name}: {finding.fix}", soft_wrap=True, markup=False)
    names = ", ".join(finding.name for finding in missing)
    console.print(f"needed and not here: {names}" if missing else "every sweep's needs are met")
