"""The launcher against a scheduler that was written down: very many cells, few questions."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.slurm.lab import PYTHONPATH
from tests.slurm.recorded_scheduler import MAX_ARRAY_SIZE, install

CELLS = 2000


@pytest.fixture(scope="module")
def took(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a sweep of 2,000 cells took of a driver."""
    folder = tmp_path_factory.mktemp("many")
    commands = install(folder / "commands")
    done = subprocess.run(
        [sys.executable, "-m", "tests.slurm.many_cells", str(folder / "out"), str(CELLS)],
        env=os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked = (commands / "asked").read_text().splitlines()
    return json.loads(done.stdout) | {"submitted": [a for a in asked if a.startswith("sbatch")]}


def test_every_cell_is_told_of_once(took: dict[str, Any]) -> None:
    """Reference: the cells handed over; collected afterwards, all are found recorded."""
    assert took["told"] == dict.fromkeys(("queued", "started", "ok", "skipped"), CELLS)
    assert took["records"] == 5 * CELLS


def test_arrays_are_split_at_the_clusters_limit(took: dict[str, Any]) -> None:
    """Reference: by hand, MaxArraySize of 1001 leaves 1,000 tasks: two arrays for 2,000 cells."""
    assert len(took["submitted"]) == -(-CELLS // (MAX_ARRAY_SIZE - 1)) == 2


def test_the_queue_is_asked_once_a_poll_for_all_jobs(took: dict[str, Any]) -> None:
    """Reference: the recorded scheduler, whose arrays are done at the fourth look."""
    assert took["asked"] == {"scontrol": 1, "squeue": 4}, "and accounting never"
    assert took["asked_later"] == {"scontrol": 1}


def test_the_driver_stays_small(took: dict[str, Any]) -> None:
    """Reference: half a gigabyte, the project's own bound for 2,000 cells."""
    assert took["peak_mb"] < 500
