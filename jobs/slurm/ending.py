"""How an attempt on Slurm went wrong: judged by what its ranks left and what Slurm says, together.

Neither is enough by itself: a killed job leaves no word, and Slurm calls a job failed for what was
its node's fault, or completed although a rank left without its records.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM

from jobs import outcome as outcomes
from jobs.completion import record_failure
from jobs.logs import log_path
from jobs.slurm.note import ExitNote
from jobs.slurm.queue import JobState
from jobs.spec import CellSpec

GONE = "GONE"
"""State of a job that neither the controller nor accounting knows an end of."""

TAIL_BYTES = 4096
STARVED = re.compile(r"exceeded( job)? memory limit|oom[-_ ]?kill", re.IGNORECASE)
"""Said of a job in its batch script's log, by slurmstepd or the kernel."""

NODE_LOST = ("NODE_FAIL", "BOOT_FAIL")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """Why an attempt is not complete.

    Parameters
    ----------
    outcome, why
        Of the ranks that this befell, in the words of a record.
    culprit
        The rank that failed by itself and so ended the others, if that is what happened.
    interrupted
        Whether the cell itself is not at fault, so that it may go on where it is.
    wanted
        Whether a person ended it, who would not want to see it tried again.
    """

    outcome: str
    why: str
    culprit: int | None = None
    interrupted: bool = False
    wanted: bool = False


def ending_of(
    state: JobState, notes: Mapping[int, ExitNote], log: Path, limit_min: float
) -> Ending:
    """Judge a job that is over while its records are not whole.

    Parameters
    ----------
    notes
        What the ranks left of the job's last run, by rank.
    log
        Where the batch script writes.
    limit_min
        The job's time limit.
    """
    cut = next((note.cut for note in notes.values() if note.cut), "")
    if cut == outcomes.TIMEOUT:
        return Ending(outcome=cut, why=f"was out of time (launcher.timeout_min = {limit_min:g})")
    if cut:
        return Ending(outcome=cut, why="had to make way, once more than launcher.requeues allows")
    if state.state in NODE_LOST:
        return Ending(outcome="error", why=f"lost its node ({state.nodes})", interrupted=True)
    if state.state == "PREEMPTED":
        return Ending(outcome=outcomes.PREEMPTED, why="had to make way", interrupted=True)
    culprit = _culprit(notes)
    killed = culprit is None or culprit.code == -SIGKILL
    if killed and (state.state == "OUT_OF_MEMORY" or STARVED.search(_tail(log))):
        return Ending(outcome=outcomes.HOST, why="exceeded its host memory (launcher.memory_gib)")
    if culprit is not None:
        return Ending(outcome=culprit.exit.outcome, why=str(culprit.exit), culprit=culprit.rank)
    return _ending_without_words(state, notes, limit_min)


def _ending_without_words(
    state: JobState, notes: Mapping[int, ExitNote], limit_min: float
) -> Ending:
    """Judge a job of which no rank has anything to tell."""
    if state.state in ("TIMEOUT", "DEADLINE"):
        why = f"was out of time (launcher.timeout_min = {limit_min:g})"
        return Ending(outcome=outcomes.TIMEOUT, why=why, interrupted=True)
    if state.state == "CANCELLED":
        return Ending(outcome="error", why="was cancelled (scancel)", wanted=True)
    if notes:  # all told to end, by whoever may: nothing went wrong by itself
        why = f"was told to end (Slurm: {state.state}, {state.reason})"
        return Ending(outcome=outcomes.PREEMPTED, why=why, interrupted=True)
    if state.state == GONE:
        return Ending(outcome="error", why=f"left no trace: {state.reason}")
    return Ending(
        outcome=outcomes.of_slurm_state(state.state),
        why=f"ended before its ranks could say anything (Slurm: {state.state}, {state.reason})",
    )


def record(
    spec: CellSpec,
    out: Path,
    attempt: int,
    ending: Ending,
    notes: Mapping[int, ExitNote],
    job: str,
    log: Path,
) -> str:
    """Write a record for each rank that is incomplete; return what went wrong, for people.

    Raises
    ------
    OSError
        When a record cannot be written.
    """
    culprit = ending.culprit
    cause = ending.why if culprit is None else f"rank {spec.ranks[culprit]} {ending.why}"
    for place, rank in enumerate(spec.ranks):
        outcome, text = ending.outcome, ending.why
        if culprit is not None:
            outcome, text = _own(place, notes) or ("error", f"stopped because {cause}")
        text = f"{text}; job {job}; log: {_log_of(spec, out, attempt, rank, log)}"
        overrule = culprit is None
        record_failure(spec, out, attempt, rank, outcome, text, overrule=overrule)
    where = log if culprit is None else _log_of(spec, out, attempt, spec.ranks[culprit], log)
    return f"{cause}; job {job}; log: {where}"


def _culprit(notes: Mapping[int, ExitNote]) -> ExitNote | None:
    """Return who failed first; a rank that was told to end (SIGTERM) did not fail."""
    bad = [note for note in notes.values() if note.failed and note.code != -SIGTERM]
    return min(bad, key=lambda note: note.at, default=None)


def _own(place: int, notes: Mapping[int, ExitNote]) -> tuple[str, str] | None:
    """Return the outcome and words of a rank that failed by itself."""
    note = notes.get(place)
    if note is None or not note.failed or note.code == -SIGTERM:
        return None
    return note.exit.outcome, str(note.exit)


def _log_of(spec: CellSpec, out: Path, attempt: int, rank: int, batch: Path) -> Path:
    """Return where a rank wrote; where its job's batch script did, if it never came to."""
    own = log_path(out.absolute(), spec.key, attempt, rank)
    return own if own.exists() else batch.absolute()


def _tail(log: Path) -> str:
    """Return the last part of a log, whatever it holds; nothing if it was never written."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace")
