"""Print what starts a study by itself each day; with --now, run it and compare with its baseline.

A run prices with the last certified table, runs the cells that are new, and compares error and
coverage of each cell with the stored baseline. Exit code: 0 no worse (the entries were printed), 1
worse, or a cell failed, 2 bad input, or a file that cannot be read or written, 75 it is being run
already, 130 interrupted.
"""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.schedule.entries import Schedule, entries
from pipeline.schedule.lease import LeaseHeldError
from pipeline.schedule.run import BAD_INPUT, BUSY
from pipeline.schedule.run import run as run_schedule
from planner.errors import ConfigError, PlannerError

INTERRUPTED = 130


def run(
    study: Annotated[str, typer.Argument(help="a study of conf/study, such as nightly")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="of the sweep, after --: launcher=slurm …")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of its sweeps; by default outputs/STUDY")
    ] = None,
    at: Annotated[str, typer.Option(help="time of day, HH:MM")] = "02:17",
    limit_min: Annotated[int, typer.Option(min=1, help="minutes that Slurm gives it")] = 480,
    now: Annotated[bool, typer.Option("--now", help="run it, as the entries do")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="with --now: make this sweep the baseline")
    ] = False,
) -> None:
    """Print what starts a study by itself each day; with --now, run it and compare."""
    try:
        if accept and not now:
            raise typer.BadParameter("it goes with --now", param_hint="--accept")
        if out is not None and out.exists() and not out.is_dir():
            raise ConfigError(f"--out {out} is no folder")
        schedule = Schedule.of(study, out, overrides or ())
        if not now:
            typer.echo(entries(schedule, at, limit_min), nl=False)
            return
        code = run_schedule(schedule, typer.echo, accept=accept)
    except LeaseHeldError as busy:
        typer.echo(f"peakcast schedule: {busy}", err=True)
        code = BUSY
    except (PlannerError, OSError) as error:
        typer.echo(f"peakcast schedule: {error}", err=True)
        code = BAD_INPUT
    except KeyboardInterrupt:
        typer.echo("interrupted; every job was stopped, what was recorded stays", err=True)
        code = INTERRUPTED
    raise typer.Exit(code)
