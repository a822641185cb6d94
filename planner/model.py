"""Model: architecture facts of the whole model, before any parallelism divides them."""

from dataclasses import dataclass

from planner.errors import ConfigError, require_int


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearAttention:
    """Sizes of a Gated DeltaNet mixer (heads x channels, convolution width in positions)."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_width: int

    def __post_init__(self) -> None:
        for name in ("key_heads", "key_dim", "value_heads", "value_dim", "conv_width"):
            require_int("LinearAttention", name, getattr(self, name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A mixture-of-experts transformer, in global quantities.

    Parameters
    ----------
    name
        What people call it; appears in records and reports.
    num_layers, hidden, vocab
        Transformer layers (all of them MoE), model width, vocabulary columns.
    num_heads, num_kv_heads, head_dim
        Grouped-query attention: query heads, key/value heads, channels of one head.
    num_experts, top_k, expert_hidden
        Routed experts of a layer, experts chosen per token, FFN width of one expert.
    shared_expert_hidden, shared_expert_gate
        FFN width of the shared expert (0: there is none) and whether a sigmoid gate scales it.
    gated_attention
        Whether the attention output is gated (a second query-wide projection).
    full_attention_interval, linear_attention
        Every n-th layer has attention, the others a Gated DeltaNet mixer (1: all attention).
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

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden",
            "vocab",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "num_experts",
            "top_k",
            "expert_hidden",
            "full_attention_interval",
        ):
            require_int("Model", name, getattr(self, name))
        require_int("Model", "shared_expert_hidden", self.shared_expert_hidden, least=0)
        if self.top_k > self.num_experts:
            raise ConfigError(
                f"Model.top_k = {self.top_k} is more than num_experts = {self.num_experts}; "
                "a token can be sent to each expert once"
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"Model.num_heads = {self.num_heads} must be a multiple of "
                f"num_kv_heads = {self.num_kv_heads}"
            )
        if self.shared_expert_gate and not self.shared_expert_hidden:
            raise ConfigError(
                "Model.shared_expert_gate is set but shared_expert_hidden is 0; "
                "give the shared expert's width or drop the gate"
            )
        if self.full_attention_interval > 1 and self.linear_attention is None:
            raise ConfigError(
                f"Model.full_attention_interval = {self.full_attention_interval} leaves layers "
                "without attention; give linear_attention (the Gated DeltaNet sizes)"
            )

    @property
    def num_linear_attention_layers(self) -> int:
        """Layers whose mixer is a Gated DeltaNet."""
        return self.num_layers - self.num_layers // self.full_attention_interval
