"""Log a fitted table to W&B, with its certificate and the runs it was fitted on.

Exit code: 0 done, 1 W&B refused it, 2 bad input: no certificate, other records.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from planner.errors import PlannerError

REFUSED, BAD_INPUT = 1, 2


class Mode(StrEnum):
    """Where a run goes: to a folder that `wandb sync` sends later, or to the server at once."""

    OFFLINE = "offline"
    ONLINE = "online"


def run(
    table: Annotated[Path, typer.Argument(help="fitted table (.toml), its certificate beside it")],
    records: Annotated[Path, typer.Option(help="folder of the sweep that it was fitted on")],
    mode: Annotated[Mode, typer.Option(help="when to send")] = Mode.OFFLINE,
    project: Annotated[str, typer.Option(help="W&B project")] = "peakcast",
) -> None:
    """Log a fitted table to W&B, with its certificate and the runs it was fitted on."""
    from pipeline.lineage import publish
    from pipeline.track import TrackerError, require_login, sync_command

    try:
        if mode is Mode.ONLINE:
            require_login()
        identity = publish(table, records, mode=mode.value, project=project)
    except PlannerError as error:
        typer.echo(f"peakcast publish: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    except TrackerError as error:
        typer.echo(f"peakcast publish: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    typer.echo(f"run {identity} in project {project}")
    if mode is Mode.OFFLINE:
        typer.echo(f"to send it: {sync_command(records)}")
