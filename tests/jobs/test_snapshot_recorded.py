"""Memory snapshots that PyTorch 2.14 has written, read: peak, working set, reserved, what is lost.

They are of tests/emulated/snapshot_real.py, with the figures that torch gave there.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from snapshot_figures import check
from snapshots import MIB

from jobs.snapshot.held import held
from jobs.snapshot.history import history
from jobs.snapshot.read import read_snapshot
from jobs.snapshot.tables import HOST, Snapshot
from pipeline.cli import main

FOLDER = Path(__file__).parents[1] / "golden" / "snapshots"
NAMES = [path.name.split(".")[0] for path in sorted(FOLDER.glob("*.pickle.gz"))]


def _unpacked(name: str, folder: Path) -> Path:
    path = folder / f"{name}.pickle"
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.pickle.gz").read_bytes()))
    return path


def _told(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_real_snapshot_has_torch_s_figures(name: str, tmp_path: Path) -> None:
    """Reference: `torch.cuda.memory_stats` of the process that wrote it."""
    check(read_snapshot(_unpacked(name, tmp_path)), _told(name))


def test_what_each_real_snapshot_is_of(tmp_path: Path) -> None:
    """Reference: the cases' settings."""
    read: dict[str, Snapshot] = {
        name: read_snapshot(_unpacked(name, tmp_path)) for name in ("pinned", "cut", "python")
    }
    assert sorted(read) == NAMES
    assert read["python"].settings["expandable_segments"] is True
    assert {segment.expandable for segment in read["python"].segments} == {True}
    assert read["pinned"].devices == (HOST, 0)
    assert held(read["pinned"], HOST).allocated_bytes == 4 * MIB  # 3 MiB, a power of two taken
    assert len({segment.stream for segment in read["pinned"].segments if segment.device == 0}) == 2
    assert len(read["pinned"].events.pools) == 2


def test_a_cut_history_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: 40 of its 60 events were kept; what is in use and recorded is not in them."""
    path = _unpacked("cut", tmp_path)
    past = history(read_snapshot(path), 0)
    assert past is not None
    assert (past.events, past.whole) == (40, False)
    assert past.lost_bytes > 0
    assert "the history is cut" in _shown(path, capsys)
    whole = _shown(_unpacked("pinned", tmp_path), capsys, "--replay")
    assert "history is cut" not in whole
    assert "pinned host memory" in whole
    assert whole.count("reserved at most, replayed") == 1, "the host's pool has other rules"


def _shown(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    with pytest.raises(SystemExit):
        main(["snapshot", str(path), *more])
    return " ".join(capsys.readouterr().out.split())
