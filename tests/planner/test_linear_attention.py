"""Layers of two kinds: each kind's terms are live at its own layers only."""

import pytest

from planner import (
    Batch,
    ConfigError,
    LinearAttention,
    Model,
    Moment,
    Step,
    Topology,
    compile_pricer,
)
from tests.conftest import qwen

KEPT = Moment.RECOMPUTE_FC2
PER_LAYER_ATTENTION = ("attention.qkv", "attention.queries", "attention.keys", "attention.output")


def of_family(terms: dict[str, int], family: str) -> int:
    return sum(size for name, size in terms.items() if name.startswith(f"{family}."))


def small(head_dim: int, linear_layers: tuple[int, ...]) -> Model:
    return Model(
        name="two kinds",
        num_layers=4,
        hidden=256,
        vocab=256,
        num_heads=8,
        num_kv_heads=2,
        head_dim=head_dim,
        num_experts=16,
        top_k=4,
        expert_hidden=128,
        linear_layers=linear_layers,
        linear_attention=LinearAttention(
            key_heads=4, key_dim=32, value_heads=8, value_dim=32, conv_width=4
        ),
    )


@pytest.mark.parametrize("cp", [1, 2, 8])
def test_what_a_token_keeps_of_a_mixer(cp):
    """Derivation: what flash-linear-attention's functions save, Qwen3.6's sizes, bf16.

    Convolution: its input, 2·2048 + 4096 channels. Norms to unit length: outputs, 2·2048. Rule: q
    and k of 32 heads of 128, v, and A of 32·64. Gated norm: the rule's output and the gate. fp32:
    softplus' argument, summed decay and a statistic of each of 32 heads, a statistic of each of
    2·16 key heads; and bf16 write strength. Context parallelism divides heads: the same a token.
    """
    wide = (2 * 2048 + 4096) + 2 * 2048 + 2 * 4096 + 4096 + 32 * 64 + 2 * 4096
    expected = 2 * wide + 4 * (3 * 32 + 2 * 16) + 2 * 32
    assert expected == 70_208
    pricer = compile_pricer(
        qwen(num_layers=8), Topology(cp=cp), Step(), coefficients="megatron-local"
    )
    (price, *_) = pricer.price_ranks(Batch(tokens=4096 * cp))
    assert of_family(price.terms_at(KEPT), "gdn") == expected * 4096


@pytest.mark.parametrize(("head_dim", "linear"), [(32, True), (256, False)])
def test_the_fullest_layer_is_of_the_larger_kind(head_dim, linear):
    """Derivation: an attention layer with narrow heads keeps less than the mixer, with wide more.

    Layers 0 and 2 have attention, 1 and 3 linear attention; one of either kind is priced, never a
    sum of both.
    """
    pricer = compile_pricer(small(head_dim, (1, 3)), Topology(), Step())
    price = pricer.price(Batch(tokens=4096))
    terms = price.terms_at(KEPT)
    attention = sum(terms[name] for name in PER_LAYER_ATTENTION)
    assert bool(of_family(terms, "gdn")) is linear
    assert bool(attention) is not linear
    assert (price.moments[KEPT].layer in (1, 3)) is linear


def test_each_kind_alone_is_priced_no_higher_than_both():
    """Law: a stage of mixed layers lies between those of the two pure models."""
    batch = Batch(tokens=4096)
    attention, linear, mixed = (
        compile_pricer(small(32, layers), Topology(), Step()).price(batch).moments
        for layers in ((), (0, 1, 2, 3), (1, 3))
    )
    assert set(attention) == set(mixed) == set(linear)
    for moment, figure in mixed.items():
        pure = [attention[moment].expected, linear[moment].expected]
        assert min(pure) <= figure.expected <= max(pure)


def test_short_requests_pay_a_state_each():
    """Derivation: a request of any length has at least one chunk, hence one state of 8·32·32."""
    pricer = compile_pricer(small(32, (0, 1, 2, 3)), Topology(), Step())

    def states(requests: list[int]) -> int:
        price = pricer.price(Batch(requests=requests))
        return price.terms_at(Moment.BACKWARD_MIXER)["gdn.states"]

    state = 8 * 32 * 32 * 2
    assert states([8] * 64) >= 2 * 64 * state
    assert states([512]) <= 2 * (512 // 64 + 1) * state


@pytest.mark.parametrize(
    ("degrees", "says"),
    [
        ({"cp": 3}, "cp = 3 does not divide the 16 key heads .* cp can be 1, 2, 4, 8, 16"),
        ({"cp": 32}, "cp = 32 does not divide the 16 key heads"),
        ({"tp": 4, "cp": 8}, "tp·cp = 4·8 does not divide the 16 key heads .* cp can be 1, 2, 4$"),
    ],
)
def test_cp_that_does_not_divide_the_key_heads_is_refused(degrees, says):
    """Reference: jobs.model.build, whose layers split the 16 key heads of Qwen3.6 over cp."""
    with pytest.raises(ConfigError, match=says):
        compile_pricer(qwen(num_layers=8), Topology(**degrees), Step())
    attention_alone = qwen(num_layers=8, linear_layers=(), linear_attention=None)
    compile_pricer(attention_alone, Topology(**degrees), Step())
