"""Lineage: a fitted table and its certificate as a W&B artifact, made from the runs' records.

One run a fit. It takes the records artifacts that the cells' runs gave (`pipeline.track`) and gives
the table, so that the project's graph leads from a coefficient back to the runs it rests on.
"""

import os
import re

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from pipeline.certificate import certificate_path, require_certified, sightings_digest
from pipeline.observations import read_observations
from pipeline.store import Store, read_store
from pipeline.track import TrackerError, quiet_settings, records_artifact
from planner.errors import ConfigError

NAME = re.compile(r"[\w.-]+")


def publish(table: Path, out: Path, *, mode: str, project: str) -> str:
    """Write a run that gives ``table`` and takes the records under ``out``; return its id.

    Parameters
    ----------
    table
        A fitted table (.toml), its certificate beside it.
    out
        Folder of the sweep that it was fitted on; an offline run lies in its ``wandb``.
    mode
        ``offline`` or ``online``.

    Raises
    ------
    CertificateError
        Where the certificate is missing or of another table.
    ConfigError
        Where the table was fitted on other records, or its name is none that W&B takes.
    TrackerError
        When W&B or the disk refuses the run.
    """
    certificate = require_certified(table)
    name = certificate["table"]["name"]
    if not NAME.fullmatch(name):
        raise ConfigError(f"an artifact cannot be called {name!r}: letters, digits and . _ - only")
    seen = sightings_digest(read_observations(out).under(str(table)).sightings)
    if seen != certificate["sightings"]["sha256"]:
        raise ConfigError(
            f"{table} was not fitted on the records under {out} (sightings {seen[:12]} there, "
            f"{certificate['sightings']['sha256'][:12]} in its certificate); name the folder that "
            "it was fitted on, or fit it again"
        )
    store = read_store(out)
    identity = f"fit-{certificate['table']['sha256'][:16]}"
    try:
        _write_run(identity, name, table, certificate, store, mode, project)
    except (wandb.Error, OSError) as error:
        raise TrackerError(
            f"W&B run of {table} was not written: {type(error).__name__}: {error}"
        ) from error
    return identity


def _write_run(
    identity: str,
    name: str,
    table: Path,
    certificate: Mapping[str, Any],
    store: Store,
    mode: str,
    project: str,
) -> None:
    taken = [records_artifact(store.out, cell) for cell in store.cells]
    facts = {
        "table_digest": certificate["table"]["sha256"],
        "prior": certificate["prior"]["name"],
        "fitted_on": [artifact.name for artifact in taken],
    }
    run = wandb.init(
        project=project,
        job_type="fit",
        name=name,
        id=identity,
        config={**facts, **certificate["fit"]},
        dir=store.out,
        settings=quiet_settings(mode),
    )
    with run:
        for artifact in taken:
            _use(run, artifact, mode)
        run.log({"coefficients": _as_table(certificate)})
        run.summary.update(
            {
                "measured_calls": certificate["sightings"]["measured"],
                "coverage": certificate["bound"]["covered"] / certificate["bound"]["of"],
                "errors": certificate["errors"],
            }
        )
        given = wandb.Artifact(name, type="coefficients", metadata=facts)
        for file in (table, certificate_path(table)):
            given.add_file(str(file))
        run.log_artifact(given)


def _use(run: wandb.Run, artifact: wandb.Artifact, mode: str) -> None:
    """Declare an artifact as an input of a run.

    `Run.use_artifact` asks the server and so refuses offline; the call that it makes for an
    artifact not yet sent only writes into the run's log, which `wandb sync` then carries out.
    """
    if mode == "online":
        run.use_artifact(artifact)
    else:
        run._log_artifact(artifact, is_user_created=True, use_after_commit=True)


def _as_table(certificate: Mapping[str, Any]) -> wandb.Table:
    columns: list[str | int] = ["name", "prior", "copies", "low", "high", "from"]
    rows = [
        [one["name"], one["prior"], one["copies"], *one["interval"], one["from"]]
        for one in certificate["coefficients"]
    ]
    return wandb.Table(columns=columns, data=rows)
