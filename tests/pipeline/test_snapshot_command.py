"""``peakcast snapshot`` on snapshots made by hand, as a person types it."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import sys
from pathlib import Path

import pytest

from pipeline.cli import main

sys.path.insert(0, str(Path(__file__).parent.parent / "jobs"))
from snapshots import MIB, block, event, frame, segment, snapshot

A = 0x7F00_0000_0000
EXPERTS = [
    frame("/opt/torch/_ops.py", 1, "__call__"),
    frame("/site-packages/megatron/core/transformer/moe/experts.py", 88),
]


def told(
    value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str]:
    """Return exit code and output; what is wrong goes to the error stream, and is all there is."""
    path = tmp_path / "taken.pickle"
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))
    with pytest.raises(SystemExit) as left:
        main(["snapshot", str(path), *more])
    shown, wrong = capsys.readouterr()
    assert not (shown and wrong)
    return left.value.code, shown or wrong


def test_it_shows_peak_frames_and_terms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reference: by hand, 3 + 2 MiB live together, 2 MiB in the end."""
    trace = [
        event("alloc", A, 3 * MIB, EXPERTS),
        event("alloc", A + 4 * MIB, 2 * MIB),
        event("free_requested", A, 3 * MIB),
        event("free_completed", A, 3 * MIB),
        event("oom", 12 * MIB, 64 * MIB),
    ]
    value = snapshot([segment(A, [block(A + 4 * MIB, 2 * MIB, 2 * MIB)])], trace)
    code, shown = told(value, tmp_path, capsys)
    assert code == 0
    assert "5.00 MiB at event 1" in shown
    assert "▅█▄▄▄" in shown
    assert "transformer/moe/experts.py:88 forward" in shown
    assert "/opt/torch" not in shown
    code, text = told(value, tmp_path, capsys, "--json", "--replay")
    (device,) = json.loads(text)
    assert device["replayed"]["peak_bytes"] == 20 * MIB
    assert device["history"]["peak_bytes"] == device["history"]["working_set_bytes"] == 5 * MIB
    assert device["terms"] == {"experts.*": 3 * MIB, "unattributed": 2 * MIB}
    assert device["held"]["allocated_bytes"] == 2 * MIB
    assert device["history"]["ooms"] == [[64 * MIB, 12 * MIB]]
    assert device["note"] is None


def test_what_a_replay_cannot_know_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: a block older than the history, whose place among others was not recorded."""
    older = [block(A, 2 * MIB, 2 * MIB)]
    trace = [event("alloc", A + 4 * MIB, MIB), event("free_completed", A + 4 * MIB, MIB)]
    value = snapshot([segment(A, older)], trace)
    assert "packs what is older" in told(value, tmp_path, capsys, "--replay")[1]
    assert "packs what is older" not in told(value, tmp_path, capsys)[1]


def test_frames_of_dispatch_modes_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: an operator under the ledger is the model's, not the ledger's."""
    under = [
        frame("/x/jobs/meter/ledger.py", 90, "_follow"),
        frame("/x/jobs/meter/ledger.py", 70, "__torch_dispatch__"),
        frame("/site-packages/torch/functional.py", 9, "einsum"),
        frame("/x/jobs/model/head.py", 40, "forward"),
    ]
    _, shown = told(snapshot([], [event("alloc", A, MIB, under)]), tmp_path, capsys)
    assert "jobs/model/head.py:40 forward" in shown
    assert "ledger.py" not in shown


def test_an_empty_history_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reference: live bytes are no peak."""
    value = snapshot([segment(A, [block(A, MIB, MIB, frames=EXPERTS)])], [])
    code, shown = told(value, tmp_path, capsys)
    assert code == 0
    assert "the history is empty" in shown
    assert "peak" not in shown.replace("no peak is known", "")
    (device,) = json.loads(told(value, tmp_path, capsys, "--json")[1])
    assert device["history"] is None
    assert "record_memory_history" in device["note"]


def test_a_history_of_ends_alone_is_not_called_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: torch keeps the last ``max_entries`` events, which may all be ends."""
    ends = [event("free_requested", A, MIB), event("free_completed", A, MIB)]
    _, shown = told(snapshot([segment(A, [block(A, MIB, MIB)])], ends), tmp_path, capsys)
    assert "the history holds no allocation" in shown
    assert "max_entries" in shown
    assert "empty" not in shown


def test_names_from_the_file_are_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference: rich takes ``[/x]`` for markup, a terminal takes escapes for orders."""
    monkeypatch.setenv("COLUMNS", "200")
    hostile = [frame("/a/b[/red]/\x1b[31m\ud800.cpp", 3, "f(int*) [clone .isra.0] :fire:\nnext")]
    code, shown = told(snapshot([], [event("alloc", A, MIB, hostile)]), tmp_path, capsys)
    assert code == 0
    assert r"b[/red]/\x1b[31m\ud800.cpp:3 f(int*) [clone .isra.0] :fire:\nnext " in shown


def test_a_timeline_fits_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference: by hand; 96 points of which the last is by far the highest, on 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    trace = [event("alloc", A + n * MIB, 512) for n in range(95)]
    trace.append(event("alloc", A + 95 * MIB, 900 * MIB))
    _, shown = told(snapshot([], trace), tmp_path, capsys)
    (line,) = [line for line in shown.splitlines() if "live bytes" in line]
    assert line.split()[-1] == "▁" * 47 + "█"
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_compressed_file_is_refused_by_name(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: the first bytes that Python's own modules write."""
    modules = {"gz": gzip, "bz2": bz2, "xz": lzma}
    code, shown = told(modules[kind].compress(pickle.dumps(snapshot([], []))), tmp_path, capsys)
    assert code == 2
    assert "has compressed it; unpack it first" in shown


def test_a_pipe_is_refused_and_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: opening a pipe that nobody writes to would never return."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit) as left:
        main(["snapshot", str(tmp_path / "pipe")])
    assert left.value.code == 2
    assert "no file of a known size" in capsys.readouterr().err


def test_the_file_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: the snapshot is there, the spec is not."""
    more = ("--spec", "absent.json", "--record", "absent.jsonl")
    code, shown = told(snapshot([], []), tmp_path, capsys, *more)
    assert (code, shown) == (2, "peakcast snapshot: absent.json: No such file or directory\n")


@pytest.mark.parametrize(
    ("value", "more", "reason"),
    [
        (b"\x80\x04cos\nsystem\n(V/bin/true\ntR.", (), "nothing was run"),
        (b"PK\x03\x04", (), "no pickle of protocol 2 to 5: it is a zip archive"),
        (b"", (), "it is empty"),
        (snapshot([], []), ("--device", "3"), "says nothing of device 3"),
        (snapshot([], []), ("--record", "records.jsonl"), "give both --spec"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    value: object,
    more: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Reference: the command's contract: 2 is bad input."""
    code, shown = told(value, tmp_path, capsys, *more)
    assert code == 2
    assert reason in shown
