"""Collecting what very many cells have recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.lab import PYTHONPATH
from tests.slurm.recorded_scheduler import install

pytestmark = pytest.mark.bench


def test_ten_thousand_records_are_collected_in_seconds(tmp_path: Path) -> None:
    """Reference: the project's own bound of 5 s; 2,000 cells of five calls on one rank each."""
    commands = install(tmp_path / "commands")
    place = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "tests.slurm.many_cells", str(tmp_path / "out"), "2000"]
    done = subprocess.run(
        command, env=os.environ | place, capture_output=True, text=True, check=True
    )
    took = json.loads(done.stdout)
    sys.stdout.write(
        f"\ncollected {took['records']:,} records in {took['collect_s']:.2f} s, "
        f"driver {took['peak_mb']:.0f} MB, queue asked {took['asked']['squeue']} times\n"
    )
    assert took["records"] == 10_000
    assert took["collect_s"] <= 5
