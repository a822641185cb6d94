"""Hugging Face ``config.json`` → Model.

Only the language model is read: a vision or audio tower beside it is left out, and said.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import ConfigError
from planner.mixers import LatentAttention, LinearAttention
from planner.model import Model
from planner.readers.experts import Experts, read_experts
from planner.readers.families import Family, family_of
from planner.readers.keys import EXPERTISH, MIXERISH, Keys, load_mapping
from planner.readers.rotary import hf_rotary

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

PARTS = ("ffn_config", "attn_config")
"""Parts of a configuration whose keys are read as if they stood one level above."""

ATTENTION = (
    *("full_attention", "attention", "sliding_attention", "chunked_attention", "global"),
    *("local", "sliding_window", "full"),
)
LINEAR = ("linear_attention", "gated_delta_net", "gdn")


def read_hf(config: Mapping[str, Any] | str | Path) -> Model:
    """Read a configuration; see `planner.model.Model.from_hf`."""
    data, where = load_mapping(config)
    outer = dict(data)
    for name in NESTED:
        if isinstance(data.get(name), Mapping):
            inner = {str(key): value for key, value in data[name].items()}
            for key in ("tie_word_embeddings", "quantization_config", "architectures"):
                if inner.get(key) is None and data.get(key) is not None:
                    inner[key] = data[key]
            _refuse_experts_outside(data, inner, where, name)
            where, data = f"{where}, {name}", inner
            break
    model_type = data.get("model_type") or outer.get("model_type") or ""
    if not isinstance(model_type, str):
        raise ConfigError(f"{where}: model_type is {model_type!r}, not a string; correct it")
    family = family_of(model_type)
    parts = [data[name] for name in PARTS if isinstance(data.get(name), Mapping)]
    flat = {key: value for part in (*parts, data) for key, value in _given(part).items()}
    keys = Keys({**(family.defaults if family else {}), **flat}, where)
    keys.ignore(PARTS)
    _state_what_is_supplied(keys, family, model_type, data, outer)
    return _read(keys, family or Family(), _name(outer, model_type))


def _refuse_experts_outside(
    data: Mapping[str, Any], inner: Mapping[str, Any], where: str, name: str
) -> None:
    """Raise for experts that stand beside the nested configuration instead of in it."""
    beside = {key: value for key, value in data.items() if not isinstance(value, Mapping)}
    outside = [key for key in Keys(beside, where).unread(EXPERTISH) if inner.get(key) is None]
    if outside:
        raise ConfigError(
            f"{where}: {', '.join(outside)} stands beside {name}, not in it; "
            f"move it into {name}, or remove it"
        )


def _state_what_is_supplied(
    keys: Keys,
    family: Family | None,
    model_type: str,
    data: Mapping[str, Any],
    outer: Mapping[str, Any],
) -> None:
    """Keep as assumptions what comes from the family, and what is left out."""
    if family is not None and family.note:
        keys.assume(family.note)
    if family is None:
        keys.assume(f"model_type {model_type!r} is not known: read from its keys alone")
    supplied = [name for name in (family.defaults if family else {}) if data.get(name) is None]
    if supplied:
        keys.assume(f"{', '.join(supplied)} not given: defaults of {model_type}'s own class")
    for name in ("vision_config", "audio_config"):
        if outer.get(name) is not None:
            keys.assume(f"{name} left out: only the language model is priced")


def _given(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}


def _name(data: Mapping[str, Any], model_type: str) -> str:
    path = data.get("_name_or_path")
    if isinstance(path, str) and path.strip():
        return Path(path).name or path
    return model_type or "unnamed"


def _read(keys: Keys, family: Family, name: str) -> Model:
    num_layers = keys.layer_count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = keys.count("hidden_size", "n_embd", "d_model", least=1)
    heads = keys.count("num_attention_heads", "n_head", "n_heads", least=1)
    experts = read_experts(keys, family, num_layers)
    _refuse_what_is_unknown(keys)
    latent = _latent(keys)
    linear_layers = _linear_layers(keys, num_layers)
    model = Model(
        name=name,
        num_layers=num_layers,
        hidden=hidden,
        vocab=keys.count("vocab_size", least=1),
        num_heads=heads,
        num_kv_heads=_kv_heads(keys, heads, latent),
        head_dim=_head_dim(keys, hidden, heads, latent),
        **_expert_fields(experts),
        gated_attention=keys.flag("attn_output_gate", default=family.gated_attention),
        linear_attention=_linear(keys) if linear_layers else None,
        linear_layers=linear_layers,
        latent_attention=latent,
        gated_mlp=_gated(keys),
        norm_bias=family.norm_bias,
        norms_per_layer=family.norms_per_layer,
        position_embeddings=_positions(keys, family),
        **hf_rotary(keys, _head_dim(keys, hidden, heads, latent), latent),
        qk_norm=keys.flag("use_qk_norm", "qk_layernorm", default=family.qk_norm),
        **_biases(keys, family),
        attention_sinks=family.attention_sinks,
        tied_embeddings=_tied(keys),
        mtp_layers=keys.count(
            *("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers"), default=0
        ),
        assumptions=(),
    )
    _quantised(keys)
    object.__setattr__(model, "assumptions", tuple(keys.assumptions))
    return model


def _refuse_what_is_unknown(keys: Keys) -> None:
    """Raise for keys that look like experts, or like mixers that nobody reads."""
    unread = keys.unread(EXPERTISH)
    if unread:
        raise keys.error(
            ", ".join(unread),
            "looks like a setting of experts and is not understood",
            "give the model in Peakcast's own fields (num_experts, top_k, expert_hidden, "
            "dense_layers), or remove the key if it has no weight",
        )
    keys.ignore(("mamba_ssm_dtype",))
    mixers = [] if keys.has("layer_types") else keys.unread(MIXERISH)
    if mixers:
        raise keys.error(
            ", ".join(mixers),
            "speaks of layers that are no attention, which the planner cannot price",
            "say which layers are which with layer_types "
            f"({', '.join((*ATTENTION[:3], *LINEAR[:1]))}), or remove the key if no layer is so",
        )


def _expert_fields(experts: Experts) -> dict[str, Any]:
    return {
        "num_experts": experts.count,
        "top_k": experts.top_k,
        "expert_hidden": experts.width,
        "shared_expert_hidden": experts.shared,
        "shared_expert_gate": experts.shared_gate,
        "dense_hidden": experts.dense_width,
        "dense_layers": experts.dense_layers,
    }


def _biases(keys: Keys, family: Family) -> dict[str, Any]:
    attention = keys.flag("attention_bias", "qkv_bias", "use_qkv_bias")
    mlp = keys.flag("mlp_bias")
    return {
        "qkv_bias": attention if family.qkv_bias is None else family.qkv_bias,
        "output_bias": attention if family.output_bias is None else family.output_bias,
        "mlp_bias": mlp or family.mlp_bias,
        "expert_bias": family.expert_bias,
        "router_bias": family.router_bias,
    }


def _positions(keys: Keys, family: Family) -> int:
    name = family.learned_positions
    return keys.count(name, least=1) if name else 0


def _kv_heads(keys: Keys, heads: int, latent: LatentAttention | None) -> int:
    names = (
        *("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num"),
        "kv_n_heads",
    )
    if keys.flag("multi_query") and not keys.has(*names):
        return 1
    if not keys.has(*names):
        if latent is None:
            keys.assume(f"num_key_value_heads not given: as many as heads, {heads}")
        return heads
    return keys.count(*names, least=1)


def _head_dim(keys: Keys, hidden: int, heads: int, latent: LatentAttention | None) -> int:
    if latent is not None:
        keys.find("head_dim")
        return latent.nope_dim + latent.rope_dim
    if keys.has("head_dim", "kv_channels", "attention_head_dim"):
        return keys.count("head_dim", "kv_channels", "attention_head_dim", least=1)
    if hidden % heads:
        raise keys.error(
            "num_attention_heads",
            f"= {heads} does not divide hidden_size = {hidden} and head_dim is not given",
            "give head_dim",
        )
    keys.assume(f"head_dim not given: hidden_size / num_attention_heads = {hidden // heads}")
    return hidden // heads


def _tied(keys: Keys) -> bool:
    if not keys.has("tie_word_embeddings"):
        keys.assume("tie_word_embeddings not given: taken as untied, which needs more")
    return keys.flag("tie_word_embeddings")


def _gated(keys: Keys) -> bool:
    names = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
    activation = keys.text(*names, default="silu")
    plain = activation in ("relu", "relu2", "gelu_new", "gelu_fast")
    if plain:
        keys.assume(f"activation {activation}: a feed-forward part of one input projection")
    return not plain


def _latent(keys: Keys) -> LatentAttention | None:
    if not keys.count("kv_lora_rank", default=0):
        return None
    return LatentAttention(
        query_rank=keys.count("q_lora_rank", default=0),
        kv_rank=keys.count("kv_lora_rank", least=1),
        nope_dim=keys.count("qk_nope_head_dim", least=1),
        rope_dim=keys.count("qk_rope_head_dim", least=1),
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
    """Return the layers with a Gated DeltaNet, from a list of types or from an interval."""
    types = keys.sequence("layer_types")
    if types is None:
        every = keys.count("full_attention_interval", default=1, least=1)
        found = tuple(layer for layer in range(num_layers) if (layer + 1) % every)
        return found or None
    keys.find("full_attention_interval")
    if len(types) != num_layers:
        raise keys.error(
            "layer_types", f"has {len(types)} entries for {num_layers} layers", "give one a layer"
        )
    unknown = sorted({repr(kind) for kind in types if kind not in (*ATTENTION, *LINEAR)})
    if unknown:
        raise keys.error(
            "layer_types",
            f"holds {', '.join(unknown)}, which the planner cannot price",
            f"it knows {', '.join((*ATTENTION, *LINEAR))}",
        )
    return tuple(layer for layer, kind in enumerate(types) if kind in LINEAR) or None


def _quantised(keys: Keys) -> None:
    found = keys.find("quantization_config")
    if found is None:
        return
    settings = found[1]
    method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
    keys.assume(
        f"checkpoint quantised ({method}): parameters are counted and priced unquantised, "
        "as a trainer holds them"
    )
