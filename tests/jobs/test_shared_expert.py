"""A shared expert wider than the stream, as some models have: fullest where rows are few."""

from dataclasses import replace

import pytest
from test_fake import fake_rank
from test_forward_only import scored

from planner import Step, Topology

HYBRIDEP = Step(dispatcher="hybridep")
ALLTOALL = Step(dispatcher="alltoall", adapters="all")


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize(
    ("step", "topology", "wider"),
    [
        (HYBRIDEP, Topology(dp=2, ep=2), 6),
        (ALLTOALL, Topology(dp=2, ep=2), 6),
        (ALLTOALL, Topology(), 16),
    ],
    ids=["HybridEP", "all-to-all, adapters everywhere", "one rank"],
)
def test_a_wide_shared_expert_is_a_peak_that_is_priced(step, topology, wider, gate, gradients):
    """Reference: the ledger; Qwen2-57B-A14B's shared expert is 5.7 times its stream."""
    spec = scored(
        topology,
        {
            "hidden": 256,
            "shared_expert_hidden": 256 * wider,
            "shared_expert_gate": gate,
            "num_heads": 4,
            "num_kv_heads": 2,
        },
        step,
        "1.9" if topology.ep > 1 else "even",
    )
    spec = replace(spec, workload=replace(spec.workload, gradients=gradients))
    for record in fake_rank(spec, topology.world - 1):
        planned, seen = record.planned, record.observed
        assert planned.peak_moment.endswith("_shared")
        assert planned.expected_bytes == pytest.approx(seen.working_set_bytes, rel=0.005)
        assert seen.working_set_bytes <= planned.bound_bytes
        assert seen.unattributed_bytes == 0
