"""Qwen3-MoE checkpoints, as Hugging Face lays them out.

The shared expert and its gate, which Qwen3-MoE has not, lie under their Qwen2-MoE and Qwen3-Next
names.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jobs.model.build import NORM_EPSILON
from jobs.model.hf_layout import (
    Layout,
    Piece,
    attention,
    each_expert,
    rotary,
    router_and_shared,
)
from planner.model import Model


def _pieces(model: Model, _names: Collection[str]) -> Iterator[Piece]:
    width = (model.hidden,)
    yield Piece("model.embed_tokens.weight", (model.vocab, *width), "embedding.weight")
    for layer in range(model.num_layers):
        source, ours = f"model.layers.{layer}", f"decoder.layers.{layer}"
        yield from attention(model, f"{source}.self_attn", f"{ours}.self_attention", 0.0)
        yield Piece(f"{source}.input_layernorm.weight", width, f"{ours}.input_layernorm.weight")
        name = f"{source}.post_attention_layernorm.weight"
        yield Piece(name, width, f"{ours}.pre_mlp_layernorm.weight")
        yield from router_and_shared(model, f"{source}.mlp", f"{ours}.mlp")
        yield from each_expert(model, f"{source}.mlp", f"{ours}.mlp")
    yield Piece("model.norm.weight", width, "decoder.final_layernorm.weight")
    yield Piece("lm_head.weight", (model.vocab, *width), "head.weight")


def _config(model: Model) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "head_dim": model.head_dim,
        "moe_intermediate_size": model.expert_hidden,
        "norm_topk_prob": True,
        "num_attention_heads": model.num_heads,
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.top_k,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": model.num_kv_heads,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": model.rotary_base,
        "shared_expert_intermediate_size": model.shared_expert_hidden,
        "tie_word_embeddings": False,
        "vocab_size": model.vocab,
    }


def _described(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"shared_expert_intermediate_size": 0, **config, **rotary(config)}


QWEN3 = Layout("qwen3_moe", "Qwen3MoeForCausalLM", _pieces, _config, _described)
