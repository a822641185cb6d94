"""One holder of a lease, whatever befalls it: real processes that contend, die and sleep."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.schedule import lease
from pipeline.schedule.lease import STALE_S, Holder, LeaseError, LeaseHeldError, hold

HOLD = """
import sys, time
from pathlib import Path
from pipeline.schedule.lease import LeaseHeldError, hold
path, start = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
while not start.exists():
    time.sleep(0.001)
try:
    with hold(path, lambda: None, lambda line: print("said", line, flush=True)):
        print("held", flush=True)
        sys.stdin.read()
except LeaseHeldError as busy:
    print("busy", busy, flush=True)
"""


def contend(path: Path, count: int) -> list[subprocess.Popen[str]]:
    """Start processes that all reach for the lease at the same moment, and hold it till told."""
    start = path.with_name("start")
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, path, start], stdin=pipe, stdout=pipe, text=True
        )
        for _ in range(count)
    ]
    for process in processes:
        assert line_of(process) == "ready"
    start.touch()
    return processes


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def take(path: Path) -> list[str]:
    """Take the lease and let it go; return what was said."""
    said: list[str] = []
    with hold(path, lambda: None, said.append) as holder:
        assert json.loads(path.read_text())["token"] == holder.token
    assert not path.exists()
    return said


@pytest.mark.parametrize("stale", [False, True])
def test_of_several_at_once_one_holds_it(tmp_path: Path, stale: bool) -> None:
    """Reference: the law itself, also where all of them find the same dead holder."""
    path = tmp_path / "lease"
    if stale:
        path.write_text(json.dumps(asdict(replace(Holder.here(), process_started=1.0))))
    processes = contend(path, 4)
    verdicts, said = [], []
    for process in processes:
        while (line := line_of(process)).startswith("said"):
            said.append(line)
        verdicts.append(line.split()[0])
    for process in processes:
        assert process.communicate(timeout=60) == ("", None), "the holder lets go, no more is said"
    assert sorted(verdicts) == ["busy", "busy", "busy", "held"]
    assert [line.startswith("said took over") for line in said] == [True] * stale
    assert not path.exists()


def test_a_killed_holder_loses_it(tmp_path: Path) -> None:
    """Reference: signal(7); a killed process runs nothing that could let go."""
    path = tmp_path / "lease"
    (holder,) = contend(path, 1)
    assert line_of(holder) == "held"
    with pytest.raises(LeaseHeldError, match=rf"process {holder.pid}, since .* s old, touched"):
        take(path)
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and left unreaped
    (said,) = take(path)
    assert f"process {holder.pid}" in said
    holder.communicate()


def test_on_another_host_only_age_tells(tmp_path: Path) -> None:
    """Reference: the stated rule; 15 minutes without a touch, by the file's own clock."""
    path = tmp_path / "lease"
    path.write_text(json.dumps(asdict(replace(Holder.here(), host="elsewhere", pid=1))))
    os.utime(path, (0, time.time() - STALE_S + 60))
    with pytest.raises(LeaseHeldError, match="on elsewhere, process 1,"):
        take(path)
    os.utime(path, (0, time.time() - STALE_S - 60))
    (said,) = take(path)
    assert "on elsewhere, process 1," in said


def test_what_is_no_lease_is_said_and_left(tmp_path: Path) -> None:
    """Reference: a torn file might be a live holder's; removing it is a person's decision."""
    path = tmp_path / "lease"
    path.write_text('{"owner": "someone"')
    with pytest.raises(LeaseError, match=r"is no lease .* see that nothing runs there"):
        take(path)
    assert path.exists()
    with pytest.raises(LeaseError, match=r"cannot take the lease .*: Not a directory"):
        take(path / "lease")


def test_a_holder_that_was_taken_over_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference: another's name in the file, which the first must neither touch nor remove."""
    monkeypatch.setattr(lease, "BEAT_S", 0.02)
    path, told = tmp_path / "lease", threading.Event()
    with hold(path, told.set, lambda _: None) as first:
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0:
            assert time.monotonic() < deadline, "the holder touches it"
        path.write_text(json.dumps(asdict(replace(first, token="another"))))
        assert told.wait(10)
    assert json.loads(path.read_text())["token"] == "another"
