"""Valid models, topologies, steps and batches for property tests."""

from typing import Any

from hypothesis import strategies as st

from planner import Batch, LinearAttention, Model, Request, Step, Topology, shipped_tables

TABLES = st.sampled_from(shipped_tables())


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Small MoE models whose experts divide by 1, 2, 4 and 8, some with linear attention."""
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    num_experts = draw(st.sampled_from([8, 16, 64]))
    shared = draw(st.sampled_from([0, 64, 512]))
    return Model(
        name="drawn",
        num_layers=draw(st.integers(1, 12)),
        hidden=draw(st.sampled_from([128, 256, 2048])),
        vocab=draw(st.sampled_from([256, 32_000])),
        num_heads=kv_heads * draw(st.sampled_from([1, 2, 8])),
        num_kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([32, 128])),
        num_experts=num_experts,
        top_k=draw(st.integers(1, 8)),
        expert_hidden=draw(st.sampled_from([64, 512])),
        shared_expert_hidden=shared,
        shared_expert_gate=shared > 0 and draw(st.booleans()),
        gated_attention=draw(st.booleans()),
        **draw(mixers()),
    )


def mixers() -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a model with attention alone, or with three kinds of layers of linear attention."""
    sizes = LinearAttention(key_heads=4, key_dim=32, value_heads=8, value_dim=64, conv_width=4)
    return st.sampled_from(
        [
            {},
            *(
                {"full_attention_interval": every, "linear_attention": sizes}
                for every in (2, 3, 99)
            ),
        ]
    )


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Topologies of one to sixteen ranks with tp = pp = etp = 1."""
    dp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    ep = draw(st.sampled_from([d for d in (1, 2, 4, 8) if dp * cp % d == 0]))
    return Topology(dp=dp, cp=cp, ep=ep)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Full-recompute steps with adapters."""
    return Step(
        dtype=draw(st.sampled_from(["bf16", "fp32"])), lora_rank=draw(st.sampled_from([4, 8, 64]))
    )


def batches() -> st.SearchStrategy[Batch]:
    """Batches of one to twelve requests."""
    return st.lists(st.integers(1, 4000), min_size=1, max_size=12).map(
        lambda lengths: Batch(requests=lengths)
    )


def calls(topology: Topology) -> st.SearchStrategy[Batch]:
    """Batches of every kind: also without gradients or targets, and laid out by the caller."""
    slots = topology.dp * topology.cp
    requests = st.builds(
        lambda lengths, gradient, targets: Batch(
            requests=[Request(tokens=n, gradient=gradient, targets=targets) for n in lengths]
        ),
        st.lists(st.integers(1, 4000), min_size=1, max_size=6),
        st.booleans(),
        st.sampled_from([0, 1, None]),
    )
    laid = st.one_of(
        st.lists(st.integers(1, 4000), min_size=slots, max_size=slots),
        st.integers(1, 4000).map(lambda tokens: [tokens] * slots),
    )
    return st.one_of(batches(), requests, laid.map(lambda tokens: Batch(rank_tokens=tokens)))
