"""W&B runs, read back by the client's own reader."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.store import read_store, rows
from pipeline.track import TrackerError, sync_command, track
from tests.pipeline.conftest import Command
from tests.pipeline.test_store import a_cell, write

WANDB = Path(sys.executable).with_name("wandb")


def inspect(run: Path, *flags: str) -> str:
    """Read a run's transaction log by ``wandb leet inspect --json``."""
    done = subprocess.run(
        [WANDB, "leet", "inspect", *flags, "--json", run],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in inspect(run).splitlines()]
    return [line[kind] for line in lines if line["type"] == kind]


@pytest.fixture
def out(tmp_path: Path, stub: ModuleType) -> Path:
    write(tmp_path, stub, a_cell(), 0, "ok", "ok", "ok")
    return tmp_path


def offline_runs(out: Path) -> list[Path]:
    return sorted((out / "wandb").glob("offline-run-*"))


def test_a_cell_becomes_one_run_that_reads_back_whole(out: Path) -> None:
    """Reference: the records on disk; the reader is wandb's own."""
    store = read_store(out)
    assert track(store, mode="offline", project="peakcast", group="nightly") == 1
    (folder,) = offline_runs(out)
    summary = json.loads(inspect(folder, "--summary"))
    assert (summary["state"], summary["project"]) == ("finished", "peakcast")
    assert summary["name"] == "ep2_cp1 random both"
    assert summary["config"]["topology"] == a_cell().to_dict()["topology"]
    assert summary["config"]["key"] == a_cell().key
    (run,) = records(folder, "run")
    assert (run["run_group"], run["job_type"]) == ("nightly", "ep2_cp1")

    figures = summary["summary"]
    assert figures["worst_abs_error_percent"] == pytest.approx(1, abs=1e-6)
    assert figures["coverage"] == 1
    assert figures["worst_abs_growth_error_bytes"] == 0
    assert figures["max_planned_bound_bytes"] == 110 * 2**20 * 11 // 10
    assert figures["calls"]["nrows"] == len(rows(store)) == 6

    history = [h["item"] for h in records(folder, "history")]
    for row in rows(store):
        logged = history[row["call"]]
        rank = f"rank{row['rank']}"
        assert logged["call"] == row["call"]
        for name in ("planned_expected_bytes", "planned_bound_bytes", "observed_peak_bytes"):
            assert logged[f"{rank}/{name}"] == row[name]
        assert logged[f"{rank}/observed_growth_bytes"] == row["observed_growth_bytes"]
        residuals = [v for k, v in logged.items() if k.startswith(f"{rank}/residual/")]
        assert sum(residuals) == row["residual_bytes"]


def test_a_cell_is_tracked_once_and_again_after_a_new_attempt(out: Path, stub: ModuleType) -> None:
    """Reference: the run's id, made of key and attempt."""
    store = read_store(out)
    assert track(store, mode="offline", project="peakcast", group="g") == 1
    assert track(store, mode="offline", project="peakcast", group="g") == 0
    write(out, stub, a_cell(), 1, "ok", "ok", "ok")
    assert track(read_store(out), mode="offline", project="peakcast", group="g") == 1
    assert len(offline_runs(out)) == 2


def test_a_refused_cell_has_a_run_too(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: the outcome in the run's summary; nothing was observed."""
    write(tmp_path, stub, a_cell(), 0, "refused")
    track(read_store(tmp_path), mode="offline", project="peakcast", group="g")
    (folder,) = offline_runs(tmp_path)
    figures = json.loads(inspect(folder, "--summary"))["summary"]
    assert (figures["outcome"], figures["observed_calls"]) == ("refused", 0)
    assert "coverage" not in figures


def test_a_tracker_that_cannot_write_says_so_and_leaves_the_records(out: Path) -> None:
    """Reference: a file where the runs' folder should be."""
    before = {path: path.read_bytes() for path in (out / "records").iterdir()}
    (out / "wandb").write_text("in the way")
    with pytest.raises(TrackerError, match=r"was not written: .*the records stay"):
        track(read_store(out), mode="offline", project="peakcast", group="g")
    assert {path: path.read_bytes() for path in (out / "records").iterdir()} == before


def test_the_sweep_tracks_and_prints_how_to_send(command: Command, tmp_path: Path) -> None:
    """Reference: the folders that the printed command's pattern matches in a shell."""
    done = command("topology=ep1_cp1", "weights=random", "tracker=offline")
    assert done.returncode == 0, done.stderr
    pattern = sync_command(tmp_path / "out")
    assert pattern in done.stdout
    listed = subprocess.run(
        ["bash", "-c", pattern.replace("wandb sync", "ls -d", 1)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert listed.stdout.split() == [str(path) for path in offline_runs(tmp_path / "out")]
    again = command("topology=ep1_cp1", "weights=random", "tracker=offline")
    assert "W&B" not in again.stdout


def test_what_ran_untracked_is_tracked_later_without_running(
    command: Command, tmp_path: Path
) -> None:
    """Reference: records are the truth, runs are derived from them."""
    command("topology=ep1_cp1", "weights=random", "tracker=disabled")
    assert not (tmp_path / "out" / "wandb").exists()
    done = command("topology=ep1_cp1", "weights=random", "tracker=offline")
    assert "nothing to do" in done.stdout
    assert len(offline_runs(tmp_path / "out")) == 1
