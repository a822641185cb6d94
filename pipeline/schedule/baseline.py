"""The figures that a scheduled sweep must not fall behind: error and coverage of each cell.

A baseline is a JSON file beside the schedule's sweeps. It holds the best figures that each cell has
had, with the sweep that had them, and is written only when no cell got worse: creeping a little
every night is no way past it. A cell is told by what it runs; which of a schedule's tables prices
it and the hash of a checkpoint made anew are no part of that, since they are what may get worse.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.spec import CellSpec
from pipeline.store import Cell, Store, labels, rows
from pipeline.summary import worst_percent
from planner.errors import ConfigError

SCHEMA = 1
TOLERANCE_PERCENT = 0.05
"""Percentage points that an error may grow by. One machine repeats its figures to the byte; on
another processor some tokens may choose other experts."""


class BaselineError(ConfigError):
    """A baseline that cannot be read or written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What one cell came to.

    Parameters
    ----------
    sweep
        Id of the sweep that it is from.
    outcome
        ``ok``, ``refused``, ``failed`` or ``incomplete``.
    worst_error_percent
        Largest absolute error over ranks and calls; ``None`` where nothing was observed.
    covered, observed
        Calls within the bound, and calls observed, over all ranks.
    """

    label: str
    sweep: str
    outcome: str
    worst_error_percent: float | None
    covered: int
    observed: int

    @property
    def coverage(self) -> float:
        """Share of the observed calls that the bound covered; 1 where none was observed."""
        return self.covered / self.observed if self.observed else 1.0


Baseline = Mapping[str, Figures]
"""Figures by identity of the cell."""


def identity(spec: CellSpec, tables: Collection[str] = ()) -> str:
    """Return sixteen hexadecimal digits that name what a cell runs.

    Parameters
    ----------
    tables
        Names or paths that a schedule's table has had: cells priced by any of them are alike.
    """
    facts = spec.to_dict()
    for name in ("topology_name", "coefficients_digest"):
        del facts[name]
    if spec.coefficients in tables:
        del facts["coefficients"]
    for name in ("path", "digest"):
        del facts["weights"][name]
    del facts["meter"]["profile"]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def figures_of(store: Store, sweep: str, tables: Collection[str] = ()) -> dict[str, Figures]:
    """Return each cell's figures; a cell whose spec is lost goes by its key."""
    named = labels(store)
    return {
        identity(cell.spec, tables) if cell.spec else cell.key: _figures(store, cell, named, sweep)
        for cell in store.cells
    }


def _figures(store: Store, cell: Cell, named: Mapping[str, str], sweep: str) -> Figures:
    table = rows(store.only([cell.key]))
    worst = worst_percent(table)
    seen = [row["covered"] for row in table if row["covered"] is not None]
    return Figures(
        label=named[cell.key],
        sweep=sweep,
        outcome=cell.outcome,
        worst_error_percent=None if math.isnan(worst) else worst,
        covered=sum(seen),
        observed=len(seen),
    )


def worse(now: Baseline, before: Baseline) -> list[str]:
    """Return each way in which a cell got worse, with both figures.

    A cell that the baseline lacks has nothing to be worse than, yet must have run and lie within
    its bound. One that is in the baseline alone was not run, and is no fault.
    """
    reasons: list[str] = []
    for name, cell in now.items():
        reasons += _absolute(cell) if name not in before else _relative(cell, before[name])
    return reasons


def _absolute(cell: Figures) -> Iterable[str]:
    if cell.outcome not in ("ok", "refused"):
        yield f"{cell.label}: {cell.outcome}, and it has no baseline"
    if cell.covered < cell.observed:
        yield (
            f"{cell.label}: {cell.observed - cell.covered} of {cell.observed} calls above the "
            "bound, and it has no baseline"
        )


def _relative(cell: Figures, before: Figures) -> Iterable[str]:
    was = f"in {before.sweep}"
    if cell.outcome != before.outcome and cell.outcome != "ok":
        yield f"{cell.label}: {cell.outcome}, {was} {before.outcome}"
        return
    if cell.coverage < before.coverage:
        yield (
            f"{cell.label}: coverage {cell.covered} of {cell.observed} calls, {was} "
            f"{before.covered} of {before.observed}"
        )
    now, then = cell.worst_error_percent, before.worst_error_percent
    if now is not None and then is not None and now > then + TOLERANCE_PERCENT:
        yield f"{cell.label}: worst error {now:.2f} %, {was} {then:.2f} %"


def improved(now: Baseline, before: Baseline) -> dict[str, Figures]:
    """Return a baseline with every new cell and every better figure; others stay as they were."""
    merged = dict(before)
    for name, cell in now.items():
        if name not in before or _is_better(cell, before[name]):
            merged[name] = cell
    return merged


def _is_better(cell: Figures, before: Figures) -> bool:
    if cell.outcome != before.outcome:
        return cell.outcome == "ok"
    if cell.coverage != before.coverage:
        return cell.coverage > before.coverage
    now, then = cell.worst_error_percent, before.worst_error_percent
    return now is not None and (then is None or now < then)


def read_baseline(path: Path) -> dict[str, Figures] | None:
    """Read a baseline; ``None`` where there is none yet.

    Raises
    ------
    BaselineError
        When the file is there and cannot be read: that is no first run.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}; this version reads {SCHEMA}")
        return {name: Figures(**values) for name, values in data["cells"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BaselineError(
            f"cannot read the baseline {path}: {type(error).__name__}: {error}; put it right, or "
            "remove it, and the next run begins a new one"
        ) from error


def write_document(path: Path, document: Mapping[str, object]) -> None:
    """Replace a JSON file, atomically; what lies there stays when the disk is full.

    Raises
    ------
    BaselineError
        When it cannot be written.
    """
    scratch = path.with_suffix(".tmp")
    try:
        scratch.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise BaselineError(f"cannot write {path}: {error.strerror}") from error


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline; raises as `write_document`."""
    cells = {name: asdict(figures) for name, figures in sorted(baseline.items())}
    write_document(path, {"schema": SCHEMA, "cells": cells})
