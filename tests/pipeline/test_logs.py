"""Logs: one a rank, found from its records, readable whatever was printed."""

import stat
from pathlib import Path
from types import ModuleType

import pytest

from jobs.launch import Limits, launch
from jobs.logs import log_path
from pipeline.cli import main
from pipeline.logs import log_of, tail_of
from pipeline.store import read_store
from tests.pipeline.conftest import STUBS
from tests.pipeline.test_store import a_cell, write


def test_a_ranks_log_is_found_from_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub: ModuleType
) -> None:
    """Reference: what the stub prints: as text, through a child, as raw bytes, then a traceback.

    The rank is killed right after, so that a line that waited in a buffer would be lost.
    """
    monkeypatch.setenv("PYTHONPATH", str(STUBS))
    launch([a_cell("topology=ep2_cp1")], tmp_path, Limits(entry="stub_rank:chatters", retries=0))
    (cell,) = read_store(tmp_path).cells
    texts = {}
    for record in cell.records:
        log = log_of(tmp_path, record)
        assert log is not None
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
        texts[record.rank] = tail_of(log)
        assert str(log) in (record.error or ""), "the record names the same file"
    for rank in (0, 1):
        lines = texts[rank].splitlines()
        assert lines[:3] == [f"rank {rank} größer", "\\udcff", "a child's words"]
        assert lines[3] == "raw \ufffd\ufffd bytes"
    assert "ValueError: on purpose" in texts[0]
    assert "ValueError" not in texts[1]


def test_the_logs_of_what_failed_are_shown(
    tmp_path: Path, stub: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: by hand; a cell that failed, a log of it lost, and one that ran."""
    fine, failed = a_cell(), a_cell("calls=cold")
    write(tmp_path, stub, fine, 0, "ok", "ok", "ok")
    write(tmp_path, stub, failed, 0, "error")
    for spec, rank in ((fine, 0), (failed, 0), (failed, 1)):
        log = log_path(tmp_path, spec.key, 0, rank)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"first\nsecond\n{spec.calls.name} \x1b[31mred\x1b[0m\n")
    (tmp_path / "logs" / f"{failed.key}.a0.r1.log").unlink()
    assert shown(capsys, "logs", str(tmp_path), "--lines", "2") == (
        f"== ep2_cp1 random cold, failed, rank 0: {tmp_path}/logs/{failed.key}.a0.r0.log\n"
        "second\ncold \\x1b[31mred\\x1b[0m\n"
        "== ep2_cp1 random cold, failed, rank 1: no log\n"
    )
    assert f"{fine.key}.a0.r0.log\nfirst\nsecond\nboth" in shown(
        capsys, "logs", str(tmp_path), fine.key[:6]
    )
    for arguments, says in (
        (("0123",), "no cell's key begins with 0123"),
        ((), "holds no records"),
    ):
        where = tmp_path if arguments else tmp_path / "empty"
        with pytest.raises(SystemExit) as left:
            main(["logs", str(where), *arguments])
        assert left.value.code == 2
        assert says in capsys.readouterr().err


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    return capsys.readouterr().out


def test_the_tail_of_a_long_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    """Reference: by hand; 100 lines of ten bytes, of which 35 bytes hold three whole ones."""
    log = tmp_path / "long.log"
    log.write_text("".join(f"line {n:04}\n" for n in range(100)))
    assert tail_of(log, at_most=35) == "line 0097\nline 0098\nline 0099\n"
    log.write_bytes("ä".encode() * 10)
    assert tail_of(log, at_most=5) == "\ufffdää", "a single line is cut where it must be"


def test_a_rank_started_by_hand_has_no_log(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: the naming rule; nothing lies there."""
    assert log_of(tmp_path, stub.record(a_cell(), 0, 0, 0)) is None
