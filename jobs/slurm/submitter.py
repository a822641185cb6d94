"""Cells handed to Slurm as job arrays, within the ranks allowed; and what sbatch answers."""

import shutil
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from jobs.slurm.batch import Batch, BatchCell, batches
from jobs.slurm.flight import Flight, Waiting
from jobs.slurm.limits import SlurmLimits
from jobs.slurm.plan import Planned, plan
from jobs.slurm.queue import Scheduler, SchedulerSilentError
from jobs.slurm.submit import SubmissionError, claim, submit
from jobs.spec_file import write_spec
from planner.errors import ConfigError

BACK_OFF_AT_MOST_S = 300.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A cell that sbatch will not take, or has not for as long as patience lasts, and why."""

    waiting: Waiting
    why: str


class Submitter:
    """Submits what waits, as the ranks allow.

    Raises
    ------
    ConfigError
        When made where no Slurm answers.
    """

    def __init__(self, out: Path, limits: SlurmLimits, scheduler: Scheduler) -> None:
        self.out, self.limits, self.scheduler = out, limits, scheduler
        self.off: set[str] = set()  # nodes that failed
        self.fresh: set[str] = set()  # arrays that the last, or the present, call submitted
        self.has_accepted = False
        self.refusals = 0
        self.refused_since = 0.0
        try:
            self.array_limit = scheduler.array_limit()
        except SchedulerSilentError as error:
            raise _no_slurm(error) from error
        if limits.array_size is not None:
            self.array_limit = min(self.array_limit, limits.array_size)

    def on_cluster(self) -> dict[tuple[str, int], tuple[Batch, int]]:
        """Return every attempt that was submitted, by key and number: its last array and place.

        An array whose number is not known, since its driver was killed, is looked for by name.

        Raises
        ------
        ConfigError
            When Slurm does not say.
        """
        every = list(batches(self.out))
        nameless = {batch.name for batch in every if not batch.job}
        try:
            found = self.scheduler.look(nameless) if nameless else {}
        except SchedulerSilentError as error:
            raise _no_slurm(error) from error
        numbers = {state.name: job.partition("_")[0] for job, state in found.items()}
        placed = {}
        for batch in every:
            if not batch.job and batch.name in numbers:
                batch = claim(batch, self.out, numbers[batch.name])
            if batch.job:
                for index, cell in enumerate(batch.cells):
                    placed[cell.key, cell.attempt] = (batch, index)
        return placed

    def submit(
        self, waiting: list[Waiting], flights: Collection[Flight]
    ) -> tuple[list[Flight], list[Refused]]:
        """Submit what there is room for; return what flies now, and what never will.

        What was submitted or refused is taken from ``waiting``. A launch that does not stay to see
        room become free submits all at once, later arrays to start when earlier ones have ended.

        Raises
        ------
        ConfigError
            When sbatch refuses the first array of a launch, in sbatch's words.
        """
        self.fresh.clear()
        now = time.monotonic()
        free = self.limits.max_ranks - _occupied(flights)
        after = {flight.batch.job for flight in flights}
        chained: set[str] = set()
        flown: list[Flight] = []
        refused: list[Refused] = []
        while ready := [cell for cell in waiting if cell.not_before <= now]:
            planned = plan(ready, free, self.array_limit)
            if not planned and (self.limits.wait or not after):
                break
            if not planned:
                free, chained = self.limits.max_ranks, set(after)
            for array in planned:
                free -= array.ranks * array.parallel
                batch, no = self._try(array, chained)
                if batch is not None:
                    after.add(batch.job)
                    flown += _flights(batch, array)
                refused += no
                if batch is not None or no:
                    for cell in array.cells:
                        waiting.remove(cell)
        return flown, refused

    def _try(self, array: Planned, after: Collection[str]) -> tuple[Batch | None, list[Refused]]:
        """Submit one array; refused for the moment, its cells are put off."""
        for cell in array.cells:
            write_spec(cell.spec, self.out)
        batch = Batch(
            cells=tuple(
                BatchCell(key=cell.spec.key, attempt=cell.attempt, interrupted=cell.interrupted)
                for cell in array.cells
            ),
            ranks=array.ranks,
            parallel=array.parallel,
        )
        try:
            batch = submit(batch, self.out, self.limits, off=self.off, after=after)
        except (SubmissionError, OSError) as error:
            taken = self._taken_all_the_same(batch)
            if taken is None:
                shutil.rmtree(batch.folder(self.out), ignore_errors=True)
                return None, self._refused(array, error)
            batch = taken
        self.fresh.add(batch.job)
        self.has_accepted, self.refusals = True, 0
        return batch, []

    def _taken_all_the_same(self, batch: Batch) -> Batch | None:
        """Return a batch that is on the cluster although sbatch did not say so."""
        try:
            jobs = self.scheduler.look([batch.name])
        except SchedulerSilentError:
            return None  # should it be there after all, its tasks find no folder and end
        number = next((job.partition("_")[0] for job in jobs), None)
        return None if number is None else claim(batch, self.out, number)

    def _refused(self, array: Planned, error: SubmissionError | OSError) -> list[Refused]:
        """Put the cells of an array off, with growing delays, or give them up."""
        now = time.monotonic()
        if not self.refusals:
            self.refused_since = now
        self.refusals += 1
        patient = now - self.refused_since < 60 * self.limits.patience_min
        if patient and (isinstance(error, OSError) or error.is_passing):
            delay = min(self.limits.poll_s * 2**self.refusals, BACK_OFF_AT_MOST_S)
            for cell in array.cells:
                cell.not_before = now + delay
            return []
        if not self.has_accepted and isinstance(error, SubmissionError):
            raise ConfigError(f"Slurm takes none of the jobs: {error}")
        return [Refused(cell, f"could not be submitted: {error}") for cell in array.cells]


def _no_slurm(error: SchedulerSilentError) -> ConfigError:
    return ConfigError(
        f"launcher=slurm needs a Slurm that answers: {error}; set SLURM_CONF, or use launcher=local"
    )


def _occupied(flights: Iterable[Flight]) -> int:
    """Return how many ranks the arrays in flight may have running at once."""
    live: dict[str, list[Flight]] = {}
    for flight in flights:
        live.setdefault(flight.batch.name, []).append(flight)
    return sum(
        of_array[0].batch.ranks * min(of_array[0].batch.parallel, len(of_array))
        for of_array in live.values()
    )


def _flights(batch: Batch, array: Planned) -> list[Flight]:
    return [
        Flight(spec=cell.spec, batch=batch, index=index, tries=cell.tries)
        for index, cell in enumerate(array.cells)
    ]
