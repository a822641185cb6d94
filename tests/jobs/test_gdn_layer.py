"""A Gated DeltaNet layer against Megatron's own forward; gated attention against its gate."""

from dataclasses import replace

import pytest
import torch
from small_cells import MODEL, cell

from jobs.layout import RequestLayout
from jobs.model.build import build_model
from jobs.model.weights import draw_weights
from planner.mixers import LinearAttention

HYBRID = replace(
    MODEL,
    name="hybrid",
    full_attention_interval=2,
    gated_attention=True,
    linear_attention=LinearAttention(
        key_heads=2, key_dim=12, value_heads=4, value_dim=8, conv_width=4
    ),
)
TOKENS = 150


@pytest.fixture
def model(one_rank):
    """The model with every weight trainable, fp32."""
    built = build_model(cell(model=HYBRID, lora_rank=0, recompute="none"))
    draw_weights(built, seed=5)
    return built


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(mixer, run) -> dict[str, torch.Tensor]:
    """Output and the gradients of the input and of every parameter of a mixer."""
    x = drawn(TOKENS, 1, MODEL.hidden, seed=1).requires_grad_()
    mixer.zero_grad(set_to_none=True)
    out, _ = run(x)
    out.backward(drawn(*out.shape, seed=2))
    found = {name: p.grad.clone() for name, p in mixer.named_parameters()}
    return found | {"output": out.detach(), "input": x.grad}


def unit(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def test_a_layer_is_megatrons(model, monkeypatch):
    """Second implementation: `GatedDeltaNet.forward` of megatron-core with its own chunk rule.

    It takes one sequence only, and its norm to unit length comes from a package that is not here.
    """
    from megatron.core.ssm import gated_delta_net

    mixer = model.decoder.layers[0].self_attention
    layout = RequestLayout((TOKENS,), 1, 0)
    ours = gradients(mixer, lambda x: mixer(x, None, packed_seq_params=layout))
    monkeypatch.setattr(gated_delta_net, "l2norm", unit, raising=False)
    monkeypatch.setattr(mixer.config, "deterministic_mode", True)
    own = gated_delta_net.GatedDeltaNet.forward
    theirs = gradients(mixer, lambda x: own(mixer, x, None))
    assert set(ours) == set(theirs)
    assert {"A_log", "dt_bias", "conv1d.weight", "out_norm.weight"} <= set(ours)
    for name, other in theirs.items():
        assert (ours[name] - other).abs().max() <= 1e-5 * other.abs().max(), name


def test_the_gate_scales_attentions_output(model):
    """Second implementation: Megatron's `_apply_output_gate`, eager."""
    from megatron.core.transformer.attention import Attention

    attention = model.decoder.layers[1].self_attention
    width = (MODEL.num_heads, MODEL.head_dim)
    inputs = [drawn(7, 1, width[0] * width[1], seed=3), drawn(7, 1, *width, seed=4)]
    results = []
    for gate_of in (
        attention._apply_output_gate,
        lambda *a: Attention._apply_output_gate(None, *a),
    ):
        x, gate = (part.clone().requires_grad_() for part in inputs)
        out = gate_of(x, gate)
        results.append([out, *torch.autograd.grad(out, (x, gate), drawn(*out.shape, seed=6))])
    for mine, other in zip(*results, strict=True):
        assert mine.shape == other.shape
        assert torch.allclose(mine, other, rtol=1e-6, atol=1e-6)


def test_a_rank_without_tokens_runs(model):
    """Contract: a replica without requests takes part in a step, in layers of both kinds."""
    for layer in model.decoder.layers:
        x = torch.empty(0, 1, MODEL.hidden, requires_grad=True)
        angles = torch.empty(0, 1, 1, MODEL.head_dim)
        out, _ = layer.self_attention(
            x, None, rotary_pos_emb=angles, packed_seq_params=RequestLayout((), 1, 0)
        )
        out.sum().backward()
        assert out.shape == x.shape == x.grad.shape
