"""Make the W&B workspace of a project of sweeps.

Exit code: 0 done, 1 W&B refused it, 2 what it is made with is not installed, or there is no key.
"""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.output import write
from planner.errors import ConfigError

REFUSED, BAD_INPUT = 1, 2


def run(
    entity: Annotated[str, typer.Argument(help="W&B user or team")],
    project: Annotated[str, typer.Option(help="W&B project of the sweeps")] = "peakcast",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="write it as JSON, and send nothing")
    ] = None,
) -> None:
    """Make the W&B workspace of a project of sweeps."""
    try:
        from pipeline.dashboard import as_json, send, workspace
    except ImportError as error:
        typer.echo(f"peakcast dashboard: {error}; pip install 'peakcast[dashboards]'", err=True)
        raise typer.Exit(BAD_INPUT) from error
    from pipeline.track import TrackerError, require_login

    try:
        if not entity or not project:
            raise ConfigError("name the W&B user or team, and its project")
        made = workspace(entity, project)
        if output is not None:
            write(output, as_json(made))
            typer.echo(f"workspace {output}")
            return
        require_login()
        typer.echo(f"workspace {send(made)}")
    except ConfigError as error:
        typer.echo(f"peakcast dashboard: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    except TrackerError as error:
        typer.echo(f"peakcast dashboard: {error}", err=True)
        raise typer.Exit(REFUSED) from error
