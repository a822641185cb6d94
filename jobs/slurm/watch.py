"""Where every job stands: one question to Slurm and, for those it forgot, one to accounting."""

import time
from collections.abc import Collection

from jobs.slurm.ending import GONE, NODE_LOST
from jobs.slurm.flight import Flight
from jobs.slurm.queue import JobState, Scheduler, SchedulerSilentError

LATE_S = 10.0
"""Time for accounting, and for records on a network file system, to appear."""


class Watch:
    """Asks for all jobs at once, and knows for how long there was no answer.

    Parameters
    ----------
    patience_min
        Minutes of silence after which a job is held to have left no trace.
    """

    def __init__(self, scheduler: Scheduler, patience_min: float) -> None:
        self.scheduler = scheduler
        self.patience_min = patience_min
        self.heard = time.monotonic()
        self.missed: dict[str, float] = {}  # job: since when the controller does not know it

    def look(self, flights: Collection[Flight]) -> dict[str, JobState]:
        """Return the state of each job, by number; those of which nothing is known are left out."""
        try:
            known = self.scheduler.look({flight.batch.name for flight in flights})
        except SchedulerSilentError as silence:
            if time.monotonic() - self.heard < 60 * self.patience_min:
                return {}
            why = f"Slurm has not answered for {self.patience_min:g} minutes: {silence}"
            return {flight.job: JobState(GONE, reason=why) for flight in flights}
        self.heard = time.monotonic()
        forgotten = [flight.job for flight in flights if flight.job not in known]
        return known | (self._account(forgotten) if forgotten else {})

    def lost_nodes(self, flight: Flight) -> set[str]:
        """Return the nodes that an interrupted job was lost with, if it was.

        Those of its nodes that are down now; where it had but one, that one also if it is up again.
        Of a job that Slurm requeued by itself, accounting alone still says why.

        Raises
        ------
        SchedulerSilentError
            When the controller does not answer.
        """
        down = self.scheduler.failed_nodes(flight.nodes)
        if down or "[" in flight.nodes or "," in flight.nodes:
            return down
        said = flight.state
        if not said.is_final:
            try:
                said = self.scheduler.account([flight.job]).get(flight.job, said)
            except SchedulerSilentError:
                return set()
        return {flight.nodes} if said.state in NODE_LOST else set()

    def _account(self, forgotten: list[str]) -> dict[str, JobState]:
        """Judge jobs that are not in the queue, by accounting if there is any.

        Not every state there is an end: a job that was requeued and then cancelled stays requeued.
        """
        try:
            accounted, said = self.scheduler.account(forgotten), ""
        except SchedulerSilentError as silence:
            accounted, said = {}, f"no accounting ({silence})"
        states = {}
        for job in forgotten:
            state = accounted.get(job)
            if state is not None and state.is_final:
                states[job] = state
            elif time.monotonic() - self.missed.setdefault(job, time.monotonic()) > LATE_S:
                known = f"accounting has it as {state.state if state else 'unknown'}"
                states[job] = JobState(GONE, reason=f"not in the queue, {said or known}")
        return states
