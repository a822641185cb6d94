"""Experts of a Hugging Face configuration, by every spelling that is in use."""

import re
from dataclasses import dataclass

from planner.readers.families import Family
from planner.readers.keys import Keys

COUNT = (
    *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    *("num_routed_experts", "n_experts", "num_moe_experts"),
)
TOP_K = (
    *("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk", "moe_top_k"),
    *("moe_k", "num_selected_experts", "top_k_experts", "num_activated_experts", "moe_router_topk"),
)
WIDTH = (
    *("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size"),
    *("expert_intermediate_size", "moe_hidden_size", "routed_expert_intermediate_size"),
)
SHARED_WIDTH = (
    *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    *("shared_intermediate_size", "share_expert_dim"),
)
SHARED_COUNT = (
    *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
)
WEIGHTLESS = (
    *("norm_topk_prob", "router_aux_loss_coef", "output_router_logits", "routed_scaling_factor"),
    *("moe_router_scaling_factor", "moe_layer_norm_type", "expert_capacity", "moe_capacity"),
    *("moe_aux_loss_coeff", "moe_dropout", "moe_router_topk_scaling_factor", "moe_token_dropping"),
    *("moe_router_score_function", "moe_use_aux_free", "moe_norm_min", "num_experts_per_group"),
    *("moe_router_enable_expert_bias", "moe_drop_tokens", "moe_random_routing_dropped_token"),
    *("use_mixed_mlp_moe", "moe_router_activation_func", "expert_dropout", "moe_eval_capacity"),
    *(
        "moe_apply_router_weight_on_input",
        "moe_token_drop_policy",
        "moe_backend",
        "norm_expert_weight",
    ),
)
"""Keys that name experts and change no size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The feed-forward parts of a model: routed and shared experts, and layers without."""

    count: int
    top_k: int
    width: int
    shared: int
    shared_gate: bool
    dense_width: int
    dense_layers: tuple[int, ...] | None


def read_experts(keys: Keys, family: Family, num_layers: int) -> Experts:
    """Read the experts; `ConfigError` names a key that is missing, wrong or not understood."""
    keys.ignore(WEIGHTLESS)
    count = keys.count(*COUNT, default=0)
    if count == 0:
        return _dense(keys, family)
    dense_layers = read_dense_layers(keys, num_layers)
    top_k = keys.count(*TOP_K, least=1)
    if top_k > count:
        raise keys.error(
            (keys.find(*TOP_K) or ("top_k", 0))[0],
            f"= {top_k} is more than the {count} experts",
            "correct one of them",
        )
    width = _width(keys, family, mixed=bool(dense_layers))
    shared, gated = _shared(keys, family, width)
    if len(dense_layers) == num_layers:
        keys.assume(f"{count} experts are named but no layer has them: read as dense")
        return Experts(
            count=0,
            top_k=0,
            width=0,
            shared=0,
            shared_gate=False,
            dense_width=keys.count(family.dense_width_key, least=1),
            dense_layers=None,
        )
    return Experts(
        count=count,
        top_k=top_k,
        width=width,
        shared=shared,
        shared_gate=gated,
        dense_width=keys.count(family.dense_width_key, least=1) if dense_layers else 0,
        dense_layers=dense_layers,
    )


def _dense(keys: Keys, family: Family) -> Experts:
    """Read a model without experts; a file that hints at some is an error, not a dense model."""
    hints = [name for name in (*TOP_K, *WIDTH, *SHARED_COUNT) if keys.has(name)]
    active = [name for name in hints if keys.count(name, default=0)]
    named = keys.has(*COUNT)
    if active and not named:
        raise keys.error(
            ", ".join(active),
            "speaks of experts, but their number is not given",
            f"add {COUNT[0]}",
        )
    if active:
        keys.assume(f"{COUNT[0]} is 0: {', '.join(active)} unused")
    keys.ignore(
        (
            *("first_k_dense_replace", "moe_layer_freq", "mlp_only_layers", "decoder_sparse_step"),
            *("interleave_moe_layer_step", "moe_layers", "num_dense_layers", *SHARED_WIDTH),
        )
        if named
        else ()
    )
    name = "shared_intermediate_size" if family.dense_from_shared else family.dense_width_key
    names = (name, "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff")
    if family.learned_positions and not keys.has(*names):  # GPT-2's own rule
        width = 4 * keys.count("n_embd", "hidden_size", least=1)
    else:
        width = keys.count(*dict.fromkeys(names), least=1)
    return Experts(
        count=0,
        top_k=0,
        width=0,
        shared=0,
        shared_gate=False,
        dense_width=width,
        dense_layers=None,
    )


def _width(keys: Keys, family: Family, *, mixed: bool) -> int:
    if keys.has(*WIDTH):
        return keys.count(*WIDTH, least=1)
    name = family.expert_width_key
    if name is None:
        name = "intermediate_size"
        keys.assume(
            "no width of experts of its own: intermediate_size taken for it"
            + (", and for the dense layers" if mixed else "")
        )
    return keys.count(name, least=1)


def _shared(keys: Keys, family: Family, width: int) -> tuple[int, bool]:
    several = keys.count(*SHARED_COUNT, default=0)
    if keys.has(*SHARED_WIDTH):
        shared = keys.count(*SHARED_WIDTH, default=0)
    elif several:
        shared = several * width
    else:
        shared = width if family.shared_from_expert else 0
    return shared, family.shared_gate and shared > 0


def read_dense_layers(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """Return the layers without experts, by whichever convention the file uses."""
    every = range(num_layers)
    moe = set(every)
    listed = keys.layers("moe_layers", num_layers)
    if listed is not None:
        moe &= set(listed)
    enumerated = keys.text("moe_layers_enum")
    if enumerated:
        moe &= _enumerated(keys, enumerated, num_layers)
    kinds = keys.sequence("mlp_layer_types")
    if kinds is not None:
        moe &= {layer for layer, kind in zip(every, kinds, strict=False) if kind != "dense"}
    step = keys.count("interleave_moe_layer_step", default=1)
    if listed is None and step > 1:
        moe &= {layer for layer in every if (layer + 1) % step == 0}
    sparse = keys.count("decoder_sparse_step", default=1)
    if sparse > 1:
        moe &= {layer for layer in every if (layer + 1) % sparse == 0}
    if sparse == 0:
        moe.clear()
    moe -= set(keys.layers("mlp_only_layers", num_layers) or ())
    moe -= set(range(keys.count("first_k_dense_replace", "num_dense_layers", default=0)))
    moe &= _by_frequency(keys, num_layers) & _by_period(keys, num_layers)
    return tuple(layer for layer in every if layer not in moe)


def _enumerated(keys: Keys, text: str, num_layers: int) -> set[int]:
    if not re.fullmatch(r"\s*\d{1,6}(\s*,\s*\d{1,6})*\s*", text):
        raise keys.error("moe_layers_enum", f"is {text!r}", "write layer numbers, as in '3,4,5'")
    return {int(part) for part in text.split(",")} & set(range(num_layers))


def _by_frequency(keys: Keys, num_layers: int) -> set[int]:
    found = keys.find("moe_layer_freq", "moe_layer_frequency", "moe_every_n_layers")
    if found is None:
        return set(range(num_layers))
    name, value = found
    if isinstance(value, (list, tuple)):
        if len(value) != num_layers or any(entry not in (0, 1) for entry in value):
            raise keys.error(
                name, f"has {len(value)} entries for {num_layers} layers", "give 0 or 1 a layer"
            )
        return {layer for layer, entry in enumerate(value) if entry}
    every = keys.count(name, least=1)
    return {layer for layer in range(num_layers) if layer % every == 0}


def _by_period(keys: Keys, num_layers: int) -> set[int]:
    period = keys.count("expert_layer_period", "moe_layer_interval", default=1, least=1)
    offset = keys.count("expert_layer_offset", default=0)
    start = keys.count("moe_layer_start_index", default=0)
    end = keys.count("moe_layer_end_index", default=num_layers - 1)
    return {
        layer
        for layer in range(num_layers)
        if start <= layer <= end and (layer - offset) % period == 0
    }
