"""Qwen3.5-MoE and Qwen3.6 checkpoints, as Hugging Face lays them out: the text model's part.

Gated DeltaNet layers beside gated attention; norms written as their scale less one, but for the
one inside Gated DeltaNet; experts in two tensors a layer, or each with its own. The vision tower
and the multi-token-prediction layer are left out. Positions turn a quarter of a head's channels;
those of text are one sequence, so that their three interleaved parts (mrope) are one rotation.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jobs.model.build import NORM_EPSILON
from jobs.model.hf_layout import (
    Layout,
    Piece,
    all_experts,
    attention,
    each_expert,
    rotary,
    router_and_shared,
)
from planner.model import Model

PREFIXES = ("model.language_model.", "model.")
"""Beginnings of the text model's names: in the published files, and in those of text alone."""

LESS_ONE = 1.0


def _pieces(model: Model, names: Collection[str]) -> Iterator[Piece]:
    embedding = "embed_tokens.weight"
    prefix = next((p for p in PREFIXES if f"{p}{embedding}" in names), PREFIXES[0])
    apart = f"{prefix}layers.0.mlp.experts.0.gate_proj.weight" in names
    experts = each_expert if apart else all_experts
    width = (model.hidden,)
    yield Piece(f"{prefix}{embedding}", (model.vocab, *width), "embedding.weight")
    linear = frozenset(model.linear_attention_layers)
    for layer in range(model.num_layers):
        source, ours = f"{prefix}layers.{layer}", f"decoder.layers.{layer}"
        if layer in linear:
            yield from _linear_attention(model, f"{source}.linear_attn", f"{ours}.self_attention")
        else:
            mixer = (f"{source}.self_attn", f"{ours}.self_attention")
            yield from attention(model, *mixer, LESS_ONE)
        for theirs, name in (("input", "input"), ("post_attention", "pre_mlp")):
            parameter = f"{ours}.{name}_layernorm.weight"
            yield Piece(f"{source}.{theirs}_layernorm.weight", width, parameter, offset=LESS_ONE)
        yield from router_and_shared(model, f"{source}.mlp", f"{ours}.mlp")
        yield from experts(model, f"{source}.mlp", f"{ours}.mlp")
    final = "decoder.final_layernorm.weight"
    yield Piece(f"{prefix}norm.weight", width, final, offset=LESS_ONE)
    yield Piece("lm_head.weight", (model.vocab, *width), "head.weight")


def _linear_attention(model: Model, source: str, ours: str) -> Iterator[Piece]:
    """Yield a Gated DeltaNet: Megatron's one projection is q, k, v, gate, beta, alpha."""
    mixer, width = model.linear_attention, model.hidden
    assert mixer is not None
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    mixed, start = 2 * keys + values, 0
    for name, size in (
        ("qkv", mixed),
        ("z", values),
        ("b", mixer.value_heads),
        ("a", mixer.value_heads),
    ):
        rows = (slice(start, start + size),)
        where = f"{ours}.in_proj.weight"
        yield Piece(f"{source}.in_proj_{name}.weight", (size, width), where, rows=rows)
        start += size
    heads = (mixer.value_heads,)
    for name, parameter, shape in (
        ("conv1d.weight", "conv1d.weight", (mixed, 1, mixer.conv_width)),
        ("A_log", "A_log", heads),
        ("dt_bias", "dt_bias", heads),
        ("norm.weight", "out_norm.weight", (mixer.value_dim,)),
        ("out_proj.weight", "out_proj.weight", (width, values)),
    ):
        yield Piece(f"{source}.{name}", shape, f"{ours}.{parameter}")


def _config(model: Model) -> dict[str, Any]:
    linear = frozenset(model.linear_attention_layers)
    kinds = ("full_attention", "linear_attention")
    found = {
        "attn_output_gate": model.gated_attention,
        "head_dim": model.head_dim,
        "hidden_size": model.hidden,
        "layer_types": [kinds[layer in linear] for layer in range(model.num_layers)],
        "moe_intermediate_size": model.expert_hidden,
        "num_attention_heads": model.num_heads,
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.top_k,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": model.num_kv_heads,
        "partial_rotary_factor": model.turned_channels / model.head_dim,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": model.rotary_base,
        "shared_expert_intermediate_size": model.shared_expert_hidden,
        "tie_word_embeddings": False,
        "vocab_size": model.vocab,
    }
    mixer = model.linear_attention
    if mixer is not None:
        found |= {
            "linear_conv_kernel_dim": mixer.conv_width,
            "linear_key_head_dim": mixer.key_dim,
            "linear_num_key_heads": mixer.key_heads,
            "linear_num_value_heads": mixer.value_heads,
            "linear_value_head_dim": mixer.value_dim,
        }
    return found


def _described(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text model's keys; those that it may leave out have their published values."""
    tied = config.get("tie_word_embeddings", False)
    defaults = {"rms_norm_eps": NORM_EPSILON, "attn_output_gate": True, "tie_word_embeddings": tied}
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    return {**defaults, **text, **rotary(text)}


QWEN36 = Layout(
    "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration",
    _pieces,
    _config,
    _described,
    ignored=("model.visual.", "mtp."),
)
