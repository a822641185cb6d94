"""Held: what stays on a trainer's rank between microbatches and steps, against sums by hand."""

import json

import pytest

from planner import Batch, Model, Moment, Step, Topology, compile_pricer
from planner.static import static_bytes
from planner.stubs import stub_elements
from tests.conftest import GOLDEN, qwen

MIB = 2**20
CASES = {
    case["id"]: case for case in json.loads((GOLDEN / "trainer_cases.json").read_text())["cases"]
}
TRAIN = {"lora_rank": 0, "recompute": "none", "head": "whole", "device": "cuda",
         "dispatcher": "alltoall", "vocab_multiple": 128}  # fmt: skip


def between(case):
    """Return the terms between calls on the last rank of a published case."""
    model, topology = Model.from_megatron(case["model"]), Topology(**case["topology"])
    step = Step(**{**TRAIN, **case["step"]})
    pricer = compile_pricer(model, topology, step, coefficients="megatron-te")
    price = pricer.price_ranks(Batch(requests=case["requests"]))[-1]
    return price.terms_at(Moment.BETWEEN_CALLS)


def test_each_virtual_stage_holds_its_last_input_and_its_gradient():
    """Reference: M03 by hand: 8 virtual stages x 2 x 8,192 tokens x 4,096 x 2 B = 16 x 64 MiB."""
    assert between(CASES["M03"]) == {"held.received": 16 * 64 * MIB}


def test_the_first_stage_is_sent_nothing_where_there_is_no_pipeline():
    """Law: stages that make their own input hold none: the first chunk of the first rank."""
    step = Step(**TRAIN, microbatches=4)
    model = qwen(num_layers=8, full_attention_interval=1, linear_attention=None)
    held = []
    for topology in (Topology(), Topology(pp=2), Topology(pp=2, vpp=2)):
        pricer = compile_pricer(model, topology, step, coefficients="megatron-te")
        prices = pricer.price_ranks(Batch(tokens=100))
        held.append([p.terms_at(Moment.BETWEEN_CALLS).get("held.received", 0) for p in prices])
    one = 2 * 100 * 2048 * 2
    assert held == [[0], [0, one], [one, 2 * one]]


@pytest.mark.parametrize(
    ("case", "size"),
    [("M01", 4 * 4096 * 1024 * 2), ("M06", 4096 * 6144 * 2), ("M08", 8 * 4 * 1024 * 512 * 2)],
)
def test_one_buffer_gathers_tokens(case, size):
    """Reference: by hand: a microbatch's tokens whole over tp; at M08 the tokens of 8 ranks."""
    assert between(CASES[case])["held.gathered"] == size


def test_dispatchers_keep_their_maps():
    """Reference: M06 by hand: 7 layers x 2,048 tokens x (13 x 8 + 4) B."""
    assert between(CASES["M06"])["held.dispatchers"] == 7 * 2048 * (13 * 8 + 4)


def test_stubs_are_one_of_each_shape():
    """Reference: M06 by hand: 4096 x 6144, 6144 x 3072, 16384 x 6144 and 6144 x 8192, bf16."""
    case = CASES["M06"]
    model, topology = Model.from_megatron(case["model"]), Topology(**case["topology"])
    by_hand = 2 * 6144 * (4096 + 3072 + 16384 + 8192)
    assert by_hand == 372 * MIB
    for fused, size in ((True, by_hand), (False, 0)):
        step = Step(**TRAIN, microbatches=32, gradient_fusion=fused)
        assert static_bytes(model, topology, step, 7).of("workspaces.stubs") == size
    frozen = Step(device="cuda", dispatcher="alltoall")
    assert static_bytes(model, topology, frozen, 7).of("workspaces.stubs") == 0


def test_stubs_of_every_kind_of_layer():
    """Reference: by hand: Gated DeltaNet, latent attention, a shared expert, a prediction layer."""
    qwen_kinds = {(True, True), (False, True)}
    hidden = 2048
    mixers = (2 * (2048 + 4096 + 32) + 2 * 4096 + 2 * 512 + 4096) * hidden  # one shape comes out
    experts = (2 * 512 + 512) * hidden  # the shared expert is as wide: the same shapes
    assert stub_elements(qwen(), Topology(), qwen_kinds) == mixers + experts
    model = Model.from_megatron(CASES["M01"]["model"])
    latent = 1536 * 1024 + 3072 * 1536 + 576 * 1024 + 4096 * 512 + 1024 * 2048
    wide = 2048 * 1024 + 1024 * 1024  # experts; the shared one, over tp, has one shape of its own
    assert stub_elements(model, Topology(tp=2, dp=2), {(False, True)}, 1) == (
        latent + wide + 1024 * 512 + 512 * 2048
    )


def test_the_fused_loss_holds_one_copy_of_logits():
    """Reference: Transformer Engine's loss writes gradients over bf16 logits: 2 B for 6."""
    sizes = []
    for head in ("whole", "fused"):
        step = Step(**{**TRAIN, "head": head})
        pricer = compile_pricer(qwen(num_layers=4), Topology(), step, coefficients="megatron-te")
        price = pricer.price(Batch(tokens=1000))
        sizes.append(price.terms_at(Moment.FORWARD_HEAD)["head.whole_logits"])
    assert sizes == [6 * 1000 * 248_320, 2 * 1000 * 248_320]


@pytest.mark.parametrize(("ranks_of_a_domain", "received"), [(8, 17 * 32 + 8), (4, 17 * 32 + 44)])
def test_deepep_keeps_a_handle_and_the_maps_of_what_it_received(ranks_of_a_domain, received):
    """Reference: by hand: 8 ranks of 100 tokens, of which 1 - (7/8)^8 reach a rank, 4 layers."""
    step = Step(**{**TRAIN, "dispatcher": "deepep", "nvlink_ranks": ranks_of_a_domain})
    model = qwen(num_layers=4, full_attention_interval=1, linear_attention=None)
    pricer = compile_pricer(model, Topology(dp=8, ep=8), step, coefficients="megatron-te")
    assert not any(part.what.startswith("dispatch") for part in pricer.unpriced)
    kept = pricer.price(Batch(requests=[100] * 8)).terms_at(Moment.RETAINED)
    share = -(-received * (8**8 - 7**8) // 8**8)
    assert kept["kept.deepep"] == 4 * (100 * 5 * 8 + 8 * 100 * share)
    assert kept["kept.router"] == 4 * 100 * (9 * 256 + 12 * 8)


def test_adapters_keep_what_they_multiply():
    """By hand, over tp 4: experts' adapters their rows' input; those of mixers the whole stream."""
    model = qwen(num_layers=4, full_attention_interval=1, linear_attention=None)
    found = []
    for adapters in ("experts", "all"):
        step = Step(recompute="none", adapters=adapters, dispatcher="alltoall", lora_rank=1)
        topology = Topology(tp=4, ep=4)
        pricer = compile_pricer(model, topology, step, coefficients="megatron-te")
        found.append(pricer.price(Batch(tokens=1000)).terms_at(Moment.RETAINED))
    rows = 1000 * 8 // 4  # an even share: four ranks hold the tokens once, and all experts
    assert found[0]["kept.dispatched"] == found[1]["kept.dispatched"] == 4 * rows * 2048 * 2
    assert found[1]["kept.gathered"] == 4 * 1000 * 2048 * 2
    assert "kept.gathered" not in found[0]
