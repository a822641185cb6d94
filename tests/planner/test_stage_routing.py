"""Measured routing over pipeline stages: each stage takes its own layers' shares."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import Batch, Model, Routing, Step, Topology, compile_pricer
from planner.stages import stage_of

LAYERS, EXPERTS, EP = 6, 8, 2
MODEL = Model(
    name="staged",
    num_layers=LAYERS,
    hidden=64,
    vocab=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    num_experts=EXPERTS,
    top_k=2,
    expert_hidden=32,
)
PIPELINES = (
    {"pp": 1},
    {"pp": 2},
    {"pp": 3, "vpp": 2},
    {"pp": 2, "stage_layers": (1, 5)},
    {"pp": 3, "stage_layers": (0, 2, 4)},
)
BATCH = Batch(requests=[100, 300, 500, 700])


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    """Draw shares of every layer and expert."""
    weight = st.integers(1, 50)
    rows = draw(
        st.lists(
            st.lists(weight, min_size=EXPERTS, max_size=EXPERTS), min_size=LAYERS, max_size=LAYERS
        )
    )
    return Routing.measured([[one / sum(row) for one in row] for row in rows])


def prices(pipeline: dict[str, object], routing: Routing, table: str = "megatron-te"):
    topology = Topology(dp=2, cp=2, ep=EP, **pipeline)
    pricer = compile_pricer(
        MODEL, topology, Step(microbatches=3), coefficients=table, routing=routing
    )
    return topology, pricer.price_ranks(BATCH)


@settings(max_examples=25)
@given(routings(), st.sampled_from(PIPELINES))
def test_a_stages_rows_are_its_layers_of_the_whole(routing, pipeline):
    """Law: a rank's rows are the slice of its layers of what the same rank has without stages."""
    _, whole = prices({"pp": 1}, routing)
    topology, staged = prices(pipeline, routing)
    size = topology.world // topology.pp
    seen = []
    for rank, price in enumerate(staged):
        stage = stage_of(LAYERS, topology, topology.pp_rank(rank), 3)
        alone = whole[rank % size].routed_rows
        assert price.routed_rows == tuple(alone[layer] for layer in stage.layers)
        seen += stage.layers if rank % size == 0 else ()
    assert sorted(seen) == list(range(LAYERS)), "every layer lies on one stage"


def test_a_skewed_layer_fills_its_own_stage_alone():
    """Derivation: every pair of layer 4 goes to expert rank 0; other stages are as if balanced."""
    even = [1 / EXPERTS] * EXPERTS
    skewed = [2 / EXPERTS] * (EXPERTS // 2) + [0.0] * (EXPERTS // 2)
    routing = Routing.measured([skewed if layer == 4 else even for layer in range(LAYERS)])
    topology, staged = prices({"pp": 2}, routing)
    _, balanced = prices({"pp": 2}, Routing.measured([even] * LAYERS))
    size = topology.world // topology.pp
    assert [p.expected_bytes for p in staged[:size]] == [p.expected_bytes for p in balanced[:size]]
    for mine, other in zip(staged[size:], balanced[size:], strict=True):
        busy = topology.ep_rank(mine.rank) == 0
        assert (mine.expected_bytes > other.expected_bytes) == busy
        assert mine.routed_rows[1] == (2 * other.routed_rows[1] if busy else 0)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_equal_layers_are_priced_as_one_figure(pipeline):
    """Law: where every layer has the same shares a stage folds; the price must not move.

    Reference: the sum over every layer, which shares that differ by rounding alone go through.
    """
    row = [0.2, 0.1, 0.1, 0.1, 0.05, 0.15, 0.1, 0.2]
    nearly = [*row[:-2], row[-2] + 1e-12, row[-1] - 1e-12]
    _, folded = prices(pipeline, Routing.measured([row] * LAYERS))
    rows = [nearly if layer % 2 else row for layer in range(LAYERS)]
    _, summed = prices(pipeline, Routing.measured(rows))
    for one, other in zip(folded, summed, strict=True):
        for mine, theirs in zip(one.routed_rows, other.routed_rows, strict=True):
            assert abs(mine - theirs) <= 1
        assert other.expected_bytes == pytest.approx(one.expected_bytes, rel=1e-3)
