"""Where an interrupted attempt goes on: at the first call that some rank lacks."""

from pathlib import Path
from types import ModuleType

import pytest

from jobs import resume
from jobs.record import record_path, write_records
from jobs.resume import Resumed
from jobs.spec import Calls, CellSpec
from tests.slurm.lab import cell

SPEC = cell("waits")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stub ranks' module, which makes records."""
    import importlib

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("stub_rank")


def left(spec: CellSpec, first: int) -> tuple[list[int], list[int]]:
    """Calls that warm up and calls that count, when all ranks go on at ``first``."""
    again, rest = Resumed(1, {}, first).calls(spec, first)
    return list(again), list(rest)


def test_the_call_before_runs_once_more(tmp_path: Path) -> None:
    """Reference: by hand, three calls; a warm call follows another of its process."""
    assert left(SPEC, 0) == ([], [0, 1, 2])
    assert left(SPEC, 1) == ([0], [1, 2])
    assert left(SPEC, 2) == ([1], [2])
    assert left(SPEC, 3) == ([], [])


@pytest.mark.parametrize(
    ("outcomes", "first"),
    [
        ([], 0),
        (["ok"], 1),
        (["ok", "ok"], 2),
        (["ok", "ok", "ok"], 3),
        (["ok", "error"], 1),
        (["refused"], 3),
    ],
)
def test_a_rank_goes_on_at_the_first_call_it_lacks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stub: ModuleType,
    outcomes: list[str],
    first: int,
) -> None:
    """Reference: by hand; a failure belongs to the interruption, a refusal to the cell."""
    made = [stub.record(SPEC, 0, 0, call, outcome) for call, outcome in enumerate(outcomes)]
    write_records(record_path(tmp_path, SPEC.key, 0, 0), made)
    monkeypatch.setenv(resume.VARIABLE, "2")
    resumed = Resumed.of(SPEC, tmp_path, 0, 0)
    assert (resumed.times, resumed.first) == (2, first)
    assert list(resumed.done) == [c for c, outcome in enumerate(outcomes) if outcome != "error"]


def test_a_first_run_begins_anew(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: a cell run again by hand under an old number writes all of its records."""
    write_records(record_path(tmp_path, SPEC.key, 0, 0), [stub.record(SPEC, 0, 0, 0)])
    assert Resumed.of(SPEC, tmp_path, 0, 0) == Resumed(0, {}, 0)


def test_a_warm_up_without_a_record_is_not_taken_for_done(tmp_path: Path) -> None:
    """Reference: by hand: one warm-up, then calls 1 and 2; none is recorded."""
    from dataclasses import replace

    spec = replace(SPEC, calls=Calls(name="warm", warmup=1, measured=2))
    assert resume._first(spec, {}) == 0
    assert left(spec, 0) == ([], [0, 1, 2])
