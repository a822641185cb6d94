"""What Transformer Engine's attention holds beside our own, from its shapes."""

from dataclasses import replace

import pytest

from planner import Model, Step, Topology, compile_pricer
from planner.batch import Batch
from planner.moments import Moment
from planner.outside import PAIR, outside_bytes

MODEL = Model(
    name="grouped",
    num_layers=4,
    hidden=2048,
    vocab=1000,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    num_experts=64,
    top_k=8,
    expert_hidden=768,
)
TOKENS = 16_384


def moments(engine: str, cp: int, model: Model = MODEL) -> dict[Moment, int]:
    """Bytes expected at each moment, by moment."""
    pricer = compile_pricer(
        model, Topology(cp=cp), Step(engine=engine), coefficients="megatron-local"
    )
    (price, *_) = pricer.price_ranks(Batch(requests=[TOKENS * cp]))
    assert not price.unpriced
    return {moment: figure.expected for moment, figure in price.moments.items()}


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_moments_differ_by_its_tensors(cp: int) -> None:
    """Reference: by hand, in bytes of bf16 a token.

    Saved: one rank's keys and values (at cp 1 the values alone, beside the keys that both hold),
    instead of those of all ranks. In backward its ring has two buffers of keys, values and the
    gradients of both, a step's gradients and those of queries summed; ours the gradients of all
    ranks' keys and values. cuDNN's scratch is fp32. Forward is fullest at the rotary positions of
    queries, at cp 4 where ours holds keys of all ranks; at its ring's last step, beside queries and
    keys (projected, normed, turned), cp + 1 outputs, cp pairs of keys and values, the values'
    copy, half the keys and values of a step, and cp + 5 statistics. Its grouped experts hold FC1's
    sum while FC2 runs.
    """
    own, theirs = moments("own", cp), moments("te", cp)
    keys, queries = 2 * 4 * 128, 2 * 32 * 128
    scratch = 4 * (3 * 32 * 128 + 32)
    saved = keys if cp == 1 else 2 * keys - 2 * cp * keys
    ring = keys if cp == 1 else 12 * keys + queries - 4 * cp * keys
    held = 3 * queries + 4 * keys
    ours = max(5 * queries + 3 * keys + 2 * 2 * 128, held + 2 * cp * keys + queries + 4 * 32)
    steps = held + (cp + 1) * queries + (2 * cp + 2) * keys + (cp + 5) * 4 * 32
    forward = 0 if cp == 1 else steps - ours
    differs = {
        Moment.RECOMPUTE_FC1: saved,
        Moment.RECOMPUTE_FC2: saved,
        Moment.RECOMPUTE_COMBINE: saved,
        Moment.BACKWARD_ROUTER: saved,
        Moment.BACKWARD_MIXER: ring + 2 * scratch,
        Moment.FORWARD_MIXER: forward,
        Moment.FORWARD_FC2: 8 * 2 * 2 * 768,
    }
    for moment, bytes_ in own.items():
        expected = bytes_ + TOKENS * differs.get(moment, 0)
        assert theirs[moment] == pytest.approx(expected, abs=8), moment


def test_scratch_of_as_many_keys_as_queries_is_a_third() -> None:
    """Reference: cuDNN expands gradients of keys and values only where queries outnumber them."""
    whole = replace(MODEL, num_kv_heads=32)
    extra = (
        moments("te", 1, whole)[Moment.BACKWARD_MIXER]
        - moments("own", 1, whole)[Moment.BACKWARD_MIXER]
    )
    assert extra == pytest.approx(TOKENS * (2 * 32 * 128 + 2 * 4 * (32 * 128 + 32)), abs=8)


@pytest.mark.parametrize(("kv_heads", "longest"), [(4, 13), (32, 6)])
def test_a_long_ring_is_said_to_be_unpriced(kv_heads: int, longest: int) -> None:
    """Reference: by hand, in query widths of a token.

    Forward keeps cp + 1 outputs and cp pairs of keys and values; backward is priced with 4, twelve
    key widths and cuDNN's scratch, 12 where queries outnumber keys and 4 where they do not.
    """
    model = replace(MODEL, num_kv_heads=kv_heads)
    for cp in (longest, longest + 1):
        pricer = compile_pricer(
            model, Topology(cp=cp), Step(engine="te"), coefficients="megatron-local"
        )
        unpriced = {part.what for part in pricer.price(Batch(tokens=TOKENS * cp)).unpriced}
        assert unpriced == (set() if cp == longest else {"attention.ring_steps"})


def test_what_its_layers_take_outside_tensors() -> None:
    """Reference: its source: a workspace for each of four streams; from three ranks on it sends to
    each neighbour through a communicator of two."""
    step = Step(device="cuda", engine="te")
    for cp, ring in ((1, 0), (2, 0), (4, 2)):
        own = outside_bytes(MODEL, Topology(cp=cp), replace(step, engine="own"), inside=0)
        theirs = outside_bytes(MODEL, Topology(cp=cp), step, inside=0)
        workspace = 4 * (32 * 2**20 + 1024)
        assert theirs.expected_bytes - own.expected_bytes == workspace + ring * PAIR.expected
        assert theirs.bound_bytes - own.bound_bytes == workspace + ring * PAIR.high


def test_a_table_without_it_says_so() -> None:
    """Reference: a declared term that a table has no copies of is unpriced."""
    step = Step(engine="te", adapters="all")
    pricer = compile_pricer(MODEL, Topology(), step, coefficients="art-traced")
    named = {part.what for part in pricer.price(Batch(tokens=TOKENS)).unpriced}
    assert {"attention.values", "attention.workspace"} <= named
