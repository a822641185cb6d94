"""Attention of the layer at hand, where it has one: queries, rotary positions, parallelism."""

from planner.local import Local
from planner.size import Size
from planner.term import term

TRACE = "ledger traces of the CPU ranks, 2026-11-30: docs/measurements/traces.md"


@term(
    "attention.qkv",
    what="output of the fused query, key and value projection",
    source=TRACE,
)
def qkv(local: Local) -> Size:
    """(tokens, query width + 2 x key width, gated 2 x query width) in the activation dtype."""
    gate = local.query_width if local.gated_attention else 0
    return Size(attention_tokens=(local.query_width + gate + 2 * local.kv_width) * local.itemsize)


@term(
    "attention.queries",
    what="queries before and after rotary, the output's gate, and their gradients",
    source=TRACE,
)
def queries(local: Local) -> Size:
    """(tokens, query width) in the activation dtype."""
    return Size(attention_tokens=local.query_width * local.itemsize)


@term(
    "attention.keys",
    what="keys after rotary, and gradients of keys and values",
    when=lambda local: local.cp == 1,
    source=TRACE,
)
def keys(local: Local) -> Size:
    """(tokens, key width) in the activation dtype."""
    return Size(attention_tokens=local.kv_width * local.itemsize)


@term(
    "attention.gathered_keys",
    what="keys and values of every context-parallel rank, and their gradients",
    when=lambda local: local.cp > 1 and local.engine == "own",
    source=TRACE,
)
def gathered_keys(local: Local) -> Size:
    """(tokens x cp, key width) in the activation dtype: keys or values."""
    return Size(attention_tokens=local.cp * local.kv_width * local.itemsize)


@term(
    "attention.output",
    what="attention's output before its projection",
    source=TRACE,
)
def output(local: Local) -> Size:
    """(tokens, query width) in the activation dtype."""
    return Size(attention_tokens=local.query_width * local.itemsize)


@term(
    "attention.rotary",
    what="cosines and sines applied to queries and keys",
    source=TRACE,
)
def rotary(local: Local) -> Size:
    """(tokens, channels of a head that are turned) in the activation dtype."""
    return Size(attention_tokens=local.rotary_channels * local.itemsize)


@term(
    "attention.statistics",
    what="log-sum-exp of each query, and the norms of queries and keys",
    source=TRACE,
)
def statistics(local: Local) -> Size:
    """(tokens, 2 x heads + key heads) fp32."""
    return Size(attention_tokens=4 * (2 * local.num_heads + local.num_kv_heads))


@term(
    "attention.angles",
    what="rotary angles of the call's positions, live from its first layer to its last",
    source=TRACE,
)
def angles(local: Local) -> Size:
    """(tokens, channels of a head that are turned) fp32."""
    return Size(tokens=4 * local.rotary_channels)
