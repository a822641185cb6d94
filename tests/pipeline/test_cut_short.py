"""Calls that were cut short are told of, and are part of no error, coverage or fit.

The records in ``tests/golden/cut_short`` are of real ranks (2026-11-30). ``ep1_cp1``: PyTorch's
CUDA allocator on an emulated device of 700 MiB (`tests/emulated`, ``EMULATED_BYTES``) ran out in
the first call, at 75 of 92 MiB. ``ep2_cp1``: the cell ``device`` of `tests/jobs/test_failures.py`,
whose rank 1 raised PyTorch's exception in the second call, so that rank 0 lost its peer.
"""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline.cli import application
from pipeline.cut_short import told
from pipeline.gate import ran_out
from pipeline.recorded import RecordedError, read_recorded
from pipeline.report.contents import contents
from pipeline.report.history import standings
from pipeline.report.picture import write_picture
from pipeline.report.table import print_outcomes, print_table
from pipeline.schedule.baseline import figures_of
from pipeline.store import Store, read_store, rows, term_rows
from pipeline.summary import one_line, summarise
from pipeline.track import track
from tests.pipeline.test_track import inspect, offline_runs

GOLDEN = Path(__file__).parents[1] / "golden" / "cut_short"
MIB = 2**20
ALONE, PAIR = "2fc55725ed49a59a", "f2fad0705f553832"
REACHED = 78_916_608
"""Working set of the call that ran out of the emulated device, bytes, as its record has it."""


@pytest.fixture
def store() -> Store:
    return read_store(GOLDEN)


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A folder with the one cell that has no finished call."""
    out = tmp_path / "alone"
    for part, name in (("specs", f"{ALONE}.json"), ("records", f"{ALONE}.a0.r0.jsonl")):
        (out / part).mkdir(parents=True)
        shutil.copy(GOLDEN / part / name, out / part / name)
    return out


def test_a_row_has_what_was_reached_and_no_observation(store: Store) -> None:
    """Reference: the record itself; two of the five calls ran to their end."""
    table = rows(store)
    (row,) = [row for row in table if row["key"] == ALONE]
    assert (row["outcome"], row["reached_bytes"]) == ("oom-device", REACHED)
    assert row["reached_at"] == "recompute decoder.layers.3.mlp.experts.fc1 add.Tensor"
    assert {row[name] for name in row if name.startswith("observed")} == {None}
    assert (row["residual_bytes"], row["error_percent"], row["covered"]) == (None, None, None)
    ended = [row for row in table if row["covered"] is not None]
    assert [(row["key"], row["call"], row["rank"]) for row in ended] == [(PAIR, 0, 0), (PAIR, 0, 1)]
    assert all(row["reached_bytes"] is None for row in ended)
    assert {(row["key"], row["call"]) for row in term_rows(store)} == {(PAIR, 0)}


def test_errors_and_coverage_are_of_finished_calls_alone(store: Store) -> None:
    """Reference: by hand, from the two finished calls' own figures."""
    by_kind = {(s.fullest["key"], s.fullest["temperature"]): s for s in summarise(rows(store))}
    counts = {kind: (s.covered, s.observed, s.failed) for kind, s in by_kind.items()}
    assert counts == {
        (ALONE, "cold"): (0, 0, 1),
        (PAIR, "cold"): (2, 2, 0),
        (PAIR, "warm"): (0, 0, 2),
    }
    expected, seen = 883_648, (929_792, 879_104)
    worst = max((100 * (one - expected) / expected for one in seen), key=abs)
    assert by_kind[PAIR, "cold"].worst_percent == pytest.approx(worst)
    assert "observed" not in one_line([row for row in rows(store) if row["key"] == ALONE])
    (standing,) = standings(store)
    assert (standing.calls, standing.covered) == (2, 2)
    held = figures_of(store, "tonight")
    assert {(f.outcome, f.observed) for f in held.values()} == {("failed", 0), ("failed", 2)}


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_shows_the_outcome_and_the_line_below_where_it_was(
    alone: Path, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: the record; a share of a peak that was not seen would be a percentage."""
    console = Console(width=width)
    print_table(console, read_store(alone))
    table = capsys.readouterr().out
    assert "oom-device" in table
    assert "%" not in table
    print_outcomes(console, read_store(alone))
    assert (
        "  rank 0 call 0 was cut short at 75.26 MiB in recompute decoder.layers.3.mlp.experts.fc1 "
        "add.Tensor (expected 92.16, bound 94.00)\n"
    ) in capsys.readouterr().out


def test_one_of_several_is_named_and_the_others_counted(store: Store) -> None:
    """Reference: the records; rank 1 held 535,552 bytes, rank 0 526,848."""
    (pair,) = [cell for cell in store.cells if cell.key == PAIR]
    assert pair.error.startswith("rank 1: OutOfMemoryError"), "rank 0 only lost its peer"
    warm = summarise([row for row in rows(store) if (row["key"], row["call"]) == (PAIR, 1)])
    assert [one.fullest["rank"] for one in warm] == [1]
    assert told(pair).startswith("rank 1 call 1 was cut short at 0.51 MiB in forward decoder.")
    assert told(pair).endswith("; so was 1 other call, at less")


def test_the_page_keeps_it_apart(store: Store, alone: Path) -> None:
    """Reference: the store's rows; a timeline is drawn of what was seen, and no point."""
    held = contents(store)
    calls, cells = held["calls"], held["cells"]
    place = calls["reached"].index(REACHED)
    assert calls["observed"][place] is calls["error"][place] is calls["garbage"][place] is None
    assert "was cut short at 75.26 MiB" in cells["error"][calls["cell"][place]]
    assert max(held["details"]["calls"][str(place)]["live"]) == REACHED
    planned = [column[place] for column in held["terms"]["planned"]]
    residual = [column[place] for column in held["terms"]["residual"]]
    assert sum(planned) + sum(residual) == REACHED
    assert held["groups"]["failed"] == [0, 2, 1]
    with pytest.raises(ValueError, match="no observed call"):
        write_picture(read_store(alone), alone / "picture.svg")


def test_a_fit_leaves_it_out_and_the_gate_fails(alone: Path) -> None:
    """Reference: two of five calls ran to their end; who ran out of memory was admitted."""
    found = read_recorded(GOLDEN)
    assert len(found.sightings) == 2
    assert sorted(found.excluded) == [
        "ep1_cp1 even pair: outcome oom-device (1 records)",
        "ep2_cp1 random pair: outcome error (1 records)",
        "ep2_cp1 random pair: outcome oom-device (1 records)",
    ]
    assert ran_out(found.excluded) == [one for one in found.excluded if "oom" in one]
    with pytest.raises(RecordedError, match="outcome oom-device"):
        read_recorded(alone)


def test_above_its_bound_a_call_that_was_cut_short_proves_it_wrong(alone: Path) -> None:
    """Law: a peak is no lower than what was reached on the way to it."""
    file = alone / "records" / f"{ALONE}.a0.r0.jsonl"
    line = json.loads(file.read_text())
    line |= {"outcome": "error"}
    line["planned"]["bound_bytes"] = REACHED - 1
    file.write_text(json.dumps(line) + "\n")
    (cell,) = read_store(alone).cells
    assert "which it had passed)" in told(cell)
    for part in ("specs", "records"):
        for path in (GOLDEN / part).glob(f"{PAIR}*"):
            shutil.copy(path, alone / part / path.name)
    (reason,) = [one for one in read_recorded(alone).excluded if one.startswith("ep1")]
    assert reason == "ep1_cp1 even pair: outcome error, cut short above its bound (1 records)"
    gate = CliRunner().invoke(
        application("gate"), ["gate", "--records", str(alone), "--coefficients", "megatron-local"]
    )
    assert gate.exit_code == 1
    assert f"gate: ran out of memory, or passed its bound: {reason}" in gate.output
    assert f"not held against it: {reason}" not in gate.output


def test_the_tracker_says_how_many_were_cut_short(alone: Path) -> None:
    """Reference: the record, through W&B's own reader."""
    track(read_store(alone), mode="offline", project="peakcast", group="g")
    (run,) = offline_runs(alone)
    figures = json.loads(inspect(run, "--summary"))["summary"]
    assert figures["rank0/reached_bytes"] == REACHED
    assert (figures["outcome"], figures["observed_calls"]) == ("failed", 0)
    assert figures["cut_short_calls"] == 1
    assert not [name for name in figures if "error" in name or "coverage" in name]
    assert "max_observed_working_set_bytes" not in figures
