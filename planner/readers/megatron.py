"""Megatron-core ``TransformerConfig`` (or a trainer's arguments) → Model.

`TransformerConfig` does not hold the vocabulary; add ``vocab_size`` (or ``padded_vocab_size``), and
``share_embeddings_and_output_weights``, to the mapping, as a trainer's arguments have them.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from planner.errors import ConfigError
from planner.mixers import LatentAttention, LinearAttention
from planner.model import Model
from planner.readers.keys import EXPERTISH, Keys
from planner.readers.rotary import megatron_rotary

WEIGHTLESS = (
    *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff"),
    *("moe_token_dispatcher_type", "moe_grouped_gemm", "moe_permute_fusion", "moe_router_dtype"),
    *("moe_use_legacy_grouped_gemm", "moe_router_pre_softmax", "moe_router_score_function"),
    *("moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk"),
    *("moe_router_topk_limited_devices", "moe_router_enable_expert_bias", "moe_input_jitter_eps"),
    *("moe_router_bias_update_rate", "moe_router_force_load_balancing", "moe_router_fusion"),
    *("moe_token_dropping", "moe_per_layer_logging", "moe_expert_capacity_factor"),
    *("moe_pad_expert_input_to_capacity", "moe_token_drop_policy", "moe_layer_recompute"),
    *("moe_shared_expert_overlap", "moe_extended_tp", "moe_apply_probs_on_input"),
    *("moe_router_padding_for_fp8", "moe_router_padding_for_quantization", "moe_enable_deepep"),
    *("moe_flex_dispatcher_backend", "moe_deepep_num_sms", "moe_hybridep_num_sms"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "moe_router_freeze_gate"),
    *("overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "moe_enable_routing_replay"),
    *(
        "use_transformer_engine_op_fuser",
        "moe_mlp_glu_interleave_size",
        "moe_upcycling_granularity",
    ),
    *(
        "moe_use_upcycling",
        "moe_one_logger",
        "num_experts_per_rank",
        "moe_use_device_initiated_grouped_gemm",
    ),
)
"""Settings of experts that change no size of the model."""

UNUSED_WITHOUT_EXPERTS = (
    *("moe_router_topk", "moe_layer_freq", "moe_shared_expert_intermediate_size"),
    *("moe_shared_expert_gate", "moe_ffn_hidden_size"),
)

EXPERT_SIZES = ("num_experts", "top_k", "expert_hidden", "shared_expert_hidden")


def read_megatron(config: object, where: str = "the Megatron configuration") -> Model:
    """Read a configuration, called ``where`` in errors; see `planner.model.Model.from_megatron`."""
    keys = Keys(_mapping(config), where)
    keys.ignore(WEIGHTLESS)
    num_layers = keys.layer_count("num_layers")
    hidden = keys.count("hidden_size", least=1)
    heads = keys.count("num_attention_heads", least=1)
    latent = _latent(keys) if keys.flag("multi_latent_attention") else None
    linear = keys.flag("add_bias_linear", default=not keys.flag("disable_bias_linear"))
    dense_hidden = keys.count("ffn_hidden_size", default=4 * hidden, least=1)
    experts = _experts(keys, num_layers, dense_hidden)
    dense_layers = experts["dense_layers"]
    linear_layers = _linear_layers(keys, num_layers)
    head_dim = latent.nope_dim + latent.rope_dim if latent else _head_dim(keys, hidden, heads)
    model = Model(
        name=keys.text("name", default="megatron"),
        num_layers=num_layers,
        hidden=hidden,
        vocab=keys.count("padded_vocab_size", "vocab_size", least=1),
        num_heads=heads,
        num_kv_heads=heads if latent else keys.count("num_query_groups", default=heads, least=1),
        head_dim=head_dim,
        **experts,
        gated_attention=keys.flag("attention_output_gate"),
        linear_attention=_linear(keys) if linear_layers else None,
        linear_layers=linear_layers,
        dense_hidden=dense_hidden if dense_layers or not experts["num_experts"] else 0,
        gated_mlp=keys.flag("gated_linear_unit", "swiglu"),
        latent_attention=latent,
        qkv_bias=linear or keys.flag("add_qkv_bias"),
        output_bias=linear,
        mlp_bias=linear,
        expert_bias=linear and experts["num_experts"] > 0,
        norm_bias=keys.text("normalization", default="LayerNorm") == "LayerNorm",
        qk_norm=keys.flag("qk_layernorm") and latent is None,
        position_embeddings=_positions(keys),
        **megatron_rotary(keys, head_dim, latent),
        tied_embeddings=_tied(keys),
        mtp_layers=keys.count("mtp_num_layers", default=0),
    )
    unread = keys.unread(EXPERTISH)
    if unread:
        raise keys.error(
            ", ".join(unread),
            "looks like a setting of experts and is not understood",
            "remove it if it has no weight, or give the model in Peakcast's own fields",
        )
    object.__setattr__(model, "assumptions", tuple(keys.assumptions))
    return model


def _mapping(config: object) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    try:
        return dict(vars(config))
    except TypeError as error:
        raise ConfigError(
            f"a Megatron configuration is a TransformerConfig, arguments or a mapping; got "
            f"{type(config).__name__}"
        ) from error


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    if keys.has("kv_channels"):
        return keys.count("kv_channels", least=1)
    if hidden % heads:
        raise keys.error(
            "num_attention_heads", f"= {heads} does not divide hidden_size", "give kv_channels"
        )
    return hidden // heads


def _tied(keys: Keys) -> bool:
    if keys.has("share_embeddings_and_output_weights"):
        return keys.flag("share_embeddings_and_output_weights")
    if not keys.has("untie_embeddings_and_output_weights"):
        keys.assume("share_embeddings_and_output_weights not given: taken as untied")
        return False
    return not keys.flag("untie_embeddings_and_output_weights")


def _positions(keys: Keys) -> int:
    if keys.text("position_embedding_type", default="rope") != "learned_absolute":
        return 0
    return keys.count("max_position_embeddings", "max_sequence_length", least=1)


def _experts(keys: Keys, num_layers: int, ffn: int) -> dict[str, Any]:
    count = keys.count("num_moe_experts", "num_experts", default=0)
    if not count:
        width = keys.find("moe_ffn_hidden_size")
        if width is not None and not keys.has("num_moe_experts", "num_experts"):
            raise keys.error("moe_ffn_hidden_size", "is given, num_moe_experts is not", "give both")
        keys.ignore(UNUSED_WITHOUT_EXPERTS)
        return dict.fromkeys(EXPERT_SIZES, 0) | {"shared_expert_gate": False, "dense_layers": None}
    pattern = _frequency(keys, num_layers)
    return {
        "num_experts": count,
        "top_k": keys.count("moe_router_topk", default=2, least=1),
        "expert_hidden": keys.count("moe_ffn_hidden_size", default=ffn, least=1),
        "shared_expert_hidden": keys.count("moe_shared_expert_intermediate_size", default=0),
        "shared_expert_gate": keys.flag("moe_shared_expert_gate"),
        "dense_layers": tuple(layer for layer, moe in enumerate(pattern) if not moe),
    }


def _frequency(keys: Keys, num_layers: int) -> list[bool]:
    found = keys.find("moe_layer_freq")
    value: Any = 1 if found is None else found[1]
    if isinstance(value, str):
        value = _pattern(keys, value)
    if isinstance(value, (list, tuple)):
        if len(value) != num_layers or any(entry not in (0, 1) for entry in value):
            raise keys.error(
                "moe_layer_freq",
                f"has {len(value)} entries for {num_layers} layers",
                "give 0 or 1 for each layer",
            )
        return [bool(entry) for entry in value]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise keys.error("moe_layer_freq", f"is {value!r}", "give a number or a list")
    return [layer % value == 0 for layer in range(num_layers)]


def _pattern(keys: Keys, text: str) -> object:
    """Read a list written as in ``[0]*1+[1]*15`` or ``([0]*3+[1]*1)*4``, without running it."""

    def read(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.List):
            return [read(entry) for entry in node.elts]
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
            left, right = read(node.left), read(node.right)
            if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
                return left + right
            if isinstance(left, list) and isinstance(right, int) and len(left) * right <= 10**4:
                return left * right
        raise ValueError(text)

    try:
        if not re.fullmatch(r"[\d\[\]()*+,\s]{1,500}", text):
            raise ValueError(text)
        return read(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, RecursionError) as error:
        raise keys.error(
            "moe_layer_freq", f"is {text!r}", "write it as a number or as '[0]*1+[1]*15'"
        ) from error


def _latent(keys: Keys) -> LatentAttention:
    return LatentAttention(
        query_rank=keys.count("q_lora_rank", default=0),
        kv_rank=keys.count("kv_lora_rank", least=1),
        nope_dim=keys.count("qk_head_dim", least=1),
        rope_dim=keys.count("qk_pos_emb_head_dim", least=1),
        value_dim=keys.count("v_head_dim", least=1),
    )


def _linear(keys: Keys) -> LinearAttention:
    return LinearAttention(
        key_heads=keys.count("linear_num_key_heads", least=1),
        key_dim=keys.count("linear_key_head_dim", least=1),
        value_heads=keys.count("linear_num_value_heads", least=1),
        value_dim=keys.count("linear_value_head_dim", least=1),
        conv_width=keys.count("linear_conv_kernel_dim", least=1),
    )


def _linear_layers(keys: Keys, num_layers: int) -> tuple[int, ...] | None:
    kind = keys.find("experimental_attention_variant", "linear_attention_type")
    every = keys.find("linear_attention_freq")
    if kind is None or kind[1] == "mla" or every is None:
        return None
    if kind[1] != "gated_delta_net":
        raise keys.error(
            kind[0], f"is {kind[1]!r}; the planner knows gated_delta_net", "choose that"
        )
    if isinstance(every[1], (list, tuple)):
        if len(every[1]) != num_layers:
            raise keys.error(
                "linear_attention_freq", "has another length than num_layers", "fix it"
            )
        return tuple(layer for layer, linear in enumerate(every[1]) if linear) or None
    step = keys.count("linear_attention_freq", least=1)
    return tuple(layer for layer in range(num_layers) if (layer + 1) % step) or None
