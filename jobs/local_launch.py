"""The launcher of one machine: a local submitit job a cell, never more ranks than allowed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jobs.cell_job import CellJob
from jobs.completion import attempts, is_recorded, outcome_of
from jobs.event import Event
from jobs.limits import Limits
from jobs.spec import CellSpec
from jobs.spec_file import write_spec
from jobs.unwinding import unwinding_on_signals

POLL_S = 0.1


def launch_here(
    cells: Sequence[CellSpec], out: Path, limits: Limits, notify: Callable[[Event], None]
) -> list[Event]:
    """Run every cell that is not recorded yet; return how each cell ended, in order.

    A cell that fails is tried again ``limits.retries`` times at the end of the queue. All jobs are
    stopped before this returns, also when it is interrupted.
    """
    ended: dict[str, Event] = {}

    def end(event: Event) -> None:
        ended[event.spec.key] = event
        notify(event)

    queue: list[tuple[CellSpec, int]] = []
    for cell in {c.key: c for c in cells}.values():
        if is_recorded(cell, out):
            end(Event(kind="skipped", spec=cell, attempt=attempts(out, cell.key)[-1]))
        else:
            queue.append((cell, limits.retries))
    with _running_jobs() as running:
        while queue or running:
            for cell, tries in _next_in_line(queue, running, limits.max_ranks):
                running.append(_start(cell, tries, out, limits))
                notify(Event(kind="started", spec=cell, attempt=running[-1].attempt))
            for job in [job for job in running if job.is_over()]:
                running.remove(job)
                event = _settle(job, out)
                if event.kind == "retried":
                    notify(event)
                    queue.append((job.spec, job.tries - 1))
                else:
                    end(event)
            time.sleep(POLL_S)
    return [ended[cell.key] for cell in cells]


def _next_in_line(
    queue: list[tuple[CellSpec, int]], running: Sequence[CellJob], max_ranks: int
) -> Iterator[tuple[CellSpec, int]]:
    """Take from ``queue``, first come first served, each cell that the free ranks allow."""
    free = max_ranks - sum(len(job.spec.ranks) for job in running)
    for waiting in list(queue):
        if len(waiting[0].ranks) <= free:
            free -= len(waiting[0].ranks)
            queue.remove(waiting)
            yield waiting


def _start(cell: CellSpec, tries: int, out: Path, limits: Limits) -> CellJob:
    """Write the spec and submit the cell's next attempt."""
    spec_path = write_spec(cell, out)
    attempt = max(attempts(out, cell.key), default=-1) + 1
    return CellJob.submit(
        cell,
        spec_path,
        out,
        attempt=attempt,
        tries=tries,
        timeout_min=limits.timeout_min,
        entry=limits.entry,
    )


def _settle(job: CellJob, out: Path) -> Event:
    """Record what the ranks could not record themselves, and say how the attempt ended."""
    why = job.record_failures()
    kind = outcome_of(job.spec, out, job.attempt)
    if kind == "failed" and job.tries > 0:
        kind = "retried"
    return Event(
        kind=kind,
        spec=job.spec,
        attempt=job.attempt,
        seconds=job.seconds,
        why=why if kind in ("failed", "retried") else "",
    )


@contextmanager
def _running_jobs() -> Iterator[list[CellJob]]:
    """Hold the running jobs; whatever ends the block ends them."""
    running: list[CellJob] = []
    with unwinding_on_signals():
        try:
            yield running
        finally:
            for job in running:
                job.stop("stopped because the sweep was interrupted")
