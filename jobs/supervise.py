"""What a submitit task runs: one rank in a child process, watched to its end.

The child keeps a rank's death apart from the process that reports it: however the rank goes
(``SIGKILL``, ``os._exit``, an exception), its exit code and last words come back. No process
outlives its parent: the kernel kills a rank with its supervisor. On one machine it also kills a
supervisor with submitit's controller, and the supervisor ends both when the driver of the sweep is
gone; on a cluster that is Slurm's part.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from jobs.logs import log_path, write_log
from jobs.outcome import of_exit
from jobs.spec import CellSpec

POLL_S = 0.2
WORDS_AT_MOST = 20_000  # of a traceback: well under what a pipe takes without a reader
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that runs the sweep: its pid and start time (a pid alone may be used again)."""

    pid: int
    started: float

    @classmethod
    def here(cls) -> "Driver":
        """Return this process."""
        return cls(os.getpid(), psutil.Process().create_time())

    def is_alive(self) -> bool:
        """Whether that very process still runs (one that its parent has yet to reap does not)."""
        try:
            process = psutil.Process(self.pid)
            gone = process.status() == psutil.STATUS_ZOMBIE
            return bool(process.create_time() == self.started and not gone)
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank ended.

    Parameters
    ----------
    code
        Exit code of the process; negative: minus the signal that ended it.
    error
        Traceback of the exception that ended it, if it was one.
    out_of_memory
        Whether host memory ran out: a MemoryError, or the kernel's killer struck meanwhile.
    """

    code: int
    error: str | None = None
    out_of_memory: bool = False

    @property
    def outcome(self) -> str:
        """What a record says of a rank that failed like this."""
        return of_exit(self.code, self.error, killed_for_memory=self.out_of_memory)

    def __str__(self) -> str:
        if self.error:
            return f"raised {self.error.strip().splitlines()[-1]}"
        if self.code < 0:
            by = " by the kernel's out-of-memory killer" if self.out_of_memory else ""
            return f"was killed by {signal.Signals(-self.code).name}{by}"
        return f"exited with code {self.code}" if self.code else "ended without its records"


@dataclass(frozen=True, slots=True)
class Work:
    """What every rank of an attempt runs.

    Parameters
    ----------
    entry
        ``module:function``; called as ``f(spec_path, out, attempt, rendezvous=url)``, rank and
        world size in its environment as torchrun sets them.
    """

    entry: str
    spec_path: Path
    out: Path
    attempt: int
    rendezvous: str


def supervise(work: Work, driver: Driver) -> RankExit:
    """Run ``work`` as the rank that submitit's local task is, and report how it ended.

    Raises whatever starting a process raises.
    """
    die_with_parent(expected=int(os.environ["SUBMITIT_LOCAL_JOB_ID"]))
    place = {
        "RANK": os.environ["SUBMITIT_LOCAL_GLOBALID"],
        "LOCAL_RANK": os.environ["SUBMITIT_LOCAL_LOCALID"],
        "WORLD_SIZE": os.environ["SUBMITIT_LOCAL_NTASKS"],
    }
    return watch(work, place, lambda: not driver.is_alive())


def watch(work: Work, place: Mapping[str, str], is_doomed: Callable[[], bool]) -> RankExit:
    """Run ``work`` as one rank in a child process, to its end.

    Parameters
    ----------
    place
        The rank's place: torchrun's variables, and whatever else its environment is to say.
    is_doomed
        Asked again and again; once true, the rank is killed.
    """
    kills_before = _kernel_memory_kills()
    context = multiprocessing.get_context("fork")  # keeps the path and the environment as they are
    receiver, sender = context.Pipe(duplex=False)
    rank = context.Process(target=_run_rank, args=(work, place, os.getpid(), sender))
    rank.start()
    sender.close()
    try:
        while rank.exitcode is None:
            rank.join(POLL_S)
            if is_doomed():
                rank.kill()
    finally:  # a signal's handler may raise: at exit Python would wait for the rank without end
        rank.kill()
        rank.join()
    error, starved = _last_words(receiver)
    killed = rank.exitcode == -signal.SIGKILL and _kernel_memory_kills() > kills_before
    return RankExit(rank.exitcode, error, starved or killed)


def die_with_parent(expected: int) -> None:
    """Ask Linux to kill this process when its parent dies; exit at once if it died already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected:
        sys.exit(f"the parent process {expected} is gone")


def _run_rank(work: Work, place: Mapping[str, str], supervisor: int, sender: Connection) -> None:
    """Be the rank: its own signals, torchrun's variables, its log, then the entry point."""
    die_with_parent(expected=supervisor)
    for signum in (signal.SIGTERM, signal.SIGCONT):  # submitit's handlers are its own
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # meant for the supervisor, sent to all
    os.environ.update(place)
    module, _, function = work.entry.partition(":")
    try:
        spec = CellSpec.read(work.spec_path)
        rank = spec.ranks[int(place["RANK"])]
        write_log(log_path(work.out, spec.key, work.attempt, rank))
        run = getattr(importlib.import_module(module), function)
        run(work.spec_path, work.out, work.attempt, rendezvous=work.rendezvous)
    except Exception as error:
        words = traceback.format_exc()[-WORDS_AT_MOST:]
        sender.send((words, isinstance(error, MemoryError)))
        raise


def _last_words(receiver: Connection) -> tuple[str | None, bool]:
    """Return the rank's traceback and whether memory ran out; nothing if it died without a word."""
    try:
        error, starved = receiver.recv()
    except EOFError:  # the writing end closed with nothing in it: killed, or ended well
        return None, False
    return error, starved


def _kernel_memory_kills() -> int:
    """Count the processes that Linux has killed for want of memory since the machine started."""
    vmstat = Path("/proc/vmstat")
    for line in vmstat.read_text().splitlines() if vmstat.exists() else ():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
