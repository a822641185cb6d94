"""The launcher of a Slurm cluster: job arrays, followed until every cell is recorded.

One look at the queue a poll serves all jobs. What is on the cluster is written down as it goes
there (`jobs.slurm.batch`), so that a driver that was killed, or left, is taken up by the next.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from jobs.completion import every_attempt, outcome_of, record_failure
from jobs.event import Event
from jobs.private import owner_only
from jobs.slurm.ending import Ending, ending_of, record
from jobs.slurm.flight import Flight, Waiting
from jobs.slurm.limits import SlurmLimits
from jobs.slurm.note import read_notes
from jobs.slurm.queue import WAITING, JobState, Scheduler, SchedulerSilentError
from jobs.slurm.submitter import Refused, Submitter
from jobs.slurm.task import attempt_folder
from jobs.slurm.watch import LATE_S, Watch
from jobs.spec import CellSpec
from jobs.unwinding import Interrupted, unwinding_on_signals

OVERTIME_S = 600.0  # beyond its time limit, after which a running job is taken to be stuck
DOOMED_S = 120.0  # after which a job that was cancelled is no longer waited for
JUDGED = "judged"
"""File in an attempt's folder that says that it failed for good, and why."""


def launch_on_slurm(
    cells: Sequence[CellSpec],
    out: Path,
    limits: SlurmLimits,
    notify: Callable[[Event], None],
    *,
    collect: bool,
    scheduler: Scheduler | None = None,
) -> list[Event]:
    """Run every cell that is not recorded yet; return how each ended, or was left, in order.

    Interrupted, it cancels its jobs; on SIGHUP, which a closed terminal sends, it leaves them.

    Raises
    ------
    ConfigError
        When Slurm does not answer at all, or takes none of the jobs; nothing has started then.
    """
    launch = _Launch(out, limits, notify, collect, scheduler or Scheduler())
    with unwinding_on_signals():
        try:
            launch.sort_out(list({cell.key: cell for cell in cells}.values()))
            while launch.step():
                time.sleep(limits.poll_s)
        except BaseException as error:
            if isinstance(error, Interrupted) and str(error) == "SIGHUP":
                error.add_note("its jobs stay on the cluster: collect=true gathers them")
            else:
                launch.cancel_all(error)
            raise
    return [launch.ended[cell.key] for cell in cells]


class _Launch:
    """What waits, what is on the cluster, and how each cell has ended."""

    def __init__(
        self,
        out: Path,
        limits: SlurmLimits,
        notify: Callable[[Event], None],
        collect: bool,
        scheduler: Scheduler,
    ) -> None:
        self.out, self.limits, self.notify, self.collect = out, limits, notify, collect
        self.scheduler = scheduler
        self.submitter = Submitter(out, limits, scheduler)
        self.watch = Watch(scheduler, limits.patience_min)
        self.waiting: list[Waiting] = []
        self.flights: dict[str, Flight] = {}  # by key
        self.ended: dict[str, Event] = {}

    def sort_out(self, cells: Sequence[CellSpec]) -> None:
        """Tell what is recorded, what is on the cluster already, and what is to be submitted."""
        left, placed = every_attempt(self.out), self.submitter.on_cluster()
        for key, attempt in placed:
            left.setdefault(key, []).append(attempt)
        for spec in cells:
            newest = max(left.get(spec.key, ()), default=-1)
            judged = (attempt_folder(self.out, spec.key, newest) / JUDGED).exists()
            if newest >= 0 and outcome_of(spec, self.out, newest) != "failed":
                self._end(Event(kind="skipped", spec=spec, attempt=newest))
            elif (spec.key, newest) in placed and not judged:
                batch, index = placed[spec.key, newest]
                tries = self.limits.retries
                flight = Flight(spec=spec, batch=batch, index=index, tries=tries)
                self.flights[spec.key] = flight
                self._tell("queued", flight, f"job {flight.job}, submitted earlier")
            elif self.collect:
                why = "was never submitted, or failed; run the same command without collect=true"
                self._end(Event(kind="absent", spec=spec, attempt=max(newest, 0), why=why))
            else:
                tries = self.limits.retries
                self.waiting.append(Waiting(spec=spec, tries=tries, attempt=newest + 1))

    def step(self) -> bool:
        """Submit, look once, and settle what is over; whether there is more to come."""
        flown, refused = self.submitter.submit(self.waiting, self.flights.values())
        for flight in flown:
            self.flights[flight.spec.key] = flight
            self._tell("queued", flight, f"job {flight.job}")
        for cell in refused:
            self._give_up(cell)
        if self.flights:
            self._follow(self.watch.look(self.flights.values()))
        if not self.limits.wait and not self.waiting:
            for flight in self.flights.values():
                why = f"job {flight.job} ({flight.state.state.lower()})"
                self._end(Event(kind="left", spec=flight.spec, attempt=flight.attempt, why=why))
            self.flights.clear()
        return bool(self.waiting or self.flights)

    def cancel_all(self, error: BaseException) -> None:
        """Cancel every job; a note on ``error`` says so where Slurm does not take the order."""
        jobs = {flight.job for flight in self.flights.values()} | self.submitter.fresh
        try:
            self.scheduler.cancel(jobs)
        except SchedulerSilentError as silence:
            error.add_note(f"jobs {', '.join(sorted(jobs))} could not be cancelled: {silence}")

    def _follow(self, states: dict[str, JobState]) -> None:
        """Take in where the jobs stand, and settle those that are over."""
        for flight in list(self.flights.values()):
            state = states.get(flight.job)
            if state is None:
                continue
            for happened in flight.see(state):
                if happened == "resumed":
                    self._keep_off_lost_nodes(flight)
                self._tell(happened, flight, f"job {flight.job}")
            if state.is_final or time.monotonic() - flight.doomed > DOOMED_S:
                self._settle(flight)
            elif not flight.doom:
                self._doom_if_overdue(flight)

    def _doom_if_overdue(self, flight: Flight) -> None:
        """Cancel a job that has waited or run for longer than it may."""
        for_s, limits = time.monotonic() - flight.since, self.limits
        if flight.state.state in WAITING and for_s > 60 * limits.queue_min:
            why = f"waited for launcher.queue_min = {limits.queue_min:g} minutes in the queue"
            self._doom(flight, f"{why} (Slurm: {flight.state.reason})")
        elif flight.state.state not in WAITING and for_s > 60 * limits.timeout_min + OVERTIME_S:
            self._doom(flight, f"was {flight.state.state.lower()} for {for_s / 60:.0f} minutes")

    def _doom(self, flight: Flight, why: str) -> None:
        try:
            self.scheduler.cancel([flight.job])
        except SchedulerSilentError:
            return  # the next poll finds it overdue again
        flight.doom, flight.doomed = why, time.monotonic()

    def _settle(self, flight: Flight) -> None:
        """End a cell whose job is over, or let it go on or be tried again."""
        outcome = outcome_of(flight.spec, self.out, flight.attempt)
        if outcome != "failed":
            self._finish(outcome, flight)
            return
        if flight.state.state == "COMPLETED" and time.monotonic() - flight.since < LATE_S:
            return  # its records may be late
        notes = read_notes(flight.folder(self.out), flight.job)
        log = flight.log(self.out)
        ending = ending_of(flight.state, notes, log, self.limits.timeout_min)
        if flight.doom:
            ending = Ending(outcome="timeout", why=flight.doom)
        if flight.trouble:
            ending = replace(ending, why=f"{ending.why}; recorded late: {flight.trouble}")
        if ending.interrupted and not self.collect and flight.interrupted < self.limits.requeues:
            self._keep_off_lost_nodes(flight)
            self._wait_again(flight, ending.why)
            return
        try:
            why = record(
                *(flight.spec, self.out, flight.attempt, ending, notes, flight.job, log),
            )
            self._mark_judged(flight, why)
        except OSError as error:  # a full disk may be emptied: judged again at the next poll
            flight.trouble = str(error)
            if time.monotonic() - flight.since < 60 * self.limits.patience_min:
                return
            why = f"{ending.why}; job {flight.job}; it could not be recorded: {error}"
        if flight.tries and not ending.wanted and not self.collect:
            self._finish("retried", flight, why)
            again = Waiting(spec=flight.spec, tries=flight.tries - 1, attempt=flight.attempt + 1)
            self.waiting.append(again)
        else:
            self._finish("failed", flight, why)

    def _wait_again(self, flight: Flight, why: str) -> None:
        """Let an interrupted attempt go on elsewhere, after a while that grows."""
        times = flight.interrupted + 1
        self._finish("resumed", flight, f"{why}; job {flight.job}")
        self.waiting.append(
            Waiting(
                spec=flight.spec,
                tries=flight.tries,
                attempt=flight.attempt,
                interrupted=times,
                not_before=time.monotonic() + self.limits.poll_s * 2**times,
            )
        )

    def _keep_off_lost_nodes(self, flight: Flight) -> None:
        """Exclude the nodes that an interrupted job was lost with, while there are others."""
        if not flight.nodes:
            return
        try:
            lost = self.watch.lost_nodes(flight) - self.submitter.off
            usable = self.scheduler.usable_nodes(self.limits.partition)
            left = usable - self.submitter.off - lost
            if lost and len(left) >= self.limits.nodes_of(flight.batch.ranks):
                self.submitter.off |= lost
                if flight.state.state in WAITING:
                    self.scheduler.keep_off(flight.job, self.submitter.off)
        except SchedulerSilentError:
            return  # Slurm itself gives no job to a node that is down

    def _mark_judged(self, flight: Flight, why: str) -> None:
        with owner_only():
            folder = flight.folder(self.out)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / JUDGED).write_text(f"{why}\n")

    def _give_up(self, refused: Refused) -> None:
        """Record that a cell could not be submitted, as the failure of each of its ranks."""
        spec, attempt, why = refused.waiting.spec, refused.waiting.attempt, refused.why
        try:
            for rank in spec.ranks:
                record_failure(spec, self.out, attempt, rank, "error", why)
        except OSError as error:
            why = f"{why}; it could not be recorded: {error}"
        self._end(Event(kind="failed", spec=spec, attempt=attempt, why=why))

    def _finish(self, kind: str, flight: Flight, why: str = "") -> None:
        del self.flights[flight.spec.key]
        if kind in ("retried", "resumed"):
            self._tell(kind, flight, why)
            return
        self._end(
            Event(
                kind=kind,
                spec=flight.spec,
                attempt=flight.attempt,
                seconds=flight.seconds,
                why=why,
            )
        )

    def _tell(self, kind: str, flight: Flight, why: str) -> None:
        event = Event(
            kind=kind, spec=flight.spec, attempt=flight.attempt, seconds=flight.seconds, why=why
        )
        self.notify(event)

    def _end(self, event: Event) -> None:
        self.ended[event.spec.key] = event
        self.notify(event)
