"""Import records as a sweep's folder: a table of measured cells, W&B runs or a project.

Exit code: 0 all was taken, 1 some rows are wrong or some runs carry no records (each is said), 2
nothing can be taken.
"""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.measured import read_measured
from pipeline.measured_records import write_measured
from pipeline.track_back import ONLINE, Taken, is_run_folder, take_offline, take_online
from planner.errors import PlannerError

DONE, PARTIAL, BAD_INPUT = 0, 1, 2


def run(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="measured cells (.csv); folders of offline W&B runs; or wandb:entity/project, "
            "wandb:entity/project/group"
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder to write records into")],
    coefficients: Annotated[
        str, typer.Option(help="table that prices measured cells, by name or path")
    ] = "nonfull-h200",
) -> None:
    """Import records as a sweep's folder: a table of measured cells, W&B runs or a project."""
    try:
        complete = _take(sources, output, coefficients)
    except PlannerError as error:
        typer.echo(f"peakcast import: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    except OSError as error:
        typer.echo(f"peakcast import: cannot write into {output}: {error.strerror}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    raise typer.Exit(DONE if complete else PARTIAL)


def _take(sources: list[str], output: Path, coefficients: str) -> bool:
    """Take every source; return whether nothing was left out."""
    paths = [Path(source) for source in sources if not source.startswith(ONLINE)]
    folders = [path for path in paths if is_run_folder(path)]
    complete = True
    for table in (path for path in paths if path not in folders):
        measured = read_measured(table)
        count = write_measured(measured, output, coefficients)
        for fault in measured.faults:
            typer.echo(f"left out: {fault}", err=True)
        typer.echo(
            f"{table}: {count} measured cells, {len(measured.excluded)} rows that are no "
            f"measurement, {len(measured.faults)} wrong"
        )
        complete &= not measured.faults
    if folders:
        complete &= _say(take_offline(folders, output), f"{len(folders)} folders")
    for source in sources:
        if source.startswith(ONLINE):
            complete &= _say(take_online(source, output), source)
    typer.echo(f"records  {output}")
    return complete


def _say(taken: Taken, source: str) -> bool:
    for name in taken.without:
        typer.echo(f"left out: run {name} carries no records", err=True)
    typer.echo(f"{source}: {taken.runs} runs, {taken.files} files")
    return not taken.without
