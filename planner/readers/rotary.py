"""Rotary positions as configurations tell of them: which channels are turned, and the base."""

from typing import Any

from planner.mixers import LatentAttention
from planner.readers.keys import Keys


def hf_rotary(keys: Keys, head_dim: int, latent: LatentAttention | None) -> dict[str, Any]:
    """Return which channels rotary positions turn, and their base; newer files nest both."""
    nested = keys.nested("rope_parameters")
    given = keys.count("rope_theta", "rotary_emb_base", default=10_000, least=1)
    found: dict[str, Any] = {"rotary_base": nested.count("rope_theta", default=given, least=1)}
    if latent is not None:
        return found
    part = nested.share("partial_rotary_factor")
    if part is None:
        part = keys.share("partial_rotary_factor", "rotary_pct") or 1.0
    channels = keys.count("rotary_dim", default=int(head_dim * part))
    if channels not in (0, head_dim):
        found["rotary_channels"] = channels
    return found


def megatron_rotary(keys: Keys, head_dim: int, latent: LatentAttention | None) -> dict[str, Any]:
    """Read Megatron's ``rotary_percent`` and ``rotary_base``."""
    found: dict[str, Any] = {"rotary_base": keys.count("rotary_base", default=10_000, least=1)}
    channels = int(head_dim * (keys.share("rotary_percent") or 1.0))
    if latent is None and channels != head_dim:
        found["rotary_channels"] = channels
    return found
