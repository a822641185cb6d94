"""Fake ranks against real ones: the same cells, routing recorded, every figure of the ledger."""

import json
from typing import Any

import numpy as np
import pytest
from fake_worker import CALLS, CASES, MODEL, spec_of

from jobs.routing_plan import RoutingPlan
from jobs.spec import CellSpec

FIGURES = ("peak_bytes", "working_set_bytes", "retained_bytes", "held_over_bytes")


@pytest.fixture(scope="module")
def real(run_ranks) -> list[dict[str, Any]]:
    return run_ranks("fake_worker.py", 4)


def fake_rank(spec: CellSpec, rank: int, plan: RoutingPlan | None = None) -> list[Any]:
    """Act as one rank of a cell; return the record of each call."""
    import torch

    from jobs.backend import fake

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    mode = fake.start(rank, spec.topology)
    try:
        with mode:
            from jobs.fake_live import FakeLoop
            from jobs.live import RecordBase
            from jobs.meter.ledger import Ledger
            from jobs.model.build import build_model
            from jobs.rank import pricer_of

            model = build_model(spec)
            ledger = Ledger()
            ledger.attach(model)
            base = RecordBase(spec, 0, rank, {})
            loop = FakeLoop(spec, rank, model, pricer_of(spec), ledger, base, plan=plan)
            return [loop.call(call) for call in range(spec.calls.measured)]
    finally:
        fake.stop()
        torch.set_num_threads(threads)


def recorded(real: list[dict[str, Any]], case: str) -> RoutingPlan:
    """Return the routing that a case's real ranks recorded."""
    taking_part = [rank[case] for rank in real if case in rank]
    return RoutingPlan(
        MODEL.num_experts,
        MODEL.top_k,
        recorded=tuple(
            tuple(
                np.array([rank[call]["routing"][layer] for rank in taking_part])
                for layer in range(MODEL.num_layers)
            )
            for call in range(CALLS)
        ),
    )


@pytest.mark.parametrize("case", CASES)
def test_a_fake_rank_sees_what_the_real_one_does(real, case):
    """Second implementation: real ranks over gloo, on the same cell with the same routing.

    A Gated DeltaNet layer and one of attention, adapters, full recompute unless said otherwise,
    cold and warm: the first and the last rank of each topology, within 0.1 %.
    """
    spec = spec_of(case, "fake")
    plan = recorded(real, case)
    for rank in sorted({0, spec.topology.world - 1}):
        for call, record in enumerate(fake_rank(spec, rank, plan)):
            wanted = real[rank][case][call]["observed"]
            seen = json.loads(record.to_line())["observed"]
            assert seen["routed_rows"] == wanted["routed_rows"], (rank, call)
            assert seen["outside_bytes"] == wanted["outside_bytes"], (rank, call)
            for figure in FIGURES:
                assert seen[figure] == pytest.approx(wanted[figure], rel=1e-3), (
                    rank,
                    call,
                    figure,
                )


def test_released_state_is_not_held_over(real):
    """Law: what each dispatcher lets go of after its layer's backward no later call begins with."""
    for rank in real[:2]:
        kept = rank["ep2_cp1 hybridep"][1]["observed"]
        released = rank["ep2_cp1 hybridep, released"][1]["observed"]
        assert released["held_over_bytes"] == 0 < kept["held_over_bytes"]
        assert released["working_set_bytes"] < kept["working_set_bytes"]


def test_a_fake_rank_says_what_a_device_would_reserve():
    """Law: segments hold at least what is live, of this call or of an earlier one."""
    highest = 0
    for record in fake_rank(spec_of(next(iter(CASES)), "fake"), 0):
        seen = record.observed
        highest = max(highest, seen.baseline_bytes + seen.peak_bytes)
        assert highest <= seen.device["replayed_reserved_bytes"] < 1.5 * highest + 2**25
