"""`python -m pipeline launcher=slurm` as people run it: leave, collect, bad input, no secret."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.launch import launch
from tests.slurm.lab import PYTHONPATH, cell, limits, slurm

pytestmark = pytest.mark.needs("slurm")

SECRET = "0123456789abcdef0123456789abcdef01234567"
CELLS = ("topology=ep1_cp1,ep2_cp1,ep4_cp1", "launcher.max_ranks=4", "workload.name=pauses")


def sweep(folder: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    """Run the pipeline on stub ranks on Slurm, a W&B key in its environment."""
    fixed = ["launcher=slurm", "launcher.entry=slurm_rank:main", "launcher.poll_s=0.3"]
    fixed += ["weights=random", "weights.routing=balanced", "tracker=disabled"]
    place = {"PYTHONPATH": PYTHONPATH, "WANDB_API_KEY": SECRET, "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *fixed, f"out={folder / 'out'}", *overrides],
        capture_output=True,
        text=True,
        env=os.environ | place | {"HOME": str(folder)},
        cwd=folder,
        timeout=200,
        check=False,
    )


def command_lines() -> Iterator[str]:
    """Every process's command line, as `ps` shows them to everybody."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended


@dataclass
class Swept:
    """A sweep that left, what collected it, and what `ps` and Slurm showed in between."""

    out: Path
    first: "subprocess.CompletedProcess[str]"
    later: "subprocess.CompletedProcess[str]"
    shown: str


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, slurm_missing: str) -> Swept:
    """Three cells in arrays of one, left on the cluster, then collected."""
    if slurm_missing:
        pytest.skip(slurm_missing)
    folder = tmp_path_factory.mktemp("left")
    first = sweep(folder, *CELLS, "launcher.wait=false")
    shown = "\n".join(command_lines()) + slurm("scontrol", "show", "job")
    return Swept(folder / "out", first, sweep(folder, *CELLS, "collect=true"), shown)


def test_a_sweep_may_leave_and_be_collected(swept: Swept) -> None:
    """Reference: launcher.wait and collect in conf; exit code 0 both times."""
    assert swept.first.returncode == 0, swept.first.stdout + swept.first.stderr
    assert "3 of 3 cells are on the cluster; the same command with" in swept.first.stdout
    assert swept.first.stdout.count("left     [") == 3
    assert swept.later.returncode == 0, swept.later.stdout + swept.later.stderr
    ends = [line.split()[0] for line in swept.later.stdout.splitlines() if "/3] " in line]
    assert len(ends) == 3
    assert set(ends) <= {"ok", "skipped"}
    assert "ok" in ends, "the last array cannot have ended before: the first takes seconds"
    assert (swept.out / "report.html").stat().st_mtime > max(
        path.stat().st_mtime for path in (swept.out / "records").glob("*.jsonl")
    )
    assert len(list((swept.out / "records").glob("*.jsonl"))) == 1 + 2 + 4


def test_arrays_beyond_the_ranks_allowed_wait_for_earlier_ones(swept: Swept) -> None:
    """Reference: by hand: the cell of four ranks fills launcher.max_ranks; the others follow it."""
    scripts = [path.read_text() for path in (swept.out / "jobs").glob("*/*_submission.sh")]
    tasks = {4: "ntasks-per-node=4", 2: "ntasks-per-node=2", 1: "ntasks-per-node=1"}
    waits = {
        ranks: "--dependency=afterany:" in script
        for script in scripts
        for ranks, words in tasks.items()
        if words in script
    }
    assert waits == {4: False, 2: True, 1: True}


def test_no_secret_is_told(swept: Swept) -> None:
    """Reference: the key itself, looked for in all that was written, printed or listed."""
    files = [path for path in swept.out.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in swept.shown
    for done in (swept.first, swept.later):
        assert SECRET not in done.stdout + done.stderr


def test_what_jobs_are_made_of_is_their_owners_alone(swept: Swept) -> None:
    """Reference: 0700 for folders, 0600 for files, under jobs and specs."""
    for part in ("jobs", "specs"):
        for path in [swept.out / part, *(swept.out / part).rglob("*")]:
            mode = stat.S_IMODE(path.lstat().st_mode)
            assert path.is_symlink() or mode == (0o700 if path.is_dir() else 0o600), path


def test_nothing_to_collect_is_a_failure(tmp_path: Path) -> None:
    """Reference: the event that makes the exit code 1."""
    (event,) = launch([cell("waits")], tmp_path, limits(), collect=True)
    assert event.kind == "absent"
    assert "was never submitted, or failed; run the same command without" in event.why


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("launcher.partition=nowhere", "Slurm takes none of the jobs: sbatch: error: invalid"),
        ("launcher.gres=gpu", "launcher.gres is what each rank needs"),
    ],
)
def test_bad_input_gives_exit_code_2_and_records_nothing(
    tmp_path: Path, override: str, message: str
) -> None:
    """Reference: the exit codes in --help; the message names value and way out."""
    done = sweep(tmp_path, "topology=ep1_cp1", override)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert not list((tmp_path / "out").glob("records/*"))
