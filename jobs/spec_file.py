"""Where a cell's spec lies under ``out``, for its owner alone to read."""

from pathlib import Path

from jobs.private import owner_only
from jobs.spec import CellSpec


def write_spec(cell: CellSpec, out: Path) -> Path:
    """Write a cell's spec as ``<out>/specs/<key>.json`` and return that path."""
    path = out / "specs" / f"{cell.key}.json"
    with owner_only():
        path.parent.mkdir(parents=True, exist_ok=True)
        cell.write(path)
    return path
