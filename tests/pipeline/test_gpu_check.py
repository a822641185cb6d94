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
from jobs.spec_file import write_spec
from pipeline.asked import write_asked
from pipeline.config import cell_of
from pipeline.gpu_cells import main
from pipeline.gpu_check import BAD_INPUT, MISSED, NO_DEVICE, PASSED, STUDY, compare, verdict
from pipeline.gpu_check import main as check
from pipeline.gpu_row import rows
from pipeline.gpu_table import show
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
        (0.89, 0.89, ("working set 11.0 % under expected",)),
        (1.0, 0.85, ("allocator's peak, in parts of expected, 15.0 % under the ledger's",)),
        (1.09, 1.12, ("above the bound",)),
        (1.11, 1.11, ("working set 11.0 % over expected", "above the bound")),
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


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_are_whole_on_any_terminal(
    stub: ModuleType, spec: CellSpec, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: the record's own figures; a word that was cut ends in an ellipsis."""
    off = seen(stub, spec, 0.85, 0.97)
    show(Console(width=width), list(rows(store(spec, seen(stub, spec, 0.95, 0.97), off))))
    text = capsys.readouterr().out
    prices, device = text.split("Peak above")
    assert "…" not in text
    for line in (
        "4 layers 16x256 cold 100.00 110.00 95.00 -5.00 %",
        "4 layers 16x256 cold 100.00 110.00 85.00 -15.00 %",
    ):
        assert line in " ".join(prices.split())
    assert "95.00 97.00 90.00 88.00 1.00" in " ".join(device.split())
    assert prices.splitlines()[0].strip().endswith("MiB")
    words = "working set 15.0 % under expected; allocator's peak, in parts of expected, 12.0 % over"
    assert f"outside the limits: 4 layers 16x256 cold: {words} the ledger's\n" in text


def test_a_table_has_one_unit(
    stub: ModuleType, spec: CellSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: by hand; 100 MiB made 40 GiB, beside which 1 MiB is still to be read."""
    large = seen(stub, spec, 0.95, 0.97)
    assert large.planned is not None
    large.planned.expected_bytes, large.planned.bound_bytes = 40 << 30, 44 << 30
    large.observed.working_set_bytes = 38 << 30
    large.observed.device["reserved_peak_bytes"] = 41 << 30
    show(Console(width=80), list(rows(store(spec, large))))
    prices, device = capsys.readouterr().out.split("Peak above")
    assert "40.000 44.000 38.000 -5.00 %" in " ".join(prices.split())
    assert "41.000 0.086 0.001" in " ".join(device.split())
    assert "GiB" in prices.splitlines()[0]
    assert "GiB" in device.splitlines()[0]
    assert "MiB" not in prices + device


def test_a_folder_without_records_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: the module's exit codes."""
    for given in (["--read"], ["--read", str(tmp_path)], ["--read", str(tmp_path / "no")]):
        assert check(given) == BAD_INPUT
        assert "--read takes one folder of a sweep" in capsys.readouterr().out


def test_a_failed_cell_and_an_empty_study_are_no_success(stub: ModuleType, spec: CellSpec) -> None:
    """Reference: silence is no proof."""
    failed = replace(stub.record(spec, 0, 0, 0), outcome="oom-device", error="CUDA out of memory")
    assert verdict(store(spec, failed), []) == (
        MISSED,
        "failed: ep1_cp1 even: rank 0: CUDA out of memory; rank 0 call 0 was cut short at 99.00 "
        "MiB in backward layers.0.mlp aten.mm (expected 100.00, bound 110.00)",
    )
    assert list(rows(store(spec, replace(seen(stub, spec, 0.5, 0.5), outcome="error")))) == []
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
    text = capsys.readouterr().out
    assert "18 calls: within 10 % of expected" in text
    order = [line.split(" cold")[0] for line in text.splitlines() if " cold" in line][:18:2]
    assert order == [f"{n} layers even_{size}k " for n in (2, 4, 8) for size in (16, 49, 98)]
    lost = specs[0].key
    record_path(tmp_path, lost, 0, 0).unlink()
    assert compare(Console(width=250), tmp_path) == MISSED
    assert f"no record: python -m jobs.rank {tmp_path}/specs/{lost}.json" in capsys.readouterr().out


def test_cells_of_an_earlier_command_do_not_count(
    stub: ModuleType, spec: CellSpec, tmp_path: Path
) -> None:
    """Reference: ``asked.json``; a folder keeps what was tried before, such as a smaller model."""
    tried = composed("h200_single", "weights=planned", "model.num_layers=2", "calls=cold")
    for one, part in ((spec, 0.97), (tried, 0.5)):
        write_spec(one, tmp_path)
        write_records(record_path(tmp_path, one.key, 0, 0), [seen(stub, one, part, part)])
    write_asked(tmp_path, [spec.key])
    assert compare(Console(), tmp_path) == PASSED
    write_asked(tmp_path, [spec.key, tried.key])
    assert compare(Console(), tmp_path) == MISSED


def test_without_a_device_it_says_so_and_exits_with_three() -> None:
    """Reference: the module's exit codes; torch of this machine sees no device."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.gpu_check"], capture_output=True, text=True, check=False
    )
    if '"devices": []' not in done.stdout:
        pytest.skip("this machine has a CUDA device")
    assert done.returncode == NO_DEVICE
    assert "no CUDA device here" in done.stdout
