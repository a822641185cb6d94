"""Prices held against a CUDA device: the comparison on records, and the studies it runs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hydra import compose, initialize_config_module
from rich.console import Console

from jobs.record import RankRecord, record_path, write_records
from jobs.spec import CellSpec
from pipeline.config import cell_of
from pipeline.gpu_cells import main
from pipeline.gpu_check import MISSED, NO_DEVICE, PASSED, STUDY, compare, rows, show, verdict
from pipeline.store import Cell, Store

MIB = 2**20


def composed(study: str, *overrides: str) -> CellSpec:
    with initialize_config_module("conf", version_base="1.3"):
        return cell_of(compose("config", [f"study={study}", *overrides]))


@pytest.fixture
def spec() -> CellSpec:
    return composed("h200_single", "weights=planned", "model.num_layers=4", "calls=cold")


def store(spec: CellSpec, *records: RankRecord) -> Store:
    cell = Cell(key=spec.key, spec=spec, attempt=0, records=records)
    return Store(out=Path("out"), cells=(cell,), faults=())


def seen(stub: ModuleType, spec: CellSpec, working_set: float, allocator: float) -> RankRecord:
    """A record whose figures are parts of what was expected."""
    record = stub.record(spec, 0, 0, 0)
    expected = record.planned.expected_bytes
    device = {
        "allocated_before_bytes": 50 * MIB,
        "allocated_peak_bytes": 50 * MIB + round(allocator * expected),
        "reserved_peak_bytes": 90 * MIB,
        "replayed_reserved_bytes": 88 * MIB,
        "outside_growth_bytes": MIB,
    }
    observed = replace(
        record.observed,
        working_set_bytes=round(working_set * expected),
        peak_bytes=round(working_set * expected),
        device=device,
    )
    return replace(record, observed=observed)


@pytest.mark.parametrize(
    ("working_set", "allocator", "misses"),
    [
        (1.0, 1.0, ()),
        (0.91, 0.93, ()),
        (0.89, 0.89, ("working set -11.0% of expected",)),
        (1.0, 0.85, ("allocator's peak -15.0% of expected from the ledger's",)),
        (1.09, 1.12, ("above the bound",)),
        (1.11, 1.11, ("working set +11.0% of expected", "above the bound")),
    ],
)
def test_limits(
    stub: ModuleType, spec: CellSpec, working_set: float, allocator: float, misses: tuple[str, ...]
) -> None:
    """Reference: within 10 % of expected, never above the bound, which is 1.1 of it here."""
    held = store(spec, seen(stub, spec, working_set, allocator))
    (row,) = rows(held)
    assert row.misses == misses
    code, words = verdict(held, [row])
    assert code == (MISSED if misses else PASSED)
    assert ("1 of 1 calls" in words) == bool(misses)


def test_the_table_says_what_a_reader_needs(stub: ModuleType, spec: CellSpec, capsys) -> None:
    """Reference: the record's own figures."""
    show(Console(width=250), list(rows(store(spec, seen(stub, spec, 0.95, 0.97)))))
    text = capsys.readouterr().out
    assert "4 layers default" in text or "4 layers 16x256" in text
    assert "-5.0%" in text
    assert "90.00 MiB" in text


def test_a_failed_cell_and_an_empty_study_are_no_success(stub: ModuleType, spec: CellSpec) -> None:
    """Reference: silence is no proof."""
    failed = replace(stub.record(spec, 0, 0, 0), outcome="oom-device", error="CUDA out of memory")
    assert verdict(store(spec, failed), []) == (
        MISSED,
        f"{spec.label}: rank 0: CUDA out of memory",
    )
    untouched = store(spec, stub.record(spec, 0, 0, 0))
    assert list(rows(untouched)) == []
    assert verdict(untouched, [])[0] == MISSED


def test_the_studies_are_what_they_say(spec: CellSpec) -> None:
    """Reference: EP1 through all-to-all on one device; the published call on two."""
    assert spec.backend == "cuda"
    assert spec.step.dispatcher_at(spec.topology) == "alltoall"
    assert len(spec.ranks) == 1
    pair = composed("h200_pair", "topology=ep2_cp2", "weights=planned")
    assert pair.step.dispatcher_at(pair.topology) == "hybridep"
    assert pair.model.num_layers == 8
    assert sum(pair.workload.requests) == 194_753
    for name, tokens in (("even_16k", 16_384), ("even_49k", 49_152), ("even_98k", 98_304)):
        workload = composed("h200_single", "weights=planned", f"workload={name}").workload
        assert sum(workload.requests) == tokens


def test_cells_of_the_study_can_be_run_by_hand(stub: ModuleType, tmp_path: Path, capsys) -> None:
    """Reference: nine cells, two to eight layers by three sizes; records are read back."""
    main(tmp_path, STUDY)
    specs = [CellSpec.read(path) for path in (tmp_path / "specs").iterdir()]
    sizes = {(one.model.num_layers, sum(one.workload.requests)) for one in specs}
    assert sizes == {(n, tokens) for n in (2, 4, 8) for tokens in (16_384, 49_152, 98_304)}
    assert {(one.backend, one.calls.measured) for one in specs} == {("cuda", 2)}
    for one in specs:
        records = [replace(seen(stub, one, 0.97, 0.98), call=call) for call in range(2)]
        write_records(record_path(tmp_path, one.key, 0, 0), records)
    assert compare(Console(width=250), tmp_path) == PASSED
    assert "18 calls: within 10% of expected" in capsys.readouterr().out


def test_without_a_device_it_says_so_and_exits_with_three() -> None:
    """Reference: the module's exit codes; torch of this machine sees no device."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.gpu_check"], capture_output=True, text=True, check=False
    )
    if '"devices": []' not in done.stdout:
        pytest.skip("this machine has a CUDA device")
    assert done.returncode == NO_DEVICE
    assert "no CUDA device here" in done.stdout
