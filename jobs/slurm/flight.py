"""Flight: one attempt at one cell, on its way through Slurm."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from jobs.slurm.batch import Batch
from jobs.slurm.queue import JobState
from jobs.slurm.task import attempt_folder
from jobs.spec import CellSpec


@dataclass(kw_only=True)
class Waiting:
    """A cell that is to be submitted.

    Parameters
    ----------
    tries
        Further attempts that it has left should this one fail.
    attempt
        Number of the attempt: a new one, or one that was interrupted.
    interrupted
        How often it was.
    not_before
        Reading of the monotonic clock before which it must not be submitted.
    """

    spec: CellSpec
    tries: int
    attempt: int
    interrupted: int = 0
    not_before: float = 0.0


@dataclass(kw_only=True)
class Flight:
    """A submitted attempt.

    Parameters
    ----------
    index
        Its place in the array.
    state
        As last seen.
    since
        Reading of the monotonic clock when that state began.
    nodes
        Where it ran last.
    doom, doomed
        Why it was given up, once it was, and the reading of the clock then.
    trouble
        What kept its end from being recorded at once.
    is_running
        Whether its present run has been seen to run: Slurm may configure nodes for seconds before.
    """

    spec: CellSpec
    batch: Batch
    index: int
    tries: int
    state: JobState = field(default_factory=lambda: JobState("PENDING"))
    since: float = field(default_factory=time.monotonic)
    started: float | None = None
    nodes: str = ""
    doom: str = ""
    doomed: float = math.inf
    trouble: str = ""
    is_running: bool = False

    @property
    def job(self) -> str:
        """Slurm's number of the job."""
        return f"{self.batch.job}_{self.index}"

    @property
    def attempt(self) -> int:
        """Number of the attempt."""
        return self.batch.cells[self.index].attempt

    @property
    def interrupted(self) -> int:
        """How often the attempt has been interrupted so far."""
        return self.batch.cells[self.index].interrupted + self.state.restarts

    @property
    def seconds(self) -> float:
        """How long it has been running, over all its runs."""
        return 0.0 if self.started is None else time.monotonic() - self.started

    def folder(self, out: Path) -> Path:
        """Return the attempt's folder."""
        return attempt_folder(out, self.spec.key, self.attempt)

    def log(self, out: Path) -> Path:
        """Return where the job's batch script writes."""
        return self.batch.log(out, self.index)

    def see(self, state: JobState) -> tuple[str, ...]:
        """Take in the job's state; return what has happened: ``resumed``, ``started``."""
        happened = []
        if state.restarts > self.state.restarts:
            happened.append("resumed")
            self.is_running = False
        if state.state == "RUNNING" and not self.is_running:  # whatever lay in between
            happened.append("started")
            self.is_running = True
            self.started = self.started or time.monotonic()
        if state.state != self.state.state:
            self.since = time.monotonic()
        self.nodes = state.nodes or self.nodes
        self.state = state
        return tuple(happened)
