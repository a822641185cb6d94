"""What reads pickles reads none that somebody else could have put there; the rest is JSON."""

import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.private import NotOwnError, require_own
from jobs.record import read_records
from jobs.spec_file import write_spec
from tests.slurm.lab import cell


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """Reference: the mode bits of inode(7)."""
    tmp_path.chmod(0o700)
    require_own(tmp_path)
    for mode in (0o720, 0o702, 0o777):
        tmp_path.chmod(mode)
        with pytest.raises(NotOwnError, match=f"has mode {mode:04o}"):
            require_own(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    """Reference: chown(2)."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    with pytest.raises(NotOwnError, match="belongs to user 12345"):
        require_own(theirs)


def test_a_task_reads_no_pickle_from_such_a_folder(tmp_path: Path) -> None:
    """Reference: a pickle that would leave a file behind, under submitit's name for it."""
    mark, folder = tmp_path / "mark", tmp_path / "batch"
    folder.mkdir()
    folder.chmod(0o770)
    (folder / "7_0_submitted.pkl").write_bytes(pickle.dumps(Bomb(mark)))
    place = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
    place |= {"SUBMITIT_EXECUTOR": "slurm", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}

    def task() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "jobs.slurm.task", str(folder)],
            env=os.environ | place,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = task()
    assert "NotOwnError" in refused.stderr
    assert not mark.exists()
    folder.chmod(0o700)
    task()
    assert mark.exists(), "the same pickle is read from a folder of one's own: the test has teeth"


def test_a_record_from_elsewhere_is_parsed_as_json_alone(tmp_path: Path) -> None:
    """Reference: the same pickle as a file of records; it becomes a fault, nothing runs."""
    path = tmp_path / "0123456789abcdef.a0.r0.jsonl"
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    records, faults = read_records(path)
    assert records == []
    assert "torn or not JSON" in faults[0]
    assert not (tmp_path / "mark").exists()


def test_specs_are_their_owners_alone(tmp_path: Path) -> None:
    """Reference: 0600 in a folder of 0700, whatever the umask."""
    before = os.umask(0)
    try:
        path = write_spec(cell("waits"), tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
