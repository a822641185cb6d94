"""Records to Weights & Biases: one run a cell, with its records as an artifact.

The doors to wandb are this module, `pipeline.track_back` (runs to records again),
`pipeline.lineage` (fits) and `pipeline.dashboard` (the workspace). Written by the driver from the
records on disk, so a tracker that fails costs nothing: the runs can be made again. Offline runs lie
under ``<out>/wandb`` until ``wandb sync`` sends them.
"""

import hashlib
import os
import shlex
import shutil

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb

from jobs.record import record_path
from pipeline.store import Cell, Row, Store, rows, term_rows, tracked_mark, untracked
from pipeline.summary import worst_percent
from planner.errors import ConfigError

METRICS = (
    "planned_expected_bytes",
    "planned_bound_bytes",
    "planned_growth_bytes",
    "planned_retained_bytes",
    "planned_held_over_bytes",
    "observed_peak_bytes",
    "observed_working_set_bytes",
    "observed_growth_bytes",
    "observed_retained_bytes",
    "observed_held_over_bytes",
    "reached_bytes",
    "residual_bytes",
    "error_percent",
    "loss",
    "call_s",
    "ledger_s",
)


class TrackerError(RuntimeError):
    """W&B could not take a run; the records stay, and the next sweep tries again."""


def require_login() -> None:
    """Check that online runs have a key, and that W&B takes it.

    Raises
    ------
    ConfigError
        Naming the ways out; its cause is W&B's own error where it was asked and refused.
    """
    offline = "use tracker=offline and send the runs later with `wandb sync`"
    try:
        found = wandb.login(prompt=False)
    except wandb.Error as error:
        raise ConfigError(
            f"tracker=online: W&B was asked and does not take the key: {error}; see the key and "
            f"the network, or {offline}"
        ) from error
    if not found:
        raise ConfigError(
            "tracker=online needs a W&B key and none is set; run `wandb login`, set WANDB_API_KEY, "
            f"or {offline}"
        )


def track(store: Store, *, mode: str, project: str, group: str) -> int:
    """Write a run for each cell of ``store`` that has none yet; return how many were written.

    Raises
    ------
    TrackerError
        When W&B or the disk refuses one.
    """
    missing = untracked(store, mode)
    for cell in missing:
        mark = tracked_mark(store.out, cell, mode)
        try:
            _write_run(store.only([cell.key]), cell, mode, project, group)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except (wandb.Error, OSError) as error:
            raise TrackerError(
                f"W&B run of {cell.label} was not written: {type(error).__name__}: {error}; the "
                "records stay, and the same command tries again (or use tracker=offline)"
            ) from error
    return len(missing)


def alert(title: str, text: str, *, out: Path, mode: str, project: str, group: str) -> None:
    """Send an alert from a run of its own, whose job type is ``schedule``.

    In offline mode it lies under ``out`` with the runs, and goes with them.

    Raises
    ------
    TrackerError
        When W&B or the disk refuses it.
    """
    try:
        with wandb.init(
            project=project,
            group=group,
            job_type="schedule",
            name=title,
            dir=out,
            settings=quiet_settings(mode),
        ) as run:
            run.alert(title=title, text=text, level="ERROR")
    except (wandb.Error, OSError) as error:
        raise TrackerError(
            f"the alert was not sent: {type(error).__name__}: {error}; the exit code says the same"
        ) from error


def run_id(cell: Cell, group: str) -> str:
    """Id of a cell's run: its key and attempt, and the group, since a cell may run each night."""
    return f"{cell.key}-{cell.attempt}-{hashlib.sha256(group.encode()).hexdigest()[:8]}"


def records_artifact(out: Path, cell: Cell) -> wandb.Artifact:
    """Return the records of a cell's newest attempt as an artifact, its files where they lie.

    Made twice it is the same version: W&B tells artifacts apart by name and content.
    """
    artifact = wandb.Artifact(
        f"records-{cell.key}",
        type="records",
        metadata={"label": cell.label, "attempt": cell.attempt, "outcome": cell.outcome},
    )
    for path in sorted((out / "records").glob(f"{cell.key}.a{cell.attempt}.r*.jsonl")):
        artifact.add_file(str(path), policy="immutable", skip_cache=True)
    return artifact


def _keep_records(run: wandb.Run, out: Path, cell: Cell) -> None:
    """Put records and spec among the run's own files, as they lie under ``out``.

    `pipeline.track_back` takes them from an offline run's folder, or from the project.
    """
    ranks = sorted({record.rank for record in cell.records})
    paths = [record_path(out, cell.key, cell.attempt, rank) for rank in ranks]
    for path in [*paths, out / "specs" / f"{cell.key}.json"]:
        if path.is_file():
            there = Path(run.dir) / path.relative_to(out)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, there)
            run.save(there, base_path=run.dir, policy="end")


def _write_run(store: Store, cell: Cell, mode: str, project: str, group: str) -> None:
    table = rows(store)
    terms = term_rows(store)
    run = wandb.init(
        project=project,
        group=group,
        job_type=table[0]["topology"],
        name=cell.label,
        id=run_id(cell, group),
        tags=[table[0]["weights"], cell.outcome],
        config=cell.spec.to_dict() | {"key": cell.key} if cell.spec else {"key": cell.key},
        dir=store.out,
        settings=quiet_settings(mode),
    )
    with run:
        run.define_metric("call")
        run.define_metric("*", step_metric="call")
        for call in sorted({row["call"] for row in table}):
            run.log(_metrics([row for row in table if row["call"] == call], terms) | {"call": call})
        run.log({"calls": _as_table(table)} | ({"terms": _as_table(terms)} if terms else {}))
        run.summary.update(_scalars(table, cell.outcome))
        run.log_artifact(records_artifact(store.out, cell))
        _keep_records(run, store.out, cell)


def quiet_settings(mode: str) -> wandb.Settings:
    """Quiet, nothing of this machine collected, and each record on disk within a second."""
    return wandb.Settings(
        mode="online" if mode == "online" else "offline",
        silent=True,
        console="off",
        init_timeout=30,
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=1,
    )


def _metrics(table: Sequence[Row], terms: Sequence[Row]) -> dict[str, Any]:
    """Name one call's figures by rank: ``rank0/loss``, ``rank0/residual/<term>``, ..."""
    metrics: dict[str, Any] = {}
    for row in table:
        rank = f"rank{row['rank']}"
        metrics |= {f"{rank}/{name}": row[name] for name in METRICS if row[name] is not None}
        metrics |= {
            f"{rank}/residual/{term['term']}": term["residual_bytes"]
            for term in terms
            if (term["call"], term["rank"]) == (row["call"], row["rank"])
        }
    return metrics


def _as_table(table: Sequence[Row]) -> wandb.Table:
    return wandb.Table(columns=[*table[0]], data=[[*row.values()] for row in table])


def _scalars(table: Sequence[Row], outcome: str) -> dict[str, Any]:
    """Reduce a cell to the figures that a dashboard compares, as far as there are any."""
    seen = [row for row in table if row["covered"] is not None]
    scalars: dict[str, Any] = {
        "outcome": outcome,
        "observed_calls": len(seen),
        "cut_short_calls": sum(row["reached_bytes"] is not None for row in table),
        "worst_abs_error_percent": worst_percent(seen) if seen else None,
        "coverage": sum(row["covered"] for row in seen) / len(seen) if seen else None,
        "worst_abs_growth_error_bytes": _farthest(seen, "growth"),
        "worst_abs_held_over_error_bytes": _farthest(seen, "held_over"),
    }
    for name in ("planned_bound_bytes", "planned_expected_bytes", "observed_working_set_bytes"):
        scalars[f"max_{name}"] = max((r[name] for r in table if r[name] is not None), default=None)
    return {name: value for name, value in scalars.items() if value is not None}


def _farthest(seen: Sequence[Row], what: str) -> int | None:
    gaps = [abs(r[f"observed_{what}_bytes"] - r[f"planned_{what}_bytes"]) for r in seen]
    return max(gaps, default=None)


def sync_command(out: Path) -> str:
    """Return the command that sends the offline runs under ``out``."""
    return f"wandb sync {shlex.quote(str(out / 'wandb'))}/offline-run-*"
