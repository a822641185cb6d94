"""Which kind of configuration a file holds: told by its keys, never guessed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import ConfigError
from planner.model import Model
from planner.readers.hf import NESTED, read_hf
from planner.readers.keys import load_mapping
from planner.readers.megatron import read_megatron

HF = ("model_type", "architectures", "num_hidden_layers", "n_layer", "n_layers", *NESTED)
"""Keys that Hugging Face's configurations have and Megatron's have not."""

MEGATRON = (
    *("num_moe_experts", "moe_router_topk", "num_query_groups", "kv_channels", "qk_layernorm"),
    *("multi_latent_attention", "gated_linear_unit", "swiglu", "add_bias_linear"),
    *("disable_bias_linear", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("layernorm_epsilon", "padded_vocab_size", "untie_embeddings_and_output_weights"),
    *("recompute_granularity", "moe_layer_freq", "moe_ffn_hidden_size", "params_dtype"),
)
"""Keys of ``TransformerConfig`` or of Megatron's arguments that no family of Hugging Face has."""

SIZES = ("num_layers", "hidden_size", "num_attention_heads")
"""What either may have, and Megatron's must."""


def read_model(config: Mapping[str, Any] | str | Path) -> Model:
    """Read a configuration of either kind, from a path, its folder, or a mapping.

    With a key that only Hugging Face has (`HF`) it is read as one: there are families whose other
    keys are named as Megatron's. Else, with Megatron's three sizes and no less than one key that
    only Megatron has, it is read as Megatron's.

    Raises
    ------
    ConfigError
        When it is neither, naming the keys that it would need and those that it has; else as
        `planner.model.Model.from_hf` and `from_megatron`.
    """
    data, where = load_mapping(config)
    if any(_is_given(data.get(key)) for key in HF):
        return read_hf(config)
    told = [key for key in MEGATRON if key in data]
    if told and all(data.get(key) is not None for key in SIZES):
        name = Path(config).stem if isinstance(config, (str, Path)) else "megatron"
        return read_megatron({"name": name, **data}, where)
    has = ", ".join(sorted(map(str, data))[:12]) or "no key"
    lacking = [key for key in SIZES if data.get(key) is None]
    raise ConfigError(
        f"{where} is neither a Hugging Face configuration, which has model_type or "
        "num_hidden_layers, nor a Megatron TransformerConfig, which has "
        f"{', '.join(SIZES)} ({f'{lacking[0]} is missing' if lacking else 'all are here'}) and "
        f"some of its own, such as {', '.join(MEGATRON[:4])} "
        f"({told[0] if told else 'none'} is here); it has {has}"
    )


def _is_given(value: object) -> bool:
    """Whether a key is given; Megatron's arguments have a ``model_type`` too, of an enumeration."""
    return value is not None and not str(value).startswith("ModelType.")
