"""ExitNote: how one rank of a Slurm job ended, left as JSON by the process that watched it."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jobs.spec import build
from jobs.supervise import RankExit
from planner.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitNote:
    """How a rank ended.

    Parameters
    ----------
    rank
        Number of the task, which is that of the rank among those that run.
    job, restarts
        The job, and how often it had been requeued then.
    code, error, out_of_memory
        As in `jobs.supervise.RankExit`.
    failed
        Whether its records are not whole.
    cut
        ``timeout`` or ``preempted`` when Slurm asked the job to make way and it was not to go on.
    at
        Seconds since 1970.
    """

    rank: int
    job: str
    restarts: int
    code: int
    error: str | None = None
    out_of_memory: bool = False
    failed: bool = True
    cut: str = ""
    at: float = field(default_factory=time.time)

    @property
    def exit(self) -> RankExit:
        """The rank's own end."""
        return RankExit(self.code, self.error, self.out_of_memory)

    def write(self, folder: Path) -> None:
        """Leave the note in the attempt's folder, atomically; raises OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = folder / f"exit.{self.rank}.tmp{os.getpid()}"
        scratch.write_text(json.dumps(asdict(self)))
        scratch.replace(folder / f"exit.{self.rank}.json")


def read_notes(folder: Path, job: str) -> dict[int, ExitNote]:
    """Return the notes of a job's last run, by rank."""
    notes = [_read(path) for path in sorted(folder.glob("exit.*.json"))]
    of_job = [note for note in notes if note.job == job]
    last = max((note.restarts for note in of_job), default=0)
    return {note.rank: note for note in of_job if note.restarts == last}


def _read(path: Path) -> ExitNote:
    try:
        return build(ExitNote, json.loads(path.read_text(errors="replace")), path.name)
    except (json.JSONDecodeError, ConfigError) as error:
        raise ConfigError(f"{path} is not what a rank left there: {error}; remove it") from error
