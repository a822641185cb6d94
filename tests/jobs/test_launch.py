"""The launcher, on real submitit jobs whose ranks are stubs that need no model."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jobs import cell_job
from jobs.completion import attempts
from jobs.launch import Event, Limits, launch
from jobs.record import RankRecord, read_records, record_path
from jobs.spec import Calls, CellSpec, Weights, Workload
from planner.errors import ConfigError
from planner.step import Step
from planner.topology import Topology
from tests.conftest import STUB
from tests.waiting import is_alive, until

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stubs on the path; one that waits for a failed rank has nothing to record in its grace."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(cell_job, "GRACE_S", 0.5)


def cell(ranks: int, seed: int = 7) -> CellSpec:
    return CellSpec(
        model=STUB,
        topology=Topology(dp=ranks, ep=ranks),
        topology_name=f"ep{ranks}_cp1",
        step=Step(),
        weights=Weights(name="random"),
        workload=Workload(name="short", requests=(512, 512, 512, 512), seed=seed),
        calls=Calls(name="both"),
    )


def run(entry: str, *cells: CellSpec, out: Path, **limits: object) -> tuple[list[Event], list[str]]:
    """Launch cells on a stub; return how they ended, and the kinds of all events in order."""
    told: list[Event] = []
    ended = launch(cells, out, Limits(entry=f"stub_rank:{entry}", **limits), told.append)
    return ended, [event.kind for event in told]


def records_of(spec: CellSpec, out: Path, attempt: int, rank: int) -> list[RankRecord]:
    records, faults = read_records(record_path(out, spec.key, attempt, rank))
    assert faults == []
    return records


def running_in(out: Path) -> list[psutil.Process]:
    """Processes whose command line or working files name ``out``: submitit's and ours."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if str(out) in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def test_every_rank_leaves_every_call(tmp_path: Path) -> None:
    """Reference: the contract in jobs/spec.py, one record for each rank and recorded call."""
    cells = [cell(1), cell(2)]
    ended, _ = run("ok", *cells, out=tmp_path)
    assert [event.kind for event in ended] == ["ok", "ok"]
    for spec in cells:
        assert CellSpec.read(tmp_path / "specs" / f"{spec.key}.json") == spec
        for rank in range(spec.topology.world):
            calls = [(r.call, r.temperature) for r in records_of(spec, tmp_path, 0, rank)]
            assert calls == [(0, "cold"), (1, "warm"), (2, "warm")]
        folder = tmp_path / "jobs" / f"{spec.key}.a0"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert running_in(tmp_path) == []


def test_recorded_cells_are_skipped_and_one_lost_record_runs_its_cell_alone(tmp_path: Path) -> None:
    """Reference: the promise that a second sweep does nothing, and with one record gone, that."""
    cells = [cell(1), cell(2)]
    run("ok", *cells, out=tmp_path)
    ended, told = run("ok", *cells, out=tmp_path)
    assert [event.kind for event in ended] == told == ["skipped", "skipped"]
    record_path(tmp_path, cells[1].key, 0, 1).unlink()
    ended, told = run("ok", *cells, out=tmp_path)
    assert told == ["skipped", "started", "ok"]
    assert ended[1].attempt == 1, "a new attempt, so that nothing recorded is written over"


def test_a_refusal_is_a_result_and_is_not_run_again(tmp_path: Path) -> None:
    """Reference: design.md 6, `refused` is an outcome beside `ok`."""
    ended, _ = run("refused", cell(2), out=tmp_path)
    assert ended[0].kind == "refused"
    assert run("refused", cell(2), out=tmp_path)[1] == ["skipped"]


def test_a_killed_rank_stops_the_others_and_costs_no_other_cell(tmp_path: Path) -> None:
    """Reference: signal(7), SIGKILL is 9; the waiting rank would sleep an hour."""
    whole, broken = cell(1), cell(2)
    ended, told = run("killed", whole, broken, out=tmp_path)
    assert [event.kind for event in ended] == ["ok", "failed"]
    assert told.count("retried") == 1
    assert ended[1].attempt == 1
    assert "rank 1 was killed by SIGKILL" in ended[1].why
    for attempt in (0, 1):
        first, second = records_of(broken, tmp_path, attempt, 1)
        assert (first.call, first.outcome) == (0, "ok"), "the finished call stays"
        assert (second.call, second.outcome) == (1, "error")
        assert second.error is not None
        assert "was killed by SIGKILL" in second.error
        log = Path(second.error.rpartition("log: ")[2])
        assert log.is_file()
        stopped = records_of(broken, tmp_path, attempt, 0)[-1]
        assert (stopped.outcome, stopped.error.split(";")[0]) == (
            "error",
            "stopped because rank 1 was killed by SIGKILL",
        )
    assert running_in(tmp_path) == []


def test_a_cell_that_fails_once_succeeds_on_its_second_try(tmp_path: Path) -> None:
    """Reference: the stub, which is killed in attempt 0 alone."""
    ended, told = run("killed_once", cell(2), out=tmp_path)
    assert told == ["started", "retried", "started", "ok"]
    assert ended[0].attempt == 1
    assert attempts(tmp_path, cell(2).key) == [0, 1]


def test_a_failed_cell_runs_again_in_the_next_sweep(tmp_path: Path) -> None:
    """Reference: the promise that records with outcome error are run again."""
    run("raises", cell(1), out=tmp_path, retries=0)
    ended, told = run("ok", cell(1), out=tmp_path)
    assert told == ["started", "ok"]
    assert ended[0].attempt == 1


def test_an_exception_is_recorded_in_its_own_words(tmp_path: Path) -> None:
    """Reference: the stub's message, which names the tensor."""
    ended, _ = run("raises", cell(2), out=tmp_path, retries=0)
    text = "raised ValueError: the checkpoint lacks layers.1.mlp.router.weight"
    assert f"rank 0 {text}" in ended[0].why
    (record,) = records_of(cell(2), tmp_path, 0, 0)
    assert record.error is not None
    assert record.error.startswith(text)


def test_a_rank_that_leaves_without_records_is_a_failure(tmp_path: Path) -> None:
    """Reference: os._exit(0), which no exception handler and no exit code betrays."""
    ended, _ = run("leaves", cell(2), out=tmp_path, retries=0)
    assert ended[0].kind == "failed"
    assert "rank 0 ended without its records" in ended[0].why


def test_memory_running_out_is_told_apart(tmp_path: Path) -> None:
    """Reference: design.md 6, outcome `oom-host`; MemoryError is what Python raises then."""
    run("starves", cell(1), out=tmp_path, retries=0)
    (record,) = records_of(cell(1), tmp_path, 0, 0)
    assert record.outcome == "oom-host"


def test_a_hanging_cell_is_stopped_at_its_time_limit(tmp_path: Path) -> None:
    """Reference: the limit given, 0.05 minutes; the stub never ends by itself."""
    ended, _ = run("hangs", cell(2), out=tmp_path, retries=0, timeout_min=0.05)
    assert ended[0].kind == "failed"
    for rank in (0, 1):
        (record,) = records_of(cell(2), tmp_path, 0, rank)
        assert record.outcome == "timeout"
        assert "launcher.timeout_min = 0.05" in record.error
    assert running_in(tmp_path) == []


def test_more_ranks_than_allowed_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Reference: the message names both values and the one that would do."""
    with pytest.raises(ConfigError, match=r"max_ranks = 1 is too few for ep2_cp1 \(2 ranks\).*=2"):
        run("ok", cell(1), cell(2), out=tmp_path, max_ranks=1)
    assert not any(tmp_path.iterdir())


def test_there_is_nothing_to_collect_on_one_machine(tmp_path: Path) -> None:
    """Reference: the local launcher stops every job before it returns."""
    with pytest.raises(ConfigError, match="collect=true gathers what launcher=slurm has left"):
        launch([cell(1)], tmp_path, Limits(), collect=True)


def test_no_more_ranks_run_at_once_than_allowed(tmp_path: Path) -> None:
    """Reference: the law itself, counted from the events of three cells of two ranks each."""
    running = most = 0

    def count(event: Event) -> None:
        nonlocal running, most
        running += {"started": 1}.get(event.kind, -1) * event.spec.topology.world
        most = max(most, running)

    cells = [cell(2, seed) for seed in (1, 2, 3)]
    launch(cells, tmp_path, Limits(entry="stub_rank:ok", max_ranks=4), count)
    assert most == 4


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_driver(tmp_path: Path, signum: int) -> None:
    """Reference: the ranks' own pids, which they wrote down before hanging."""
    spec = cell(2)
    spec.write(tmp_path / "spec.json")
    program = (
        "from pathlib import Path; from jobs.spec import CellSpec; from jobs.launch import *\n"
        f"out = Path({str(tmp_path)!r}); spec = CellSpec.read(out / 'spec.json')\n"
        "launch([spec], out, Limits(entry='stub_rank:hangs'))"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    notes = [tmp_path / f"pid.0.{rank}" for rank in (0, 1)]
    until(lambda: all(note.exists() and note.read_text().endswith(".") for note in notes))
    pids = [int(pid) for note in notes for pid in note.read_text().rstrip(".").split()]
    if signum == signal.SIGINT:
        os.killpg(driver.pid, signum)  # as a terminal's Ctrl-C does
    else:
        os.kill(driver.pid, signum)
    assert "submitit" not in driver.communicate(timeout=120)[1], "one trace, the driver's own"
    until(lambda: not any(is_alive(pid) for pid in pids))
    until(lambda: running_in(tmp_path) == [])
