"""Families of Hugging Face models: what their configurations leave to the code that reads them.

A family is named by ``model_type``, with any ``_text`` ending left out.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What a family's code implies beyond its configuration.

    Parameters
    ----------
    expert_width_key
        Key that holds the width of one expert where it is not a ``moe_…`` key.
    dense_width_key
        Key that holds the width of layers without experts.
    shared_from_expert
        Whether one shared expert of the experts' width is implied.
    shared_gate
        Whether the shared expert is gated.
    gated_attention
        Whether attention has an output gate.
    qk_norm
        Whether queries and keys are normed by head.
    qkv_bias, output_bias, expert_bias, router_bias, attention_sinks
        Biases and sinks that no key names; ``None``: read from the configuration.
    norms_per_layer
        Norms of the stream in a layer.
    dense_from_shared
        Whether a model without experts runs the shared expert's width in every layer.
    norm_bias, mlp_bias
        Biases of norms and of dense feed-forward parts that no key names.
    learned_positions
        Key that counts learned positions.
    note
        What is not exact about the family, kept as an assumption.
    defaults
        The class's own defaults for keys that a file may leave out.
    """

    expert_width_key: str | None = None
    dense_width_key: str = "intermediate_size"
    shared_from_expert: bool = False
    shared_gate: bool = False
    gated_attention: bool = False
    qk_norm: bool = False
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    expert_bias: bool = False
    router_bias: bool = False
    attention_sinks: bool = False
    norms_per_layer: int = 2
    dense_from_shared: bool = False
    norm_bias: bool = False
    mlp_bias: bool = False
    learned_positions: str | None = None
    note: str = ""
    defaults: dict[str, Any] = field(default_factory=dict)


QWEN_HYBRID = Family(shared_gate=True, gated_attention=True, qk_norm=True)
INTERMEDIATE = Family(expert_width_key="intermediate_size")
DEEPSEEK = Family(router_bias=True)
GRANITE = Family(
    expert_width_key="intermediate_size",
    dense_from_shared=True,
    defaults={
        "num_attention_heads": 32,
        "vocab_size": 32_000,
        "intermediate_size": 11_008,
        "shared_intermediate_size": 1024,
        "tie_word_embeddings": False,
    },
)

FAMILIES: dict[str, Family] = {
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(shared_gate=True, qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True),
    "qwen3_vl_moe": Family(qk_norm=True),
    "qwen3_next": QWEN_HYBRID,
    "qwen3_5": QWEN_HYBRID,
    "qwen3_5_moe": QWEN_HYBRID,
    "mixtral": INTERMEDIATE,
    "phimoe": Family(
        expert_width_key="intermediate_size", norm_bias=True, note="bias of the head not counted"
    ),
    "olmoe": Family(
        expert_width_key="intermediate_size",
        note="norms of queries and keys over all heads not counted",
    ),
    "dbrx": Family(expert_width_key="ffn_hidden_size"),
    "llama": Family(),
    "mistral": Family(),
    "gpt2": Family(
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        learned_positions="n_positions",
        defaults={"activation_function": "gelu_new", "tie_word_embeddings": True},
    ),
    "ernie4_5_moe": Family(router_bias=True),
    "minimax": INTERMEDIATE,
    "granitemoe": GRANITE,
    "granitemoeshared": GRANITE,
    "granitemoehybrid": GRANITE,
    "gpt_oss": Family(
        expert_width_key="intermediate_size",
        qkv_bias=True,
        output_bias=True,
        expert_bias=True,
        router_bias=True,
        attention_sinks=True,
    ),
    "llama4": Family(
        expert_width_key="intermediate_size",
        dense_width_key="intermediate_size_mlp",
        shared_from_expert=True,
    ),
    "deepseek_v2": Family(),
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "glm4_moe": Family(router_bias=True, output_bias=False),
    "gemma2": Family(norms_per_layer=4),
    "gemma3": Family(norms_per_layer=4, qk_norm=True),
}
"""By ``model_type``. A family that is not here is read from its keys alone, and that is said."""


def family_of(model_type: str) -> Family | None:
    """Return the family of a ``model_type``, or ``None`` when it is not known."""
    return FAMILIES.get(model_type.removesuffix("_text"))
