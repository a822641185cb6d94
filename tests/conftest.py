"""Models that tests price, from the same files that users name."""

from pathlib import Path

import pytest
from hypothesis import settings

from planner import LinearAttention, Model

settings.register_profile("peakcast", deadline=None)  # a law is no stopwatch
settings.load_profile("peakcast")

GOLDEN = Path(__file__).parent / "golden"

QWEN = {
    "name": "qwen3_6_35b_a3b",
    "num_layers": 40,
    "hidden": 2048,
    "vocab": 248_320,
    "num_heads": 16,
    "num_kv_heads": 2,
    "head_dim": 256,
    "num_experts": 256,
    "top_k": 8,
    "expert_hidden": 512,
    "shared_expert_hidden": 512,
    "shared_expert_gate": True,
    "gated_attention": True,
    "full_attention_interval": 4,
    "linear_attention": LinearAttention(
        key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_width=4
    ),
}
"""Qwen3.6-35B-A3B: geometry from the published certificate and model configuration."""


def qwen(**changes: object) -> Model:
    """Return Qwen3.6-35B-A3B, with fields changed."""
    return Model(**{**QWEN, **changes})  # type: ignore[arg-type]


@pytest.fixture
def golden() -> Path:
    """Folder of published figures."""
    return GOLDEN
