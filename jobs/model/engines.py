"""Whose routed experts and core attention a model is built of: `planner.step.Step.engine`."""

from jobs.model.attention import PackedAttention
from jobs.model.experts import GroupedExperts


def core_attention(engine: str) -> type:
    """Return the core attention of ``engine``; Transformer Engine's is imported when asked for."""
    if engine == "te":
        from jobs.model.te_attention import TEPackedAttention

        return TEPackedAttention
    return PackedAttention


def routed_experts(engine: str) -> type:
    """Return the routed experts of ``engine``."""
    if engine == "te":
        from jobs.model.te_experts import TEGroupedExperts

        return TEGroupedExperts
    return GroupedExperts
