"""From cell specs to records on disk: one submitit job a cell, one task a rank.

The only door to submitit. Under ``out`` it leaves ``specs/<key>.json``, what the ranks record in
``records/`` and print in ``logs/``, and one folder an attempt, ``jobs/<key>.a<attempt>/``, with
submitit's files. Whatever befalls a cell is recorded as its failure and costs no other cell.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from jobs.cell_job import CellJob
from jobs.completion import attempts, is_recorded, outcome_of
from jobs.spec import CellSpec
from jobs.supervise import die_with_parent
from planner.errors import ConfigError, require_int

POLL_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a launch may take.

    Parameters
    ----------
    max_ranks
        Ranks running at once, over all cells.
    retries
        More tries of a cell that failed, in this launch.
    timeout_min
        Minutes after which a cell's job is stopped.
    entry
        What each rank runs, ``module:function``; see `jobs.supervise.supervise`.
    """

    max_ranks: int = 4
    retries: int = 1
    timeout_min: float = 10.0
    entry: str = "jobs.rank:main"

    def __post_init__(self) -> None:
        require_int("launcher", "max_ranks", self.max_ranks)
        require_int("launcher", "retries", self.retries, least=0)
        if not self.timeout_min > 0:
            raise ConfigError(f"launcher.timeout_min must be above 0; got {self.timeout_min}")
        if not all(part for part in self.entry.partition(":")):
            raise ConfigError(f"launcher.entry must read module:function; got {self.entry!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened to a cell.

    Parameters
    ----------
    kind
        ``skipped`` (recorded already), ``started``, ``retried`` (failed, tried again), or how the
        cell ended: ``ok``, ``refused``, ``failed``.
    attempt, seconds
        Number of the attempt, and how long it took.
    why
        Of a failure: what went wrong and where the log lies.
    """

    kind: str
    spec: CellSpec
    attempt: int
    seconds: float = 0.0
    why: str = ""


class Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGHUP reached the driver: unwind as for Ctrl-C, so that every job is stopped."""


def require_room(cells: Sequence[CellSpec], limits: Limits) -> None:
    """Check that each cell fits in ``limits.max_ranks``.

    Raises
    ------
    ConfigError
        Naming the cells that do not, and the value that would do.
    """
    wide = [cell for cell in cells if len(cell.ranks) > limits.max_ranks]
    if wide:
        most = max(len(cell.ranks) for cell in wide)
        names = ", ".join(sorted({f"{c.topology_name} ({len(c.ranks)} ranks)" for c in wide}))
        raise ConfigError(
            f"launcher.max_ranks = {limits.max_ranks} is too few for {names}; "
            f"set launcher.max_ranks={most}, or leave those topologies out"
        )


def launch(
    cells: Sequence[CellSpec],
    out: Path,
    limits: Limits,
    notify: Callable[[Event], None] = lambda _: None,
) -> list[Event]:
    """Run every cell that is not recorded yet; return how each cell ended, in order.

    A cell that fails is tried again ``limits.retries`` times at the end of the queue. All jobs are
    stopped before this returns, also when it is interrupted.

    Raises
    ------
    ConfigError
        When a cell asks for more ranks than ``limits.max_ranks``; nothing has started then.
    """
    require_room(cells, limits)
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


def run_module(module: str, *arguments: str) -> int:
    """Run ``python -m module`` to its end, output shown, and return its exit code.

    The process ends with us, however we end.
    """
    with _unwinding_on_signals():
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            check=False,
            preexec_fn=partial(die_with_parent, os.getpid()),
        ).returncode


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
    spec_path = out / "specs" / f"{cell.key}.json"
    spec_path.parent.mkdir(parents=True, exist_ok=True)
    cell.write(spec_path)
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
    with _unwinding_on_signals():
        try:
            yield running
        finally:
            for job in running:
                job.stop("stopped because the sweep was interrupted")


@contextmanager
def _unwinding_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the block as Ctrl-C does, instead of ending us on the spot."""

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(signum).name)

    heard = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    before = {s: signal.signal(s, interrupt) for s in heard}  # nohup's choice to ignore one stays
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
