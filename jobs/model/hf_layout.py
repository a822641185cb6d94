"""The Hugging Face Qwen3-MoE layout: which tensor is which rows of which parameter.

The shared expert and its gate, which Qwen3-MoE has not, lie under their Qwen2-MoE and Qwen3-Next
names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs.model.build import NORM_EPSILON, ROTARY_BASE
from planner.model import Model


@dataclass(frozen=True, slots=True)
class Piece:
    """One checkpoint tensor: the runs of rows it takes, in order, of one parameter.

    Parameters
    ----------
    name, shape
        Tensor of the checkpoint.
    parameter, expert
        Parameter of our model, and the global expert whose slice it is.
    rows
        Runs of rows of the parameter (or slice); ``None``: all.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    expert: int | None = None
    rows: tuple[slice, ...] | None = None


def pieces(model: Model) -> Iterator[Piece]:
    """Yield every tensor of the whole model's checkpoint."""
    width = (model.hidden,)
    yield Piece("model.embed_tokens.weight", (model.vocab, *width), "embedding.weight")
    for layer in range(model.num_layers):
        yield from _attention(model, f"model.layers.{layer}", f"decoder.layers.{layer}")
        yield from _experts(model, f"model.layers.{layer}.mlp", f"decoder.layers.{layer}.mlp")
    yield Piece("model.norm.weight", width, "decoder.final_layernorm.weight")
    yield Piece("lm_head.weight", (model.vocab, *width), "head.weight")


def _attention(model: Model, source: str, ours: str) -> Iterator[Piece]:
    width, dim, groups = model.hidden, model.head_dim, model.num_kv_heads
    queries = model.num_heads // groups * dim  # rows of one group's query heads
    # Megatron lays the projection out by group: its query heads, its key, its value.
    starts = [group * (queries + 2 * dim) for group in range(groups)]
    qkv = f"{ours}.self_attention.linear_qkv.weight"
    for name, first, size in (("q", 0, queries), ("k", queries, dim), ("v", queries + dim, dim)):
        rows = tuple(slice(start + first, start + first + size) for start in starts)
        shape = (groups * size, width)
        yield Piece(f"{source}.self_attn.{name}_proj.weight", shape, qkv, rows=rows)
    attention = f"{ours}.self_attention"
    shape = (width, model.num_heads * dim)
    yield Piece(f"{source}.self_attn.o_proj.weight", shape, f"{attention}.linear_proj.weight")
    yield Piece(f"{source}.self_attn.q_norm.weight", (dim,), f"{attention}.q_layernorm.weight")
    yield Piece(f"{source}.self_attn.k_norm.weight", (dim,), f"{attention}.k_layernorm.weight")
    yield Piece(f"{source}.input_layernorm.weight", (width,), f"{ours}.input_layernorm.weight")
    yield Piece(
        f"{source}.post_attention_layernorm.weight", (width,), f"{ours}.pre_mlp_layernorm.weight"
    )


def _experts(model: Model, source: str, ours: str) -> Iterator[Piece]:
    yield Piece(f"{source}.gate.weight", (model.num_experts, model.hidden), f"{ours}.router.weight")
    for expert in range(model.num_experts):
        yield from _gated_mlp(
            f"{source}.experts.{expert}",
            (f"{ours}.experts.fc1.weight", f"{ours}.experts.fc2.weight"),
            model.hidden,
            model.expert_hidden,
            expert,
        )
    if model.shared_expert_hidden:
        shared = f"{ours}.shared_experts"
        yield from _gated_mlp(
            f"{source}.shared_expert",
            (f"{shared}.linear_fc1.weight", f"{shared}.linear_fc2.weight"),
            model.hidden,
            model.shared_expert_hidden,
            None,
        )
    if model.shared_expert_gate:
        name = f"{source}.shared_expert_gate.weight"
        yield Piece(name, (1, model.hidden), f"{ours}.shared_experts.gate_weight")


def _gated_mlp(
    source: str, ours: tuple[str, str], hidden: int, width: int, expert: int | None
) -> Iterator[Piece]:
    gate, up = (slice(0, width),), (slice(width, 2 * width),)
    yield Piece(f"{source}.gate_proj.weight", (width, hidden), ours[0], expert, gate)
    yield Piece(f"{source}.up_proj.weight", (width, hidden), ours[0], expert, up)
    yield Piece(f"{source}.down_proj.weight", (hidden, width), ours[1], expert)


def config(model: Model) -> dict[str, Any]:
    """Return the keys of config.json that decide what the model computes."""
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
        "rope_theta": ROTARY_BASE,
        "shared_expert_intermediate_size": model.shared_expert_hidden,
        "tie_word_embeddings": False,
        "vocab_size": model.vocab,
    }
