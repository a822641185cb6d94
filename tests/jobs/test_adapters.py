"""Adapters on dense projections: what they compute, and how many there are."""

import torch
from small_cells import MODEL, cell

from jobs.backend import cpu
from planner.dense_adapters import layer_width
from planner.static import held_parameters


def test_an_adapter_adds_the_product_of_its_factors_to_the_base(tmp_path):
    """Derivation: x W' + (x A) B = x (W' + A B), so that it is a layer of merged weights."""
    spec = cell(adapters="all")
    cpu.start(0, 1, spec.topology, f"file://{tmp_path}/one")
    from jobs.model.build import build_model
    from jobs.model.weights import load_weights

    model = build_model(spec)
    load_weights(model, spec)
    layer = model.decoder.layers[0]
    x = torch.randn(5, 1, MODEL.hidden)
    for linear in (layer.self_attention.linear_qkv, layer.mlp.shared_experts.linear_fc1):
        assert linear.lora_b.abs().max() > 0
        merged = linear.weight.T + linear.lora_a @ linear.lora_b
        torch.testing.assert_close(linear(x)[0], x @ merged)
        assert linear.lora_a.requires_grad
        assert not linear.weight.requires_grad
    held = held_parameters(MODEL, spec.topology, spec.step, 0)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert held.adapters + held.dense_adapters == trained
    cpu.stop()


def test_tensor_parallelism_divides_one_factor_of_each_adapter():
    """Derivation: beside (H, 2 widths) the second factor, beside (width, H) the first."""
    whole = layer_width(MODEL, 1, linear=False, moe=True)
    halved = layer_width(MODEL, 2, linear=False, moe=True)
    assert whole - halved == (whole - 4 * MODEL.hidden) // 2
