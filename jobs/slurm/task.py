"""What each task of a Slurm job runs: one rank, watched to its end, which is noted.

Told to make way, the job is queued again. All state lies in the records: a job that runs again,
whoever queued it again and why, goes on at the first call that some rank has not recorded.
"""

import os
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from submitit.core.submission import process_job
from submitit.helpers import DelayedSubmission

from jobs import resume
from jobs.completion import GOOD, rank_is_complete, rank_records
from jobs.private import owner_only, require_own
from jobs.record import RankRecord
from jobs.slurm.note import ExitNote, read_notes
from jobs.spec import CellSpec
from jobs.supervise import RankExit, Work, watch

GRACE_S = 5.0  # for the others to note their own end before one failure ends them all
POLL_S = 0.2
EARLY_S = 75  # Slurm warns up to a minute early, and a task starts after its job
PORTS = range(10_240, 30_000)  # below those that Linux gives out by itself


class RankFailedError(RuntimeError):
    """The rank did not do all that its cell asks for; srun then ends the others."""


@dataclass
class SlurmTask:
    """The callable that submitit runs as each task; all tasks of a job have the same.

    Parameters
    ----------
    key, out, attempt
        The cell, its sweep's folder, and the number of the attempt.
    entry
        See `jobs.supervise.Work`.
    timeout_min, warning_s
        The job's time limit, and how long before it Slurm warns.
    requeues
        Interruptions that the cell survives, of which ``interrupted`` were before this job.
    """

    key: str
    out: Path
    attempt: int
    entry: str
    timeout_min: float
    warning_s: int
    requeues: int
    interrupted: int = 0

    def __call__(self) -> None:
        """Be the supervisor of one rank.

        Raises
        ------
        RankFailedError
            When the rank failed; what is known of it lies in its note and its records by then.
        """
        self.cut, self.began = "", time.monotonic()
        spec_path = self.out / "specs" / f"{self.key}.json"
        self.spec, self.task = CellSpec.read(spec_path), _Task.here()
        self.finished = self._finished()
        try:
            times = self.interrupted + self.task.restarts
            if times > self.requeues:
                self.cut = "preempted"
                raise RankFailedError(f"interrupted {times} times, launcher.requeues allows fewer")
            work = Work(self.entry, spec_path, self.out, self.attempt, self.task.rendezvous)
            end = watch(work, self.task.place | {resume.VARIABLE: str(times)}, lambda: False)
        except Exception:  # submitit's own too, raised by its handler where there is no next time
            self._note(RankExit(1, traceback.format_exc()))
            raise
        failed = bool(end.code) or not rank_is_complete(self.spec, self._records())
        self._note(end, failed=failed)
        if failed:
            self._wait_for_others()
            raise RankFailedError(f"rank {self.spec.ranks[self.task.rank]} {end}")

    def checkpoint(self) -> DelayedSubmission | None:
        """Say how to go on after an interruption; submitit asks its first task, when warned.

        ``None``, and the job ends for good: interrupted too often, or out of time without having
        finished a single call, so that it never would.
        """
        elapsed = time.monotonic() - self.began
        out_of_time = elapsed > 60 * self.timeout_min - self.warning_s - EARLY_S
        self.cut = "timeout" if out_of_time else "preempted"
        if self.interrupted + self.task.restarts >= self.requeues:
            return None
        if out_of_time and self._finished() == self.finished:
            return None
        return DelayedSubmission(replace(self))

    def _finished(self) -> int:
        return sum(record.outcome in GOOD for record in self._records())

    def _records(self) -> list[RankRecord]:
        return rank_records(self.out, self.spec, self.attempt, self.spec.ranks[self.task.rank])

    def _note(self, end: RankExit, *, failed: bool = True) -> None:
        with owner_only():
            ExitNote(
                rank=self.task.rank,
                job=self.task.job,
                restarts=self.task.restarts,
                code=end.code,
                error=end.error,
                out_of_memory=end.out_of_memory,
                failed=failed,
                cut=self.cut,
            ).write(attempt_folder(self.out, self.key, self.attempt))

    def _wait_for_others(self) -> None:
        """Give the other ranks time to end by themselves, in words of their own."""
        folder = attempt_folder(self.out, self.key, self.attempt)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            if len(read_notes(folder, self.task.job)) == self.task.tasks:
                return
            time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class _Task:
    """A task's place in its job, from srun's variables."""

    job: str
    restarts: int
    rank: int
    tasks: int
    place: dict[str, str]
    rendezvous: str

    @classmethod
    def here(cls) -> "_Task":
        """Read the environment."""
        given = os.environ
        job = f"{given['SLURM_ARRAY_JOB_ID']}_{given['SLURM_ARRAY_TASK_ID']}"
        port = PORTS[int(given["SLURM_JOB_ID"]) % len(PORTS)]
        return cls(
            job=job,
            restarts=int(given.get("SLURM_RESTART_COUNT", "0")),
            rank=int(given["SLURM_PROCID"]),
            tasks=int(given["SLURM_NTASKS"]),
            place={
                "RANK": given["SLURM_PROCID"],
                "LOCAL_RANK": given["SLURM_LOCALID"],
                "WORLD_SIZE": given["SLURM_NTASKS"],
            },
            # srun starts on the first node of a job, which has its first rank
            rendezvous=f"tcp://{given['SLURM_LAUNCH_NODE_IPADDR']}:{port}",
        )


def attempt_folder(out: Path, key: str, attempt: int) -> Path:
    """Return the folder of an attempt."""
    return out / "jobs" / f"{key}.a{attempt}"


def main() -> None:
    """Be a task of submitit's: read its pickle, where no one else can have put it, and run it."""
    folder = Path(sys.argv[1])
    require_own(folder)
    process_job(folder)


if __name__ == "__main__":
    main()
