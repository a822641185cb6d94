"""One job array to Slurm, by submitit: the batch written down, the array submitted, its number."""

import os
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

import submitit
from submitit.core import utils

from jobs.private import owner_only
from jobs.slurm.batch import Batch
from jobs.slurm.limits import SlurmLimits
from jobs.slurm.task import SlurmTask

ANSWER_S = 120
"""sbatch asks again by itself for a while; one that takes longer is given up."""

SECRETS = ("WANDB_API_KEY",)
"""What no rank needs, so that it does not travel to the cluster."""

OF_THE_CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS")
"""What of Slurm's variables travels: the rest is of the job that the driver itself may run in."""

PASSING = re.compile(
    r"temporarily|unable to contact|timed out|try again|connection refused|slurm_persist|"
    r"MaxSubmitJob|exceeded.*limit.*submit|gave no answer|exit code 124",
    re.IGNORECASE,
)
"""In sbatch's words: why it would take the jobs at another time."""


class SubmissionError(RuntimeError):
    """sbatch did not take an array; ``is_passing`` when it may at another time."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.is_passing = bool(PASSING.search(said))


class _ArrayExecutor(submitit.SlurmExecutor):
    """Submits arrays whose tasks read no pickle that another user could have put there."""

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -m jobs.slurm.task {shlex.quote(str(self.folder))}"

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        outer = [n for n in os.environ if n.startswith("SLURM_") and n not in OF_THE_CLUSTER]
        unset = [word for name in (*SECRETS, *outer) for word in ("-u", name)]
        return ["env", *unset, "timeout", str(ANSWER_S), "sbatch", str(submission_file_path)]

    def submit_tasks(self, tasks: Sequence[SlurmTask]) -> str:
        """Submit one array of them and return its number.

        As `submit_array`, but that an array of one is an array, and that the two methods above
        hold for arrays as well.
        """
        for index, task in enumerate(tasks):
            delayed = utils.DelayedSubmission(task)
            delayed.set_timeout(self.parameters["time"], self.max_num_timeout)
            delayed.dump(_pickle(self.folder, index))
        self.parameters["map_count"] = len(tasks)
        return self._submit_command(self._submitit_command_str).job_id


def submit(
    batch: Batch,
    out: Path,
    limits: SlurmLimits,
    *,
    off: Collection[str] = (),
    after: Collection[str] = (),
) -> Batch:
    """Submit a batch as one array and return it with its number.

    Parameters
    ----------
    off
        Nodes that it must not run on.
    after
        Arrays that must have ended before any of it starts.

    Raises
    ------
    SubmissionError
        When sbatch did not take it, in sbatch's words; look for its name before trying again, it
        may have been taken all the same.
    OSError
        When its files cannot be written.
    """
    batch.write(out)
    with owner_only():
        executor = _ArrayExecutor(
            batch.folder(out), max_num_timeout=limits.requeues + 1, python=limits.python
        )
        executor.update_parameters(
            **limits.parameters(batch.ranks),
            job_name=batch.name,
            array_parallelism=batch.parallel,
            **({"exclude": ",".join(sorted(off))} if off else {}),
            **({"dependency": f"afterany:{':'.join(sorted(after))}"} if after else {}),
        )
        tasks = [
            SlurmTask(
                *(cell.key, out.absolute(), cell.attempt, limits.entry),
                *(limits.timeout_min, limits.warning_s, limits.requeues, cell.interrupted),
            )
            for cell in batch.cells
        ]
        try:
            job = executor.submit_tasks(tasks)
        except (utils.FailedJobError, utils.FailedSubmissionError) as error:  # submitit's names
            said = str(error).strip() or str(error.__cause__)
            raise SubmissionError(said.splitlines()[0]) from error
    return claim(batch, out, job)


def claim(batch: Batch, out: Path, job: str) -> Batch:
    """Write a batch down as the array ``job``, and put its pickles where its tasks look for them.

    They wait a minute for them. May be repeated, also by another driver than the one that began.
    """
    for index in range(len(batch.cells)):
        waiting = _pickle(batch.folder(out), index)
        if waiting.exists():
            paths = utils.JobPaths(batch.folder(out), job_id=f"{job}_{index}")
            paths.move_temporary_file(waiting, "submitted_pickle")
    known = batch.known_as(job)
    known.write(out)
    return known


def _pickle(folder: Path, index: int) -> Path:
    return folder / f"{index}.pkl"
