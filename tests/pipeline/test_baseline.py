"""Figures of a sweep against a stored baseline: what counts as worse, and what is stored."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.record import record_path, write_records
from pipeline.schedule.baseline import (
    TOLERANCE_PERCENT,
    BaselineError,
    Figures,
    figures_of,
    identity,
    improved,
    read_baseline,
    worse,
    write_baseline,
)
from pipeline.store import read_store
from tests.pipeline.test_store import a_cell, write

GOOD = Figures(
    label="cell", sweep="day-1", outcome="ok", worst_error_percent=1.0, covered=6, observed=6
)
BETTER_FIRST = {"a": GOOD}


def test_figures_are_those_of_the_records(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: the stub's figures, observed 1 % under; one call is put 1 byte over its bound."""
    spec = a_cell()
    write(tmp_path, stub, spec, 0, "ok", "ok", "ok")
    above = [stub.record(spec, 0, 1, call) for call in range(3)]
    above[2].observed.working_set_bytes = above[2].planned.bound_bytes + 1
    write_records(record_path(tmp_path, spec.key, 0, 1), above)
    (figures,) = figures_of(read_store(tmp_path), "day-2").values()
    assert (figures.outcome, figures.covered, figures.observed) == ("ok", 5, 6)
    assert figures.worst_error_percent == pytest.approx(10, abs=1e-4)


def test_a_cell_is_the_same_under_another_of_a_schedules_tables() -> None:
    """Reference: what a baseline compares; a schedule's table may change, the run may not."""
    mine, other = a_cell(), a_cell("coefficients=megatron-te")
    tables = ("megatron-local", "megatron-te")
    assert identity(mine, tables) == identity(other, tables)
    assert identity(mine, tables[:1]) != identity(other, tables[:1]), "a table of its own"
    assert mine.key != other.key
    assert identity(mine, tables) != identity(a_cell("workload.seed=8"), tables)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"worst_error_percent": 1.0 + TOLERANCE_PERCENT}, None),
        ({"worst_error_percent": 1.1}, "cell: worst error 1.10 %, in day-1 1.00 %"),
        ({"covered": 5}, "cell: coverage 5 of 6 calls, in day-1 6 of 6"),
        ({"outcome": "failed"}, "cell: failed, in day-1 ok"),
        ({"outcome": "refused", "observed": 0, "covered": 0}, "cell: refused, in day-1 ok"),
        ({"worst_error_percent": 0.2}, None),
    ],
)
def test_worse_is_said_with_both_figures(change: dict[str, object], says: str | None) -> None:
    """Reference: by hand, against 1 % and six of six."""
    reasons = worse({"a": replace(GOOD, **change)}, BETTER_FIRST)
    assert reasons == ([says] if says else [])


def test_a_new_cell_must_run_and_lie_within_its_bound() -> None:
    """Reference: the rule for cells without a baseline; a first run is all such cells."""
    assert worse({"b": replace(GOOD, worst_error_percent=30.0)}, BETTER_FIRST) == []
    (reason,) = worse({"b": replace(GOOD, covered=5)}, BETTER_FIRST)
    assert reason.startswith("cell: 1 of 6 calls above the bound")
    assert len(worse({"b": replace(GOOD, outcome="failed")}, {})) == 1
    assert worse({}, BETTER_FIRST) == [], "a cell that was not run got no worse"


@given(st.lists(st.floats(0, 20), min_size=1))
def test_a_baseline_never_gives_way(errors: list[float]) -> None:
    """Reference: the law; after any nights the baseline is the best of those that passed."""
    kept = BETTER_FIRST
    for error in errors:
        tonight = {"a": replace(GOOD, worst_error_percent=error)}
        if not worse(tonight, kept):
            kept = improved(tonight, kept)
    assert kept["a"].worst_error_percent == min([1.0, *errors])


def test_a_baseline_reads_back_and_a_broken_one_is_no_first_run(tmp_path: Path) -> None:
    """Reference: the contract; each fault by hand."""
    path = tmp_path / "baseline.json"
    assert read_baseline(path) is None
    write_baseline(path, BETTER_FIRST)
    assert read_baseline(path) == BETTER_FIRST
    whole = path.read_text()
    faults = ("", whole[:-20], whole.replace('"schema": 1', '"schema": 9'), "[]", '{"schema": 1}')
    for broken in (*faults, whole.replace('"covered"', '"kovered"')):
        path.write_text(broken)
        with pytest.raises(BaselineError, match=r"cannot read the baseline .* put it right, or"):
            read_baseline(path)


FULL = """
import sys
from pathlib import Path
from pipeline.schedule.baseline import BaselineError, read_baseline, write_baseline
from pipeline.schedule.lease import LeaseError, hold
folder = Path(sys.argv[1])
before = folder / "baseline.json"
from tests.pipeline.test_baseline import BETTER_FIRST
write_baseline(before, BETTER_FIRST)
try:
    (folder / "filler").write_bytes(b"x" * 10**6)
except OSError as error:
    print(error.strerror)
try:
    write_baseline(before, {f"{n}": BETTER_FIRST["a"] for n in range(100)})
except BaselineError as error:
    print(error)
try:
    with hold(folder / "lease", lambda: None, print):
        print("held")
except LeaseError as error:
    print(error)
print(read_baseline(before) == BETTER_FIRST)
"""


def test_a_full_disk_leaves_the_baseline_as_it_was(tmp_path: Path) -> None:
    """Reference: a real file system of 64 KiB, filled; the kernel's own words."""
    inside = f'mount -t tmpfs -o size=64k none {tmp_path} && exec "$0" -c "$1" {tmp_path}'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inside, sys.executable, FULL],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    if done.returncode and "unshare" in done.stderr + done.stdout:
        pytest.skip(f"needs a file system of its own: {done.stderr.strip()}")
    full = "No space left on device"
    assert done.stdout.splitlines() == [
        full,
        f"cannot write {tmp_path}/baseline.json: {full}",
        f"cannot take the lease {tmp_path}/lease: {full}",
        "True",
    ], done.stderr
