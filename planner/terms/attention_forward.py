"""Attention's forward where nothing is kept for backward: its fullest of a few places.

Which place is fullest follows from widths alone. What is kept for backward, once a layer is run
again, is `planner.terms.attention`'s.
"""

from planner.local import Local
from planner.size import Size
from planner.term import term
from planner.terms.te_attention import ring_elements


@term(
    "attention.forward",
    what="attention of the layer at hand in forward, nothing kept: what is live at once at its "
    "projections, rotary positions, core or gate, whichever is fullest",
    when=lambda local: local.recompute == "full" and local.attention_layers > 0,
    source="ledger traces of 2026-11-30, operator by operator: tests/jobs/test_forward_only.py",
)
def attention_forward(local: Local) -> Size:
    """(tokens, sum of the widths live there) in the activation dtype, and (tokens, heads) fp32."""
    elements = max(_projected(local), _rotated(local), _core(local), _returned(local))
    return Size(attention_tokens=elements * local.itemsize)


def _gate(local: Local) -> int:
    return local.query_width if local.gated_attention else 0


def _copied_gate(local: Local) -> int:
    """Width of the gate where it is copied out of the projection, past keys of several queries."""
    return _gate(local) if local.num_heads > local.num_kv_heads else 0


def _fused(local: Local) -> int:
    return local.query_width + _gate(local) + 2 * local.kv_width


def _sums(local: Local) -> int:
    """Tensors that a dense projection makes: base, adapter's and their sum."""
    return 3 if local.dense_adapters else 1


def _projected(local: Local) -> int:
    """At the fused projection of queries, keys and values."""
    return _sums(local) * _fused(local)


def _rotated(local: Local) -> int:
    """At the rotary positions of queries, or of keys; three of what is turned, cosines, sines."""
    turned = local.rotary_channels
    queries = 3 * local.num_heads * turned, local.num_heads * turned + local.query_width
    keys = 3 * local.num_kv_heads * turned, local.num_kv_heads * turned + local.kv_width
    passed = local.query_width + local.kv_width  # normed
    fullest = max(*queries, *[local.query_width + size for size in keys])
    return _fused(local) + _copied_gate(local) + passed + 2 * turned + fullest


def _held(local: Local) -> int:
    """Of queries and keys, once both are turned: the projection, normed, turned, and the gate."""
    return _fused(local) + _copied_gate(local) + 2 * (local.query_width + local.kv_width)


def _core(local: Local) -> int:
    """At the core: its output and statistics, or the second gather of keys and values."""
    output = local.query_width + 4 * local.num_heads // local.itemsize
    if local.engine == "te":
        return _held(local) + _transformer_engine(local)
    if local.cp == 1:
        return _held(local) + output
    gathered = 2 * local.cp * local.kv_width
    return _held(local) + gathered + max(output, local.kv_width)


def _transformer_engine(local: Local) -> int:
    """Beside what is held: in a ring also the values' copy, half the keys and values, statistics.

    Of the ring's ranks the last one holds most: all its steps but the first take half the keys.
    """
    if local.cp == 1:
        return ring_elements(local)
    statistics = (local.cp + 5) * 4 * local.num_heads // local.itemsize
    return ring_elements(local) + 2 * local.kv_width + statistics


def _returned(local: Local) -> int:
    """At the gate of the output, and at its projection."""
    gated = local.query_width + _gate(local)
    projected = local.query_width + _sums(local) * local.hidden
    return _held(local) + max(gated, projected)
