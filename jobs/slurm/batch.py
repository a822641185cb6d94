"""Batch: the cells of one job array, as written down before it is submitted.

The file outlives the driver: whoever launches or collects next finds what is on the cluster. It is
written before the submission, with a name that the array alone has, so that not even a driver
killed in between loses a job.
"""

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from jobs.private import owner_only
from jobs.spec import build
from planner.errors import ConfigError

FILE = "batch.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCell:
    """One cell of an array; ``interrupted``: how often it had been before this array."""

    key: str
    attempt: int
    interrupted: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One job array.

    Parameters
    ----------
    name
        The array's job name, and that of the folder with submitit's files under ``<out>/jobs``.
    cells
        In the order of the array.
    ranks
        Ranks of each cell.
    parallel
        Cells that may run at once.
    job
        Number of the array; empty while it is not known.
    submitted
        Seconds since 1970.
    """

    cells: tuple[BatchCell, ...]
    ranks: int
    parallel: int
    name: str = field(default_factory=lambda: f"peakcast-{secrets.token_hex(6)}")
    job: str = ""
    submitted: float = field(default_factory=time.time)

    def folder(self, out: Path) -> Path:
        """Return the folder of submitit's files."""
        return out / "jobs" / self.name

    def log(self, out: Path, index: int) -> Path:
        """Return where the batch script of the cell at ``index`` writes, srun's words with it."""
        return self.folder(out) / f"{self.job}_{index}_0_log.err"

    def known_as(self, job: str) -> "Batch":
        """Return the batch with the number that Slurm gave it."""
        return replace(self, job=job)

    def write(self, out: Path) -> None:
        """Write the batch down, atomically, in its folder."""
        folder = self.folder(out)
        with owner_only():
            folder.mkdir(parents=True, exist_ok=True)
            scratch = folder / f"{FILE}.tmp"
            scratch.write_text(json.dumps(asdict(self)))
            scratch.replace(folder / FILE)


def batches(out: Path) -> Iterator[Batch]:
    """Yield every batch that was written down under ``out``, oldest first.

    Raises
    ------
    ConfigError
        For a file that is none, naming it.
    """
    found = []
    for path in (out / "jobs").glob(f"peakcast-*/{FILE}"):
        try:
            found.append(_read(path))
        except (json.JSONDecodeError, UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"{path} is not a batch of jobs: {error}; remove it") from error
    yield from sorted(found, key=lambda batch: batch.submitted)


def _read(path: Path) -> Batch:
    values = json.loads(path.read_text())
    if isinstance(values, dict) and isinstance(values.get("cells"), list):
        values["cells"] = tuple(build(BatchCell, cell, "cells") for cell in values["cells"])
    return build(Batch, values, path.name)
