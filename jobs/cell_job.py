"""One attempt at one cell: a local submitit job, watched rank by rank."""

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import submitit
from submitit.core.utils import pickle_load

from jobs.completion import rank_is_complete, rank_records, record_failure
from jobs.cuda.visible import visible_devices
from jobs.logs import log_path
from jobs.private import require_own
from jobs.record import RankRecord
from jobs.spec import CellSpec
from jobs.supervise import Driver, RankExit, Work, supervise

GRACE_S = 5.0  # for the others to record their own end once one rank has failed
SUBMITIT_MARGIN_MIN = 2  # submitit's own time-out lies behind ours, and acts if we are gone


@dataclass(kw_only=True)
class CellJob:
    """A running attempt. Made by `submit`; poll `is_over`, then `record_failures`.

    Parameters
    ----------
    tries
        Further attempts that the cell has left.
    folder
        Where submitit's files and the supervisors' logs lie.
    """

    spec: CellSpec
    out: Path
    attempt: int
    tries: int
    folder: Path
    timeout_min: float
    handle: "submitit.Job[RankExit]"
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    exits: dict[int, RankExit] = field(default_factory=dict)
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    bad: list[int] = field(default_factory=list)
    failing_since: float | None = None
    stopped: str = ""

    @classmethod
    def submit(
        cls,
        spec: CellSpec,
        spec_path: Path,
        out: Path,
        *,
        attempt: int,
        tries: int,
        timeout_min: float,
        entry: str,
    ) -> "CellJob":
        """Start one process a rank, under a controller of submitit's."""
        folder = (out / "jobs" / f"{spec.key}.a{attempt}").absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        executor = submitit.LocalExecutor(folder)
        executor.update_parameters(
            nodes=1,
            tasks_per_node=len(spec.ranks),
            timeout_min=math.ceil(timeout_min) + SUBMITIT_MARGIN_MIN,
            **_devices(spec),
        )
        with _ctrl_c_is_ours():
            rendezvous = f"file://{folder / 'rendezvous'}"
            work = Work(entry, spec_path.absolute(), out.absolute(), attempt, rendezvous)
            handle = executor.submit(supervise, work, Driver.here())
        return cls(
            spec=spec,
            out=out,
            attempt=attempt,
            tries=tries,
            folder=folder,
            timeout_min=timeout_min,
            handle=handle,
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that run, in the order of submitit's tasks."""
        return self.spec.ranks

    def _task(self, rank: int) -> "submitit.Job[RankExit]":
        return self.handle.task(self.ranks.index(rank))

    def log_path(self, rank: int) -> Path:
        """Where a rank's log lies; where its supervisor's does, if it never came to write one."""
        own = log_path(self.out.absolute(), self.spec.key, self.attempt, rank)
        return own if own.exists() else Path(self._task(rank).paths.stderr)

    def is_over(self) -> bool:
        """Look once: gather exits, notice failures, stop what hangs; whether all ranks are gone."""
        self.seconds = time.monotonic() - self.started
        ended = self.handle.done()  # asked first: a result is written before its process ends
        gone = [rank for rank, process in self._supervisors().items() if not process.is_running()]
        for rank in self.ranks:
            result = self._task(rank).paths.result_pickle
            if rank not in self.exits and result.exists():
                self.exits[rank] = _read_exit(result)
                if self.exits[rank].code or not self._is_complete(rank):
                    self.bad.append(rank)
            elif rank not in self.exits and rank not in self.bad and (ended or rank in gone):
                self.bad.append(rank)  # its supervisor died, and the kernel took the rank with it
        if self.bad:
            self.failing_since = self.failing_since or time.monotonic()
        if ended:
            return True
        if self.seconds > 60 * self.timeout_min:
            self.stop(f"stopped after launcher.timeout_min = {self.timeout_min:g} minutes")
        elif self.failing_since and time.monotonic() - self.failing_since > GRACE_S:
            self.stop("stopped because another rank failed")
        return bool(self.stopped)

    def stop(self, why: str) -> None:
        """Kill the job's processes and wait until they are gone."""
        self.stopped = why
        try:
            controller = psutil.Process(int(self.handle.job_id))
            tree = [controller, *controller.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in tree:  # the controller first, that it start nothing more
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(tree, timeout=10)
        self.handle.done()  # lets submitit reap its controller

    def record_failures(self) -> str:
        """Write a record for each rank that is incomplete; return what went wrong, for people."""
        culprit = self._culprit()
        cause = self.stopped if culprit is None else f"rank {culprit} {self._end_of(culprit)}"
        for rank in self.ranks:
            outcome, text = "error", f"stopped because {cause}"
            if culprit is None:
                outcome, text = "timeout", cause
            elif rank in self.bad:
                exited = self.exits.get(rank)
                outcome, text = exited.outcome if exited else "error", self._end_of(rank)
            text = f"{text}; log: {self.log_path(rank)}"
            record_failure(self.spec, self.out, self.attempt, rank, outcome, text)
        return f"{cause}; log: {self.log_path(self.ranks[0] if culprit is None else culprit)}"

    def _culprit(self) -> int | None:
        """Rank that failed first, if one did; killed before raised: the rest raise in its wake."""
        killed = [r for r in self.bad if r not in self.exits or self.exits[r].code < 0]
        return next(iter([*killed, *self.bad]), None)

    def _end_of(self, rank: int) -> str:
        """How a rank went wrong, in its own words where it left some."""
        if rank not in self.exits:
            return "was lost with the process that watched it (killed from outside)"
        own = [r.error for r in self._records(rank) if r.error]
        return f"raised {own[-1]}" if own and self.exits[rank].code >= 0 else str(self.exits[rank])

    def _records(self, rank: int) -> list[RankRecord]:
        return rank_records(self.out, self.spec, self.attempt, rank)

    def _is_complete(self, rank: int) -> bool:
        return rank_is_complete(self.spec, self._records(rank))

    def _supervisors(self) -> dict[int, psutil.Process]:
        """Process of each rank's supervisor, as far as they have been seen."""
        if len(self.seen) < len(self.ranks):
            try:
                for child in psutil.Process(int(self.handle.job_id)).children():
                    number = child.environ().get("SUBMITIT_LOCAL_GLOBALID")
                    if number is not None:
                        self.seen.setdefault(self.ranks[int(number)], child)
            except psutil.NoSuchProcess:
                pass  # the controller or a child went between two looks; `done` tells next time
        return self.seen


def _devices(spec: CellSpec) -> dict[str, Any]:
    """Return submitit's words for the devices of a CUDA cell; without them it hides them all."""
    if spec.backend != "cuda":
        return {}
    count = len(spec.ranks)
    shown = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), count)
    return {"gpus_per_node": count, "visible_gpus": shown}


@contextmanager
def _ctrl_c_is_ours() -> Iterator[None]:
    """Start processes that do not hear a terminal's Ctrl-C: the driver does, and stops them all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _read_exit(result: Path) -> RankExit:
    """Read one task's result file: `submitit.Job.result` would wait for the whole job first."""
    require_own(result.parent)
    kind, value = pickle_load(result)
    return value if kind == "success" else RankExit(1, str(value))
