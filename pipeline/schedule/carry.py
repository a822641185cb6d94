"""What a dated sweep need not run again: cells that an earlier one recorded with the same code.

A sweep's folder holds a fingerprint of the code that measures: the sources of planner and jobs, the
versions of what they run on, and the coefficient table. Where the newest earlier sweep has the
same, the records of its complete cells are taken over with their specs and logs, so that a sweep of
a new date runs what is new, and is whole nevertheless.
"""

import hashlib
import json
import platform
import shutil
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from jobs.completion import GOOD
from jobs.logs import log_path
from jobs.record import record_path
from pipeline.store import Cell, read_store
from planner.coefficients import table_digest
from planner.errors import TableError

FILE = "fingerprint.json"
LIBRARIES = ("torch", "megatron-core", "numpy")


def fingerprint(coefficients: str) -> dict[str, str]:
    """Return what a record depends on beside its cell: table, sources and versions."""
    whole = hashlib.sha256()
    for package in ("planner", "jobs"):
        root = Path(str(files(package)))
        for source in sorted(root.rglob("*.py")):
            whole.update(f"{package}/{source.relative_to(root)}\n".encode())
            whole.update(source.read_bytes())
    versions = {name: version(name) for name in LIBRARIES}
    versions["coefficients"] = table_digest(coefficients)
    return {"sources": whole.hexdigest(), "python": platform.python_version(), **versions}


def fingerprint_of(sweep: Path) -> dict[str, str] | None:
    """Return a sweep's fingerprint; ``None`` where it has none that can be read."""
    try:
        found = json.loads((sweep / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # of unknown code: nothing is taken over from it
    return found if isinstance(found, dict) else None


def carry_over(earlier: Path, sweep: Path) -> int:
    """Take over what ``earlier`` holds of complete cells and ``sweep`` does not; count the cells.

    The records come last, so that a copy that was cut short leaves a cell that is run.
    """
    there = {cell.key for cell in read_store(sweep).cells}
    taken = [
        cell
        for cell in read_store(earlier).cells
        if cell.outcome in GOOD and cell.key not in there and _is_current(cell)
    ]
    for cell in taken:
        for source in _files_of(cell, earlier):
            if source.exists():
                target = sweep / source.relative_to(earlier)
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                scratch = target.with_name(f"{target.name}.tmp")
                shutil.copy2(source, scratch)
                scratch.replace(target)
    return len(taken)


def _is_current(cell: Cell) -> bool:
    """Whether the cell's table is still the one that priced it; else its key is another one now."""
    if cell.spec is None:
        return False
    try:
        return table_digest(cell.spec.coefficients) == cell.spec.coefficients_digest
    except TableError:
        return False  # the table is not here any more


def _files_of(cell: Cell, out: Path) -> list[Path]:
    """Name a cell's files under ``out``: the spec, what tracks it, then each rank's log, record."""
    ranks = sorted({record.rank for record in cell.records})
    place = (cell.key, cell.attempt)
    return [
        out / "specs" / f"{cell.key}.json",
        *sorted((out / "wandb" / "tracked").glob(f"{cell.key}-{cell.attempt}.*")),
        *(log_path(out, *place, rank) for rank in ranks),
        *(record_path(out, *place, rank) for rank in ranks),
    ]
