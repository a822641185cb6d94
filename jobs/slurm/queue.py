"""What Slurm says of jobs, asked for all of them at once; and what it is told to do with them."""

import os
import pwd
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

ANSWER_S = 30.0
"""A command of Slurm's that takes longer counts as no answer."""

WAITING = frozenset(
    {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
RUNNING = frozenset(
    {
        *("RUNNING", "CONFIGURING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"),
        *("STOPPED", "SUSPENDED"),
    }
)
USABLE_NODE = re.compile(r"(idle|mixed|allocated|completing)\W*$")
"""A node's state in sinfo; a mark behind it says that it saves power, boots and the like."""

FIELDS = ("JobArrayID", "State", "RestartCnt", "NodeList", "Reason", "Name")


class SchedulerSilentError(RuntimeError):
    """Slurm, or its accounting, gave no answer; the text says what its command said."""


@dataclass(frozen=True, slots=True)
class JobState:
    """One job as Slurm has it.

    Parameters
    ----------
    state
        Its first word, such as ``PENDING`` or ``NODE_FAIL``.
    nodes
        Where it runs or ran, in Slurm's short form.
    reason
        Why it waits, or how it ended.
    restarts
        How often it was requeued.
    """

    state: str
    nodes: str = ""
    reason: str = ""
    restarts: int = 0
    name: str = ""

    @property
    def is_final(self) -> bool:
        """Whether nothing more will come of the job by itself."""
        return self.state not in WAITING | RUNNING


class Scheduler:
    """Asks Slurm. Every question is one command, however many jobs it is about."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        """How often each command was run."""

    def look(self, names: Iterable[str]) -> dict[str, JobState]:
        """Return this user's jobs of these names, running, waiting and lately ended, by number.

        The controller's own word: accounting may lag behind it, and calls a requeued job failed.

        Raises
        ------
        SchedulerSilentError
            When the controller does not answer.
        """
        fields = ",".join(f"{field}:|" for field in FIELDS)
        user = pwd.getpwuid(os.getuid()).pw_name
        wanted = ",".join(sorted(set(names)))
        asked = ("squeue", "-h", "-r", "-t", "all", "-u", user, "--name", wanted, "-O", fields)
        jobs = {}
        for line in self._run(*asked).splitlines():
            number, state, restarts, nodes, reason, name = line.split("|")[: len(FIELDS)]
            jobs[number.strip()] = JobState(
                state.strip(), nodes.strip(), reason.strip(), int(restarts or 0), name.strip()
            )
        return jobs

    def account(self, jobs: Collection[str]) -> dict[str, JobState]:
        """Return what accounting knows of ``jobs`` that the controller has forgotten.

        Raises
        ------
        SchedulerSilentError
            When there is no accounting, or it does not answer.
        """
        arrays = {job.partition("_")[0] for job in jobs}
        asked = ("sacct", "-X", "-n", "-P", "-j", ",".join(sorted(arrays)))
        lines = self._run(*asked, "-o", "JobID,State,NodeList,ExitCode").splitlines()
        found = {}
        for line in lines:
            number, state, nodes, code = line.split("|")[:4]
            if number in jobs:
                found[number] = JobState(state.partition(" ")[0], nodes, f"exit code {code}")
        return found

    def cancel(self, jobs: Collection[str]) -> None:
        """Cancel jobs, or whole arrays; those that have ended are left as they are.

        Raises
        ------
        SchedulerSilentError
            When Slurm does not take the order.
        """
        if jobs:
            self._run("scancel", "--quiet", *sorted(jobs))

    def failed_nodes(self, among: str) -> set[str]:
        """Return which nodes of a list in Slurm's short form cannot take jobs now.

        Raises
        ------
        SchedulerSilentError
            When the controller does not answer.
        """
        states = self._nodes("-n", among)
        return {node for node, state in states.items() if not USABLE_NODE.match(state)}

    def usable_nodes(self, partition: str | None) -> set[str]:
        """Return the nodes of a partition (``None``: of all) that can take jobs.

        Raises
        ------
        SchedulerSilentError
            When the controller does not answer.
        """
        states = self._nodes(*(("-p", partition) if partition else ()))
        return {node for node, state in states.items() if USABLE_NODE.match(state)}

    def _nodes(self, *which: str) -> dict[str, str]:
        lines = self._run("sinfo", "-h", "-N", *which, "-o", "%N|%T").splitlines()
        return dict(line.split("|")[:2] for line in lines)

    def keep_off(self, job: str, nodes: Collection[str]) -> None:
        """Let a waiting job not run on ``nodes``.

        Raises
        ------
        SchedulerSilentError
            When Slurm does not take the order: the job may have started meanwhile.
        """
        self._run("scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(sorted(nodes))}")

    def array_limit(self) -> int:
        """Return how many jobs one array may have.

        Raises
        ------
        SchedulerSilentError
            When the controller does not answer.
        """
        config = self._run("scontrol", "show", "config")
        limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", config, re.MULTILINE)
        return max(1, int(limit[1]) - 1) if limit else 1

    def _run(self, *command: str) -> str:
        self.asked[command[0]] += 1
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=ANSWER_S, check=False, text=True
            )
        except subprocess.TimeoutExpired as error:
            raise SchedulerSilentError(f"{command[0]} gave no answer in {ANSWER_S:g} s") from error
        except FileNotFoundError as error:
            raise SchedulerSilentError(f"there is no command {command[0]} here") from error
        if done.returncode:
            said = done.stderr.strip() or f"exit code {done.returncode}"
            raise SchedulerSilentError(f"{command[0]}: {said.splitlines()[-1]}")
        return done.stdout
