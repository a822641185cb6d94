"""Eight bits: what projections keep of their inputs and weights, against sums by hand."""

from dataclasses import replace

import pytest

from planner import Batch, Moment, Step, Topology, compile_pricer
from planner.static import static_bytes
from tests.conftest import qwen

DENSE = qwen(
    num_layers=4, full_attention_interval=1, linear_attention=None, num_experts=0, top_k=0,
    expert_hidden=0, shared_expert_hidden=0, shared_expert_gate=False, dense_hidden=6144,
    gated_attention=False,
)  # fmt: skip
BF16 = Step(lora_rank=0, recompute="none", head="fused", device="cuda", dispatcher="alltoall")
FP8 = replace(BF16, fp8=True)
TP2 = Topology(tp=2)


def test_projections_keep_one_byte_of_each_input():
    """By hand, over tp 2: both norms give 2048/2 at 1 B for 2, FC2 takes 3072 so; output twice.

    The output of attention, 2048 wide on a rank, is kept in bf16 by attention and in eight bits by
    its projection.
    """
    kept = []
    for step in (BF16, FP8):
        pricer = compile_pricer(DENSE, TP2, step, coefficients="megatron-te")
        assert not any(part.what.startswith("beyond") for part in pricer.unpriced)
        kept.append(pricer.price(Batch(tokens=1000)).terms_at(Moment.RETAINED))
    more = {term: kept[1][term] - size for term, size in kept[0].items()}
    layers = 4 * 1000
    assert more.pop("kept.norms") == -layers * 2 * 1024
    assert more.pop("kept.dense") == -layers * 3072
    assert more.pop("kept.attention") == layers * 2048
    assert not any(more.values())


@pytest.mark.parametrize(("weights", "each"), [("copies", 4), ("own", 1)])
def test_weights_have_copies_or_are_eight_bits_themselves(weights, each):
    """By hand: a projection's weight takes 2 B and two copies of one, or one; tables stay bf16."""
    projections = 4 * 2048 * (3 * 6144 + 2 * 4096 + 2 * 512) // 2
    step = replace(FP8, fp8_weights=weights)
    now, before = (static_bytes(DENSE, TP2, s) for s in (step, BF16))
    names = ("weights.dense", "weights.eight_bit")
    assert sum(now.of(name) - before.of(name) for name in names) == projections * (each - 2)


def test_eight_bits_of_experts_and_of_other_tables_are_unpriced():
    """Reference: the declaration: what experts keep of eight bits is not known; said, not zero."""
    experts = qwen(num_layers=4, full_attention_interval=1, linear_attention=None)
    for model, step, table in (
        (experts, FP8, "megatron-te"),
        (qwen(num_layers=4), FP8, "megatron-te"),
        (DENSE, replace(FP8, recompute="full", lora_rank=8), "art-shared"),
    ):
        unpriced = compile_pricer(model, Topology(), step, coefficients=table).unpriced
        assert "beyond.eight_bit_copies" in {part.what for part in unpriced}
