"""Mixers other than grouped-query attention: their sizes."""

from dataclasses import dataclass

from planner.errors import require_int


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
class LatentAttention:
    """Sizes of a latent attention (MLA), in channels.

    Parameters
    ----------
    query_rank, kv_rank
        Width of the latent queries (0: queries are projected at once) and of the latent keys and
        values.
    nope_dim, rope_dim, value_dim
        Channels of one head without and with rotary positions, and of one value head.
    """

    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        require_int("LatentAttention", "query_rank", self.query_rank, least=0)
        for name in ("kv_rank", "nope_dim", "rope_dim", "value_dim"):
            require_int("LatentAttention", name, getattr(self, name))
