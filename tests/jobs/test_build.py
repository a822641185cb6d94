"""Models that cannot run here are refused, and what a built model tells."""

from dataclasses import replace

import pytest
import torch
from small_cells import MODEL, cell

from jobs.model.build import build_model, routed_rows
from jobs.model.weights import load_weights
from jobs.workload import local_batch
from planner.errors import ConfigError
from planner.mixers import LinearAttention

MIXER = LinearAttention(key_heads=3, key_dim=8, value_heads=6, value_dim=8, conv_width=4)

REFUSED = {
    "linear attention over cp": (
        {"full_attention_interval": 2, "linear_attention": MIXER},
        "cp = 2 does not divide the 3 key heads",
    ),
    "linear attention's heads": (
        {"full_attention_interval": 2, "linear_attention": replace(MIXER, value_heads=4)},
        "value_heads = 4 of small must be a multiple of key_heads = 3",
    ),
    "odd head": ({"head_dim": 15}, "head_dim = 15 must be even"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_run_is_refused(name):
    """Contract: an error names the value and the way out, before anything is built."""
    change, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        build_model(cell("ep1_cp2", model=replace(MODEL, **change)))


@pytest.mark.parametrize("dispatcher", ["allgather", "deepep"])
def test_a_dispatcher_that_cannot_run_is_refused(dispatcher):
    """Contract: as above."""
    topology = "ep2_cp1" if dispatcher == "deepep" else "ep1_cp1"
    with pytest.raises(ConfigError, match=f"dispatcher {dispatcher} cannot run"):
        build_model(cell(topology, dispatcher=dispatcher))


def test_experts_that_do_not_divide_are_refused():
    """Contract: as above."""
    with pytest.raises(ConfigError, match="ep = 2 does not divide the 7 experts"):
        build_model(cell("ep2_cp1", model=replace(MODEL, num_experts=7)))


@pytest.mark.usefixtures("one_rank")
def test_routed_rows_of_one_rank():
    """Derivation: one rank gets every routed pair, tokens x top-k."""
    spec = cell(requests=(20, 11))
    model = build_model(spec)
    load_weights(model, spec)
    model(local_batch(spec, 0, 0))
    assert routed_rows(model) == [31 * MODEL.top_k] * MODEL.num_layers


@pytest.mark.usefixtures("one_rank")
def test_a_model_without_shared_expert_runs():
    """Derivation: Qwen3-30B-A3B has none."""
    spec = cell(model=replace(MODEL, shared_expert_hidden=0, shared_expert_gate=False))
    model = build_model(spec)
    load_weights(model, spec)
    loss = model(local_batch(spec, 0, 0))
    loss.backward()
    assert loss.isfinite()


@pytest.mark.usefixtures("one_rank")
def test_positions_turn_the_channels_that_they_should():
    """Second implementation: halves rotated by position x base^(-2i/channels), the rest untouched.

    As Hugging Face's Qwen3.5 code has it, there for a quarter of the channels at base 1e7.
    """
    turned, base = 8, 1000
    spec = cell(
        requests=(20,), model=replace(MODEL, rotary_channels=turned, rotary_base=base), dtype="fp32"
    )
    model = build_model(spec)
    load_weights(model, spec)
    attention, seen = model.decoder.layers[0].self_attention, {}
    attention.q_layernorm.register_forward_hook(lambda *a: seen.update(before=a[2]))
    attention.core_attention.register_forward_pre_hook(lambda _, args: seen.update(after=args[0]))
    batch = local_batch(spec, 0, 0)
    model(batch)
    before, after = seen["before"].reshape(seen["after"].shape), seen["after"]
    assert before.shape[-1] == MODEL.head_dim > turned
    angles = batch.positions[:, None] * base ** (-torch.arange(0, turned, 2) / turned)
    cosine, sine = (f(angles)[:, None, None, :] for f in (torch.cos, torch.sin))
    first, second = before[..., : turned // 2], before[..., turned // 2 : turned]
    wanted = (first * cosine - second * sine, second * cosine + first * sine)
    torch.testing.assert_close(after, torch.cat((*wanted, before[..., turned:]), -1))
