"""Memory snapshots that PyTorch writes here and now, read back."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from jobs.snapshot.history import history
from jobs.snapshot.read import read_snapshot
from tests.emulated.snapshot_golden import EXPANDABLE, HERE, written
from tests.emulated.snapshot_real import CASES
from tests.jobs.snapshot_figures import check

MIB = 2**20


@pytest.mark.parametrize("conf", ["", EXPANDABLE, "roundup_power2_divisions:4"])
def test_snapshots_have_torch_s_figures(conf: str, tmp_path: Path) -> None:
    """Reference: `torch.cuda.memory_stats` of the process that wrote them."""
    names = CASES if "roundup" not in conf else ("python", "no_stacks")
    written(tmp_path, names, conf)
    for name in names:
        snapshot = read_snapshot(tmp_path / f"{name}.pickle")
        check(snapshot, json.loads((tmp_path / f"{name}.json").read_text()))
        past = history(snapshot, 0)
        assert (past is None) == (name == "no_history")
        if past is not None:
            assert past.whole is (False if name == "cut" else None)
        assert snapshot.devices == ((-1, 0) if name == "pinned" else (0,))


def test_a_cell_s_history_knows_whether_it_is_whole(tmp_path: Path) -> None:
    """Reference: each call makes 11 requests, 10 ends of two events and one or two segments."""
    done = subprocess.run(
        [HERE / "run", HERE / "snapshot_loop_real.py", tmp_path, "1000", "12"],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [Path(line) for line in done.stdout.split()]
    for path, number, whole in zip(paths, (0, 1, 0, 1), (True, True, False, False), strict=True):
        assert path.name == f"call{number}.pickle"
        past = history(read_snapshot(path), 0)
        assert past is not None
        assert past.whole is whole
        assert past.peak_bytes == (35 + 5 * number) * MIB
        assert not whole or past.baseline_bytes == 5 * number * MIB
