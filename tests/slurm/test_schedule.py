"""A schedule as Slurm starts it: its entry's options, and jobs submitted from within its own."""

import json
import subprocess
from pathlib import Path

import pytest

from pipeline.schedule.entries import Schedule, entries
from tests.slurm.lab import PYTHONPATH


@pytest.mark.needs("slurm")
def test_a_scheduled_job_submits_the_cells(tmp_path: Path) -> None:
    """Reference: sbatch(1), whose options scrontab(1) takes behind #SCRON; the stub's 1 %.

    The job's own memory and cores must not become those of the jobs that it submits: Slurm's
    variables for the two exclude each other.
    """
    overrides = (
        *("topology=ep2_cp1", "weights=random", "weights.routing=balanced", "tracker=disabled"),
        *("launcher=slurm", "launcher.entry=stub_rank:ok", "launcher.poll_s=0.5"),
        *("launcher.timeout_min=2", "launcher.retries=0"),
    )
    schedule = Schedule.of("nightly", tmp_path / "nightly", overrides)
    schedule.home.mkdir()
    lines = entries(schedule, "02:17", 5).splitlines()
    (entry, _) = (line for line in lines if line.startswith("17 2 * * * "))
    options = [line.replace("#SCRON", "#SBATCH") for line in lines if line.startswith("#SCRON")]
    script = tmp_path / "entry.sh"
    environment = f"export PYTHONPATH={PYTHONPATH} XDG_CACHE_HOME={tmp_path}"
    script.write_text("\n".join(["#!/bin/sh", *options, environment, entry[11:], ""]))
    done = subprocess.run(
        ["sbatch", "--wait", script], capture_output=True, text=True, check=False, timeout=240
    )
    log = (schedule.home / "schedule.log").read_text()
    assert done.returncode == 0, done.stderr + log
    assert "the first sweep; it is the baseline" in log
    (cell,) = json.loads((schedule.home / "baseline.json").read_text())["cells"].values()
    assert (cell["outcome"], cell["covered"], cell["observed"]) == ("ok", 6, 6)
    assert cell["worst_error_percent"] == pytest.approx(1, abs=1e-3)
