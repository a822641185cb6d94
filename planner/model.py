"""Model: architecture facts of the whole model, before any parallelism divides them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import ConfigError, require_int
from planner.mixers import LatentAttention, LinearAttention
from planner.parameters import ParameterCount, count_model


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A transformer, dense or mixture-of-experts, in global quantities.

    Parameters
    ----------
    name
        What people call it; appears in records and reports.
    num_layers, hidden, vocab
        Transformer layers, model width, vocabulary columns.
    num_heads, num_kv_heads, head_dim
        Grouped-query attention: query heads, key/value heads, channels of one head.
    num_experts, top_k, expert_hidden
        Routed experts of a MoE layer (0: the model is dense), experts chosen per token, FFN width
        of one expert.
    shared_expert_hidden, shared_expert_gate
        FFN width of the shared expert (0: there is none) and whether a sigmoid gate scales it.
    gated_attention
        Whether the attention output is gated (a second query-wide projection).
    full_attention_interval, linear_attention
        Every n-th layer has attention, the others a Gated DeltaNet mixer (1: all attention).
    linear_layers
        Instead of an interval: indices of the layers with a Gated DeltaNet mixer.
    dense_hidden, dense_layers
        FFN width of the layers without experts, and their indices. ``None``: none where there are
        experts, all where there are none.
    gated_mlp
        Whether feed-forward parts are gated (SwiGLU: two input projections) or plain.
    latent_attention
        Sizes of a latent attention (MLA), which then replaces queries, keys and values of the
        grouped form in every attention layer.
    qkv_bias, output_bias, mlp_bias, expert_bias, router_bias
        Which projections have a bias.
    norm_bias, norms_per_layer, qk_norm
        Whether norms have a bias (LayerNorm), how many there are in a layer beside those of
        queries and keys, and whether queries and keys are normed by head.
    attention_sinks
        Whether every head has a learned sink.
    position_embeddings
        Learned positions (0: rotary or none).
    rotary_channels, rotary_base
        Channels of a head that rotary positions turn (``None``: all), and the base of their angles,
        on which no byte depends.
    tied_embeddings
        Whether the head uses the embedding's matrix.
    mtp_layers
        Multi-token-prediction layers behind the last one.
    assumptions
        What a reader supplied because the configuration does not say it.
    """

    name: str
    num_layers: int
    hidden: int
    vocab: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    top_k: int
    expert_hidden: int
    shared_expert_hidden: int = 0
    shared_expert_gate: bool = False
    gated_attention: bool = False
    full_attention_interval: int = 1
    linear_attention: LinearAttention | None = None
    linear_layers: tuple[int, ...] | None = None
    dense_hidden: int = 0
    dense_layers: tuple[int, ...] | None = None
    gated_mlp: bool = True
    latent_attention: LatentAttention | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    norm_bias: bool = False
    norms_per_layer: int = 2
    qk_norm: bool = False
    attention_sinks: bool = False
    position_embeddings: int = 0
    rotary_channels: int | None = None
    rotary_base: int = 1_000_000
    tied_embeddings: bool = False
    mtp_layers: int = 0
    assumptions: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name in (
            *("num_layers", "hidden", "vocab", "num_heads", "num_kv_heads", "head_dim"),
            *("full_attention_interval", "norms_per_layer"),
        ):
            require_int("Model", name, getattr(self, name))
        for name in (
            *("num_experts", "top_k", "expert_hidden", "shared_expert_hidden", "dense_hidden"),
            *("position_embeddings", "mtp_layers"),
        ):
            require_int("Model", name, getattr(self, name), least=0)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"Model.num_heads = {self.num_heads} must be a multiple of "
                f"num_kv_heads = {self.num_kv_heads}"
            )
        require_int("Model", "rotary_base", self.rotary_base)
        self._require_rotary()
        for name in ("dense_layers", "linear_layers"):
            self._require_layers(name)
        self._require_experts()
        if self.dense_layers is None and not self.num_experts:
            object.__setattr__(self, "dense_layers", tuple(range(self.num_layers)))
        if self.dense_layers and not self.dense_hidden:
            raise ConfigError(
                f"Model.dense_layers names {len(self.dense_layers)} layers without experts but "
                "dense_hidden is 0; give the width of their feed-forward part"
            )
        if self.num_linear_attention_layers and self.linear_attention is None:
            raise ConfigError(
                f"Model.full_attention_interval = {self.full_attention_interval} leaves layers "
                "without attention; give linear_attention (the Gated DeltaNet sizes)"
            )

    def _require_rotary(self) -> None:
        if self.rotary_channels is None:
            return
        require_int("Model", "rotary_channels", self.rotary_channels)
        if self.rotary_channels % 2 or self.rotary_channels > self.head_dim:
            raise ConfigError(
                f"Model.rotary_channels = {self.rotary_channels} must be even and at most head_dim "
                f"= {self.head_dim}; leave it out where all channels are turned"
            )

    def _require_layers(self, name: str) -> None:
        layers = getattr(self, name)
        if layers is None:
            return
        for layer in layers:
            require_int("Model", f"{name} entry", layer, least=0)
        if len(set(layers)) != len(layers) or any(layer >= self.num_layers for layer in layers):
            raise ConfigError(
                f"Model.{name} = {tuple(layers)} must name layers below num_layers = "
                f"{self.num_layers}, each once"
            )
        object.__setattr__(self, name, tuple(sorted(layers)))

    def _require_experts(self) -> None:
        if not self.num_experts:
            if self.top_k or self.expert_hidden or self.shared_expert_hidden:
                raise ConfigError(
                    f"Model.num_experts is 0 but top_k = {self.top_k}, expert_hidden = "
                    f"{self.expert_hidden}, shared_expert_hidden = {self.shared_expert_hidden}; "
                    "give the number of experts, or 0 for all of them"
                )
            if self.dense_layers is not None and len(self.dense_layers) != self.num_layers:
                raise ConfigError(
                    "Model.num_experts is 0, so that every layer is dense, but dense_layers "
                    f"names {len(self.dense_layers)} of {self.num_layers}"
                )
            return
        for name in ("top_k", "expert_hidden"):
            require_int("Model", name, getattr(self, name))
        if self.top_k > self.num_experts:
            raise ConfigError(
                f"Model.top_k = {self.top_k} is more than num_experts = {self.num_experts}; "
                "a token can be sent to each expert once"
            )
        if self.dense_layers is not None and len(self.dense_layers) == self.num_layers:
            raise ConfigError(
                f"Model.num_experts = {self.num_experts} but dense_layers names every layer; "
                "set num_experts, top_k and expert_hidden to 0 for a dense model"
            )
        if self.shared_expert_gate and not self.shared_expert_hidden:
            raise ConfigError(
                "Model.shared_expert_gate is set but shared_expert_hidden is 0; "
                "give the shared expert's width or drop the gate"
            )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any] | str | Path) -> "Model":
        """Read a Hugging Face ``config.json``, from a path, its folder, or a mapping.

        Raises
        ------
        ConfigError
            Naming the key that is missing, wrong or not understood, and the way out.
        """
        from planner.readers.hf import read_hf

        return read_hf(config)

    @classmethod
    def from_file(cls, config: Mapping[str, Any] | str | Path) -> "Model":
        """Read a configuration of Hugging Face or of Megatron, told apart by its keys.

        Raises
        ------
        ConfigError
            When it is neither, naming keys; else as `from_hf` and `from_megatron`.
        """
        from planner.readers.kinds import read_model

        return read_model(config)

    @classmethod
    def from_megatron(cls, config: object) -> "Model":
        """Read a Megatron-core ``TransformerConfig``, arguments of the trainer, or a mapping.

        Raises
        ------
        ConfigError
            Naming the key that is missing, wrong or not understood, and the way out.
        """
        from planner.readers.megatron import read_megatron

        return read_megatron(config)

    @property
    def turned_channels(self) -> int:
        """Channels of a head that rotary positions turn."""
        return self.head_dim if self.rotary_channels is None else self.rotary_channels

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return self.num_experts > 0

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Indices of the layers with routed experts."""
        if not self.is_moe:
            return ()
        dense = frozenset(self.dense_layers or ())
        return tuple(layer for layer in range(self.num_layers) if layer not in dense)

    @property
    def linear_attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers whose mixer is a Gated DeltaNet."""
        if self.linear_layers is not None:
            return self.linear_layers
        every = self.full_attention_interval
        return tuple(layer for layer in range(self.num_layers) if (layer + 1) % every)

    @property
    def num_linear_attention_layers(self) -> int:
        """Layers whose mixer is a Gated DeltaNet."""
        return len(self.linear_attention_layers)

    @property
    def parameters(self) -> ParameterCount:
        """Parameters of the whole model, exact."""
        return count_model(self)
