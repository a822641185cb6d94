"""The CUDA backend, whole: a sweep on emulated devices, beside the same sweep on CPU ranks."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.record import RankRecord, read_records
from jobs.snapshot.history import history
from jobs.snapshot.read import read_snapshot
from tests.emulated.emulated import MIB, ROOT, on_device

CELLS = (
    *("-m", "pipeline", "study=h200_single", "study.name=emulated", "model=tiny"),
    *("model.num_layers=2", "workload=default", "weights=random", "calls=pair"),
    *("topology=ep1_cp1,ep2_cp2", "launcher.max_ranks=2", "tracker=disabled"),
)
BLAS = 2 * 32 * MIB
"""Workspaces of cuBLAS on one stream: forward's thread and backward's have a handle each."""


def records_of(out: Path) -> dict[tuple[str, int, int], RankRecord]:
    """Every record of a sweep, by topology, rank and call."""
    found = [r for path in sorted((out / "records").glob("*.jsonl")) for r in read_records(path)[0]]
    return {(r.label.split()[0], r.rank, r.call): r for r in found}


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A sweep of two cells on the emulated device, with allocator histories."""
    out = tmp_path_factory.mktemp("cuda")
    done = on_device(*CELLS, "meter.snapshot=true", f"out={out}", devices=2)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def on_cuda(swept) -> dict[tuple[str, int, int], RankRecord]:
    """Its records."""
    return records_of(swept)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory) -> dict[tuple[str, int, int], RankRecord]:
    """Records of the same cells on CPU ranks."""
    out = tmp_path_factory.mktemp("cpu")
    command = [sys.executable, *CELLS, "meter=default", "step.device=cpu", f"out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return records_of(out)


def calls(found: dict[tuple[str, int, int], RankRecord]) -> Iterator[tuple[str, RankRecord]]:
    """Each record with a name for it."""
    for key, record in sorted(found.items()):
        yield f"{key}", record


def test_the_step_is_that_of_cpu_ranks(on_cuda, on_cpu) -> None:
    """Reference: the same cell on CPU ranks: losses, routing, and what the ledger saw, by term."""
    assert on_cuda.keys() == on_cpu.keys()
    for key, record in on_cuda.items():
        cuda, cpu = record.observed, on_cpu[key].observed
        assert record.loss == pytest.approx(on_cpu[key].loss, rel=1e-3), key
        assert cuda.routed_rows == pytest.approx(cpu.routed_rows, rel=0.02), key
        assert cuda.working_set_bytes == pytest.approx(cpu.working_set_bytes, rel=0.02), key
        assert cuda.terms.keys() == cpu.terms.keys(), key


def test_prices_hold_on_the_device(on_cuda) -> None:
    """Reference: the ledger on the device's tensors, against the planner."""
    for name, record in calls(on_cuda):
        seen, planned = record.observed.working_set_bytes, record.planned
        assert seen == pytest.approx(planned.expected_bytes, rel=0.03), name
        assert seen <= planned.bound_bytes, name


def test_the_device_s_account_is_closed(on_cuda) -> None:
    """Conservation: used is PyTorch's pool, the context, and what was there before."""
    for name, record in calls(on_cuda):
        device = record.observed.device
        outside = device["context_bytes"] + device["foreign_bytes"] + device["libraries_bytes"]
        assert device["used_end_bytes"] == device["reserved_end_bytes"] + outside, name
        assert (device["context_bytes"], device["foreign_bytes"]) == (512 * MIB, 4 * MIB), name
        assert device["libraries_bytes"] == device["outside_growth_bytes"] == 0, name
        assert device["workspace_bytes"] == BLAS, name
        assert device["used_source"] == "nvml", name
        assert device["used_peak_bytes"] == device["reserved_peak_bytes"] + outside, name
        assert device["retries"] == device["ooms"] == 0, name


def test_what_a_call_leaves_is_left_in_the_allocator(on_cuda) -> None:
    """Reference: the ledger's held-over bytes, and the allocator's own bytes in use, to a block."""
    for name, record in calls(on_cuda):
        if record.call:
            cold = on_cuda[record.label.split()[0], record.rank, 0].observed
            left = record.observed.device["allocated_before_bytes"]
            left -= cold.device["allocated_before_bytes"]
            assert abs(left - record.observed.held_over_bytes) < MIB, name


def test_the_allocator_s_peak_is_the_ledger_s_and_scratch(on_cuda) -> None:
    """Law: the allocator holds what the ledger follows, and what operators take inside besides."""
    for name, record in calls(on_cuda):
        device, ledger = record.observed.device, record.observed.peak_bytes
        peak = device["allocated_peak_bytes"] - device["allocated_before_bytes"]
        assert ledger - MIB <= peak <= ledger + 96 * MIB, name
        assert device["reserved_peak_bytes"] >= device["allocated_peak_bytes"], name
        assert device["replayed_reserved_bytes"] <= device["reserved_peak_bytes"], name


def test_a_call_s_snapshot_says_what_the_meter_saw(on_cuda) -> None:
    """Reference: the allocator's own peak of the same call, ends of blocks left uncut included."""
    for name, record in calls(on_cuda):
        device = record.observed.device
        told = history(read_snapshot(Path(device["snapshot"])), record.rank)
        assert told.peak_bytes == pytest.approx(device["allocated_peak_bytes"], rel=0.02), name


def test_a_full_device_ends_the_ranks_and_is_a_result(tmp_path) -> None:
    """Reference: PyTorch's own message; what was seen until then is kept, and nothing hangs."""
    cells = [*CELLS, "topology=ep2_cp2", "meter.budget_gib=64", f"out={tmp_path}"]
    done = on_device(*cells, devices=2, bytes=(516 + 96) * MIB)
    assert done.returncode == 1, done.stdout + done.stderr
    found = records_of(tmp_path)
    outcomes = {record.outcome for record in found.values()}
    assert "oom-device" in outcomes, done.stdout
    assert outcomes <= {"oom-device", "peer-lost", "failed"}
    starved = next(r for r in found.values() if r.outcome == "oom-device")
    assert "CUDA out of memory" in starved.error
    assert starved.planned is not None
    assert starved.observed.device["ooms"] == 1
    assert 0 < starved.observed.peak_bytes < starved.planned.expected_bytes
