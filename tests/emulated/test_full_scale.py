"""Full size on PyTorch's own allocator, computing nothing: prices, replay, a device's edge."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobs.record import RankRecord, read_records, record_path
from jobs.spec import CellSpec
from pipeline.gpu_cells import cells
from planner.fragments import FIXED
from planner.units import GIB
from tests.emulated.emulated import MIB, on_device

OUTSIDE = 516 * MIB
"""Of the emulated device: its context, and what was there before it."""

CELL = ("model=qwen3_30b_a3b", "model.num_layers=4", "workload=even_16k", "calls=pair")


def ran(spec: CellSpec, out: Path, **settings: object) -> list[RankRecord]:
    """Run a cell without kernels; return its records."""
    path = out / "specs" / f"{spec.key}.json"
    path.parent.mkdir(parents=True)
    spec.write(path)
    done = on_device("tests/emulated/full_scale.py", str(path), str(out), **settings)
    found, faults = read_records(record_path(out, spec.key, 0, 0))
    assert found, done.stdout + done.stderr
    assert not faults
    return found


@pytest.fixture(scope="module")
def spec() -> CellSpec:
    """One cell of ``study=h200_single``, of another model."""
    return cells("h200_single", *CELL)[0]


@pytest.fixture(scope="module")
def unlimited(spec, tmp_path_factory) -> list[RankRecord]:
    """Its calls on a device that has room."""
    return ran(spec, tmp_path_factory.mktemp("unlimited"))


def test_the_price_is_what_the_allocator_hands_out(unlimited) -> None:
    """Reference: PyTorch's own statistics of the call; the bar of `make gpu-check` is 10 %."""
    for record in unlimited:
        device, planned = record.observed.device, record.planned
        peak = device["allocated_peak_bytes"] - device["allocated_before_bytes"]
        peak += record.observed.held_over_bytes
        assert peak == pytest.approx(planned.expected_bytes, rel=0.02), record.call
        assert peak <= planned.bound_bytes, record.call


def test_reserved_bytes_are_replayed_from_the_ledger(unlimited) -> None:
    """Reference: what PyTorch has taken from the device, cuBLAS's workspaces apart."""
    for record in unlimited:
        device = record.observed.device
        seen = device["reserved_peak_bytes"]
        assert device["replayed_reserved_bytes"] == pytest.approx(seen, rel=0.06), record.call


def room_of(unlimited) -> int:
    """What the device has free when the planner first looks, on a device that the weights fill."""
    return unlimited[0].observed.device["used_before_bytes"]


def test_a_call_that_is_admitted_runs(spec, unlimited, tmp_path) -> None:
    """Law: on the smallest device on which the planner admits the calls, they run."""
    bound = unlimited[0].planned.bound_bytes
    room = bound + FIXED.lost(bound) + MIB
    found = ran(spec, tmp_path, bytes=room_of(unlimited) + room)
    assert [record.outcome for record in found] == ["ok", "ok"]
    assert {record.planned.decision["verdict"] for record in found} == {"admit"}


def test_a_call_without_room_for_fragments_is_not_run(spec, unlimited, tmp_path) -> None:
    """Law: a device that lacks what fragments take has the call split or refused, never starved."""
    room = unlimited[0].planned.bound_bytes
    found = ran(spec, tmp_path, bytes=room_of(unlimited) + room)
    assert "oom-device" not in {record.outcome for record in found}
    assert found[0].planned.decision["verdict"] != "admit"


def test_what_is_set_aside_is_needed(spec, unlimited, tmp_path) -> None:
    """Reference: PyTorch's allocator runs out where the bound alone would just fit."""
    bold = replace(spec, meter=replace(spec.meter, budget_gib=1000.0))
    room = unlimited[0].planned.bound_bytes
    found = ran(bold, tmp_path, bytes=room_of(unlimited) + room)
    assert found[-1].outcome == "oom-device"
    assert "CUDA out of memory" in found[-1].error
    assert found[-1].observed.device["fragments_bytes"] == 0, "with a budget nothing is set aside"
    assert room > GIB
