"""Routing plans, and fake cells that cannot be: conservation, and named errors before a run."""

from dataclasses import replace

import numpy as np
import pytest
from fake_worker import spec_of
from hypothesis import given
from hypothesis import strategies as st
from small_cells import cell
from test_fake import fake_rank

from jobs.routing_plan import RoutingPlan
from jobs.spec import CellSpec, Meter, Weights, Workload
from planner.errors import ConfigError
from planner.routing import Routing
from planner.step import Step
from planner.topology import Topology

EXPERTS, TOP_K = 16, 4


@given(
    tokens=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 9), min_size=EXPERTS, max_size=EXPERTS),
)
def test_every_token_goes_to_top_k_experts(tokens, weights):
    """Conservation: a source sends tokens x top-k rows, and no expert more than its tokens."""
    shares = np.minimum(np.array(weights) / sum(weights), 1 / TOP_K)
    shares = shares / shares.sum()
    if shares.max() > 1 / TOP_K:
        shares = np.full(EXPERTS, 1 / EXPERTS)
    plan = RoutingPlan(EXPERTS, TOP_K, (tuple(shares),))
    counts = plan.counts(0, 0, range(len(tokens)), tokens)
    assert counts.sum(1).tolist() == [held * TOP_K for held in tokens]
    assert (counts >= 0).all()
    assert (counts <= np.array(tokens)[:, None]).all()


@given(tokens=st.lists(st.integers(0, 5000), min_size=1, max_size=8))
def test_an_even_plan_is_even_over_all_sources(tokens):
    """Derivation: what is left over of one source after another goes round all experts."""
    counts = RoutingPlan(EXPERTS, TOP_K).counts(0, 0, range(len(tokens)), tokens).sum(0)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_a_skewed_plan_has_its_imbalance(ep):
    """Definition: rows of expert rank 0 over its even share."""
    shares = Routing.skewed(EXPERTS, 1, ep, 1.25).shares
    counts = RoutingPlan(EXPERTS, TOP_K, shares).counts(0, 0, range(ep), [4000] * ep)
    rows = counts[:, : EXPERTS // ep].sum()
    assert rows == pytest.approx(1.25 * 4000 * TOP_K, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RoutingPlan(2, 1, ((0.5, 0.4),)), "sum to 0.9"),
        (lambda: RoutingPlan(2, 1, ((1.0,),)), "shares of 1 experts"),
        (lambda: RoutingPlan(4, 2, ((0.7, 0.1, 0.1, 0.1),)), "no share may be above 0.5"),
        (lambda: Routing.skewed(8, 1, 2, 2.5), "imbalance of 2.5"),
        (
            lambda: RoutingPlan(2, 1, recorded=((np.array([[3, 2]]),),)).counts(0, 0, [0], [4]),
            r"sum to \[5\] rows; ranks \[0\] hold \[4\] tokens",
        ),
        (
            lambda: RoutingPlan(2, 1, recorded=((np.array([[3, 2]]),),)).counts(1, 0, [0], [5]),
            "no counts were recorded for call 1",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_named(make, said):
    """Reference: the documented errors."""
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": Weights(name="w", routing="skewed", imbalance=1.2)}, "weights.routing"),
        ({"workload": Workload(name="w", rank_tokens=(8,))}, "workload.rank_tokens"),
        ({"meter": Meter(ranks=(0,))}, "meter.ranks is a plan that real ranks cannot follow"),
        ({"backend": "fake", "meter": Meter(ranks=(1,))}, "names rank 1"),
        ({"backend": "fake", "workload": Workload(name="w", rank_tokens=(8, 8))}, "has 2 entries"),
        ({"backend": "gpu"}, "gpu"),
    ],
)
def test_a_cell_that_cannot_run_is_named(changes, said):
    """Reference: the documented errors, before anything runs."""
    with pytest.raises(ConfigError, match=said):
        replace(cell(), **changes)


def test_a_split_that_the_model_has_not_is_named():
    """Reference: the documented error."""
    spec = replace(spec_of("ep1_cp1 alltoall", "fake"), topology=Topology(tp=2))
    with pytest.raises(ConfigError, match="tp = pp = etp = 1"):
        fake_rank(spec, 0)


def wide(topology: Topology) -> CellSpec:
    """A cell whose ranks hold 4,096 tokens each, with 64 experts."""
    spec = spec_of("ep2_cp2 hybridep", "fake")
    return replace(
        spec,
        model=replace(spec.model, num_experts=64, full_attention_interval=1, linear_attention=None),
        topology=topology,
        workload=Workload(name="wide", requests=(4096 * topology.cp,) * topology.dp),
    )


def test_any_rank_of_a_wide_world_does_one_ranks_work():
    """Law: EP64 with CP8 takes as many operators of a rank as EP2 with CP2.

    An even share of rows arrives everywhere, so that routed bytes are the same to the row.
    """
    narrow = fake_rank(wide(Topology(cp=2, ep=2)), 0)
    broad = fake_rank(wide(Topology(dp=8, cp=8, ep=64)), 63)
    for one, other in zip(narrow, broad, strict=True):
        assert one.observed.routed_rows == other.observed.routed_rows
        for term in ("experts.fc2_outputs", "experts.fc1_outputs", "shared.return"):
            assert one.observed.terms[term] == other.observed.terms[term]


def test_uneven_shards_are_laid_as_given():
    """Derivation: the tokens of each rank, and half of all their rows at EP2."""
    spec = replace(
        spec_of("ep2_cp2 hybridep", "fake"), workload=Workload(name="w", rank_tokens=(96, 32))
    )
    assert spec.ranks == (0,)
    for rank, tokens in enumerate((96, 32)):
        for record in fake_rank(spec, rank):
            assert record.planned.local_tokens == tokens
            assert record.observed.routed_rows == [128] * spec.model.num_layers
            assert record.planned.routed_rows == [128] * spec.model.num_layers


@pytest.mark.parametrize("topology", [Topology(dp=2, ep=2), Topology(dp=2, cp=2, ep=4)])
def test_an_uneven_all_to_all_is_priced_on_crowded_and_idle_ranks(topology):
    """Reference: the ledger. What a rank sends is its own tokens' rows, what it receives is not.

    An idle rank is fullest where its rows come back, a crowded one at its experts.
    """
    skewed = Weights(name="skewed", routing="skewed", imbalance=1.4)
    spec = replace(wide(topology), weights=skewed, step=Step(dispatcher="alltoall"))
    for rank in (0, topology.world - 1):
        rows, sent = [], 4096 * spec.model.top_k
        for record in fake_rank(spec, rank):
            rows = record.observed.routed_rows
            assert record.observed.terms["dispatch.sent"] == sent * 2 * spec.model.hidden
            assert rank or record.planned.peak_moment == "recompute_fc2"
            assert not rank or topology.ep > 2 or record.planned.peak_moment == "recompute_combine"
            seen = record.observed.working_set_bytes
            assert record.planned.expected_bytes == pytest.approx(seen, rel=0.005)
            assert seen <= record.planned.bound_bytes
        assert abs(rows[0] - sent) > 0.1 * sent, "else both would look alike"


@pytest.mark.parametrize(("cp", "kv_heads"), [(1, 2), (1, 16), (2, 2), (2, 16)])
def test_gated_attention_is_priced_where_it_is_fullest(cp, kv_heads):
    """Reference: the ledger. At its gate's backward, or at the core's where keys weigh more."""
    spec = wide(Topology(cp=cp))
    heads = {"num_heads": 16, "num_kv_heads": kv_heads, "head_dim": 128, "gated_attention": True}
    spec = replace(spec, model=replace(spec.model, **heads), step=Step())
    for record in fake_rank(spec, 0):
        seen = record.observed.working_set_bytes
        assert record.planned.peak_moment == "backward_mixer"
        assert record.planned.expected_bytes == pytest.approx(seen, rel=0.005)
        assert seen <= record.planned.bound_bytes
