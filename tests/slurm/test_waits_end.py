"""Every wait has a limit, and the record says which: against a scheduler that was written down."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.launch import Event, launch
from jobs.slurm import watch
from jobs.slurm.batch import batches
from planner.errors import ConfigError
from tests.slurm.lab import PYTHONPATH, Told, cell, limits, outcomes, records
from tests.slurm.recorded_scheduler import install

SPEC = cell("waits", 1)

Run = Callable[..., tuple[Event, Told]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Launch one cell on a scheduler in some mood; results in ``tmp_path/out``."""
    monkeypatch.setattr(watch, "LATE_S", 0.3)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)

    def run(mood: str, **changes: object) -> tuple[Event, Told]:
        commands = install(tmp_path / "commands", mood)
        monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
        (tmp_path / "out").mkdir()
        told = Told()
        wanted = limits(poll_s=0.05, retries=0, **changes)
        (event,) = launch([SPEC], tmp_path / "out", wanted, told)
        return event, told

    return run


@pytest.mark.parametrize(
    ("mood", "changes", "outcome", "words"),
    [
        (
            "stuck",
            {"queue_min": 0.01},
            "timeout",
            "waited for launcher.queue_min = 0.01 minutes in the queue (Slurm: Resources)",
        ),
        (
            "silent",
            {"patience_min": 0.01},
            "error",
            "left no trace: Slurm has not answered for 0.01 minutes: squeue: slurm_load_jobs error",
        ),
        (
            "forgetful",
            {},
            "error",
            "left no trace: not in the queue, no accounting (sacct: Slurm accounting storage",
        ),
    ],
)
def test_what_never_comes_is_recorded_as_such(
    run: Run, tmp_path: Path, mood: str, changes: dict[str, object], outcome: str, words: str
) -> None:
    """Reference: the limits given; a job that never runs cannot have another end."""
    event, _ = run(mood, **changes)
    assert event.kind == "failed"
    assert words in event.why
    assert outcomes(SPEC, tmp_path / "out", 0) == {0: [outcome]}
    (record,) = records(SPEC, tmp_path / "out", 0)[0]
    assert words in (record.error or "")


def test_a_cluster_too_busy_to_take_jobs_is_asked_again(run: Run, tmp_path: Path) -> None:
    """Reference: sbatch's words for a limit on submitted jobs, which passes."""
    event, told = run("busy")
    assert event.kind == "ok"
    assert told.kinds(SPEC) == ["queued", "started", "ok"]
    asked = (tmp_path / "commands" / "asked").read_text()
    assert asked.count("sbatch ") == 2


def test_a_cluster_that_stays_busy_is_given_up(run: Run, tmp_path: Path) -> None:
    """Reference: the patience given; nothing was ever accepted, so that it is bad input."""
    with pytest.raises(ConfigError, match=r"Slurm takes none of the jobs: .*QOSMaxSubmitJob"):
        run("full", patience_min=0.005)
    assert not list((tmp_path / "out").glob("records/*"))


def test_an_array_whose_answer_was_lost_is_not_submitted_twice(run: Run, tmp_path: Path) -> None:
    """Reference: sbatch's words when its answer does not come; the array is found by its name."""
    event, told = run("deaf")
    assert event.kind == "ok"
    assert told.kinds(SPEC) == ["queued", "started", "ok"]
    asked = (tmp_path / "commands" / "asked").read_text()
    assert asked.count("sbatch ") == 1
    (batch,) = batches(tmp_path / "out")
    assert batch.job == "1"
    assert (batch.folder(tmp_path / "out") / "1_0_submitted.pkl").exists()


def test_no_slurm_at_all_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference: a PATH without Slurm's commands."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="launcher=slurm needs a Slurm that answers: there is no"):
        launch([SPEC], tmp_path, limits())
