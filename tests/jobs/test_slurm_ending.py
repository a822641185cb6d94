"""Why an attempt failed: Slurm's word and the ranks' notes, together."""

from pathlib import Path

import pytest

from jobs.slurm.ending import Ending, ending_of
from jobs.slurm.note import ExitNote, read_notes
from jobs.slurm.queue import JobState

KILLED, TOLD = -9, -15


def note(rank: int, code: int, at: float, **more: object) -> ExitNote:
    return ExitNote(rank=rank, job="7_0", restarts=0, code=code, at=at, **more)  # type: ignore[arg-type]


def judge(state: str, *notes: ExitNote, log: str = "", folder: Path = Path("/none")) -> Ending:
    path = folder / "log"
    if log:
        path.write_text(log)
    job = JobState(state, nodes="n1", reason="NonZeroExitCode")
    return ending_of(job, {n.rank: n for n in notes}, path, limit_min=60.0)


@pytest.mark.parametrize(
    ("state", "notes", "outcome", "goes_on"),
    [
        ("NODE_FAIL", (), "error", True),
        ("BOOT_FAIL", (), "error", True),
        ("PREEMPTED", (), "preempted", True),
        ("TIMEOUT", (), "timeout", True),
        ("DEADLINE", (), "timeout", True),
        ("OUT_OF_MEMORY", (), "oom-host", False),
        ("OUT_OF_MEMORY", (note(0, KILLED, 1.0),), "oom-host", False),
        ("CANCELLED", (), "error", False),
        ("FAILED", (), "error", False),
        ("FAILED", (note(0, TOLD, 1.0), note(1, TOLD, 2.0)), "preempted", True),
        ("FAILED", (note(0, 1, 1.0, cut="timeout"),), "timeout", False),
        ("FAILED", (note(0, 1, 1.0, cut="preempted"),), "preempted", False),
        ("GONE", (), "error", False),
        ("NODE_FAIL", (note(0, 1, 1.0, error="connection closed by peer"),), "error", True),
    ],
)
def test_a_state_and_notes_make_an_ending(
    state: str, notes: tuple[ExitNote, ...], outcome: str, goes_on: bool
) -> None:
    """Reference: Slurm's job states (squeue(1)), and jobs.record.OUTCOMES."""
    ending = judge(state, *notes)
    assert (ending.outcome, ending.interrupted) == (outcome, goes_on)


def test_the_rank_that_failed_first_is_the_culprit(tmp_path: Path) -> None:
    """Reference: by hand: rank 2 was killed, rank 0 raised in its wake, rank 1 was told to end."""
    late = note(0, 1, 3.0, error="RuntimeError: connection closed by peer")
    ending = judge("FAILED", late, note(1, TOLD, 4.0), note(2, KILLED, 1.0))
    assert (ending.culprit, ending.why) == (2, "was killed by SIGKILL")


def test_a_killed_rank_of_a_starved_job_ran_out_of_memory(tmp_path: Path) -> None:
    """Reference: what slurmstepd 22.05 and the kernel write to a job's log."""
    killed = note(1, KILLED, 1.0)
    for line in (
        "slurmstepd-n1: error: Exceeded job memory limit\n",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n",
    ):
        assert judge("FAILED", killed, log=line, folder=tmp_path).outcome == "oom-host"
    raised = note(1, 1, 1.0, error="ValueError: memory limit is a word")
    assert judge("FAILED", raised, log=line, folder=tmp_path).outcome == "error"


def test_notes_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    """Reference: the law itself; a requeued job has run twice, another job before it."""
    note(0, KILLED, 1.0).write(tmp_path)
    again = ExitNote(rank=1, job="7_0", restarts=1, code=0, failed=False)
    again.write(tmp_path)
    assert read_notes(tmp_path, "7_0") == {1: again}
    assert read_notes(tmp_path, "8_0") == {}
