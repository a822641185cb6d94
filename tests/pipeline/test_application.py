"""`python -m pipeline` as people run it: exit codes, messages, skipping, its own folder."""

import fcntl
import os
from pathlib import Path

import pytest

from tests.pipeline.conftest import Command

TWO_CELLS = ("topology=ep1_cp1,ep2_cp1", "weights=random")
ONE_CELL = ("topology=ep2_cp1", "weights=random")


def test_a_sweep_runs_then_does_nothing_then_runs_what_is_gone(
    command: Command, tmp_path: Path
) -> None:
    """Reference: the promise of a second run, and of a run with one record removed."""
    first = command(*TWO_CELLS)
    assert first.returncode == 0, first.stderr
    assert "2 of 2 cells run" in first.stdout
    assert "predicted 0.11 GiB (bound 0.12 GiB), observed 0.11 GiB (-1.00 %)" in first.stdout
    records = sorted((tmp_path / "out" / "records").iterdir())
    assert len(records) == 3, "one rank and two ranks"
    before = {path: path.read_bytes() for path in records}

    second = command(*TWO_CELLS)
    assert second.returncode == 0, second.stderr
    assert "nothing to do: all 2 cells are recorded" in second.stdout
    assert "start " not in second.stdout

    lost = next(path for path in records if ".r1." in path.name)
    lost.unlink()
    third = command(*TWO_CELLS)
    assert third.stdout.count("start ") == 1
    assert "1 of 2 cells run" in third.stdout
    assert all(path.read_bytes() == before[path] for path in records if path != lost)


def test_nothing_is_written_outside_the_results_folder(command: Command, tmp_path: Path) -> None:
    """Reference: Hydra's own habit of outputs/ and multirun/ folders, which must not litter."""
    command(*ONE_CELL)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("specs", "records", "logs", "jobs", "asked.json", "coefficients.json"),
        *("report.html", "multirun.yaml", ".lock"),
    }


def test_a_failed_cell_gives_exit_code_1_and_costs_no_other(command: Command) -> None:
    """Reference: the exit codes in --help; the stub kills the last rank of a two-rank cell."""
    done = command(*TWO_CELLS, "launcher.retries=0", entry="killed")
    assert done.returncode == 1
    assert "rank 1 was killed by SIGKILL; log: " in done.stdout
    assert "failed: ep2_cp1 random: rank 1" in done.stdout
    again = command(*TWO_CELLS)
    assert again.returncode == 0
    assert again.stdout.count("start ") == 1, "the cell that had succeeded stays recorded"


def test_a_refused_cell_is_named_and_gives_exit_code_0(command: Command) -> None:
    """Reference: the exit codes in --help; the stub's reason holds both numbers."""
    done = command(*ONE_CELL, entry="refused")
    assert done.returncode == 0
    assert "refused: ep2_cp1 random: rank 0" in done.stdout
    assert "the batch needs 110 MiB, the room is 10 MiB" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("topology=ep3_cp1",), "Could not find 'topology/ep3_cp1'"),
        (("topology.epp=2",), "Key 'epp' is not in struct"),
        (("topology.ep=two",), "error: topology.ep must be an integer; got 'two' (str)"),
        (("topology=ep1_cp1", "topology.dp=3", "topology.ep=3"), "ep can be 1, 2, 4, 8, 16"),
        (("topology=ep4_cp1", "launcher.max_ranks=2"), "set launcher.max_ranks=4"),
        (("coefficients=nosuch",), "no coefficient table 'nosuch'"),
        (
            ("weights=pretrained", "weights.path=/nowhere"),
            "weights.path = /nowhere is not whole; it needs config.json",
        ),
        (("tracker=online",), "run `wandb login`, set WANDB_API_KEY, or use tracker=offline"),
        (("out=/dev/null/x",), "cannot write results to out = /dev/null/x: Not a directory"),
        (
            ("workload.seed=1,2", "tracker.project=a,b"),
            "tracker.project is one for all cells of a sweep; got tracker.project = 'a'",
        ),
    ],
)
def test_bad_input_gives_exit_code_2_and_starts_nothing(
    command: Command, tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    """Reference: the exit codes in --help; the message names value and way out."""
    done = command("topology=ep1_cp1", "weights=random", *overrides)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert not list((tmp_path / "out").glob("records/*"))


def test_two_sweeps_in_one_folder(command: Command, tmp_path: Path) -> None:
    """Reference: flock(2); this process plays the first sweep and holds the lock."""
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = command(*ONE_CELL)
    assert refused.returncode == 2
    assert f"in use by another sweep (process {os.getpid()})" in refused.stderr
    assert command(*ONE_CELL).returncode == 0, "once it is let go the folder can be had"


def test_any_sweeper_may_launch_several_times(command: Command) -> None:
    """Reference: Hydra's own BasicSweeper, made to hand over one cell a time."""
    done = command(*TWO_CELLS, "hydra.sweeper.max_batch_size=1")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 cells run" in done.stdout


def test_calls_sweep_like_any_axis(command: Command, tmp_path: Path) -> None:
    """Reference: conf/calls: cold records call 0, warm records calls 1 and 2."""
    done = command("topology=ep1_cp1", "weights=random", "calls=cold,warm")
    assert done.returncode == 0, done.stderr
    lines = [
        path.read_text().count("\n") for path in (tmp_path / "out" / "records").glob("*.jsonl")
    ]
    assert sorted(lines) == [1, 2]


def test_a_single_run_is_a_sweep_of_one(command: Command) -> None:
    """Reference: Hydra's RUN mode, which calls the task function itself."""
    done = command("topology=ep1_cp1", "hydra.mode=RUN")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 cells run" in done.stdout


def test_hydras_own_command_line_works(command: Command, tmp_path: Path) -> None:
    """Reference: Hydra's documented flags; none of them may run or write anything."""
    shown = command("topology=ep2_cp2", "--cfg", "job")
    assert shown.returncode == 0
    assert "  cp: 2" in shown.stdout
    helped = command("--help")
    assert helped.returncode == 0
    assert "Exit code: 0 every cell ran" in helped.stdout
    assert not any(tmp_path.iterdir())


def test_the_default_study_is_twelve_cells(command: Command) -> None:
    """Reference: six topologies times two kinds of weights."""
    shown = command("--cfg", "hydra")
    assert "topology: ep1_cp1,ep1_cp2,ep2_cp1,ep2_cp2,ep4_cp1,ep4_cp2" in shown.stdout
    assert "weights: random,pretrained" in shown.stdout
