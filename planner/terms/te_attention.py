"""Transformer Engine's attention: what it holds that the attention of `jobs.model` does not.

Read from version 2.13 (``attention/dot_product_attention``) and seen live by running it without a
device. The rest, queries, keys, output and statistics, is `planner.terms.attention`'s.
"""

from planner.local import Local
from planner.size import Size
from planner.term import term

RING = "Transformer Engine 2.13, AttnFuncWithCPAndKVP2P; live in tests/emulated/test_te_prices.py"


def exists(local: Local) -> bool:
    """Whether attention is Transformer Engine's."""
    return local.engine == "te"


@term(
    "attention.values",
    what="values as the kernel takes them, copied out of the fused projection's output",
    when=lambda local: exists(local) and local.cp == 1,
    source="Transformer Engine 2.13, get_qkv_layout: what is not contiguous is made so",
)
def values(local: Local) -> Size:
    """(tokens, key width) in the activation dtype."""
    return Size(attention_tokens=local.kv_width * local.itemsize)


@term(
    "attention.ring_keys",
    what="keys and values on their way around the context-parallel ring, and their gradients",
    when=lambda local: exists(local) and local.cp > 1,
    source=RING,
)
def ring_keys(local: Local) -> Size:
    """(tokens, key width) in the activation dtype: one rank's keys or values."""
    return Size(attention_tokens=local.kv_width * local.itemsize)


@term(
    "attention.ring_queries",
    what="gradient of queries summed over the ring's steps, beside that of one step",
    when=lambda local: exists(local) and local.cp > 1,
    source=RING,
)
def ring_queries(local: Local) -> Size:
    """(tokens, query width) in the activation dtype."""
    return Size(attention_tokens=local.query_width * local.itemsize)


@term(
    "attention.workspace",
    what="scratch of cuDNN's backward: sums of queries' gradients and, where queries outnumber "
    "keys, gradients of keys and values of each query head",
    when=exists,
    source="cudnn-frontend, node/scaled_dot_product_flash_attention.h: what a graph of packed "
    "requests asks for; FlashAttention's is smaller",
)
def workspace(local: Local) -> Size:
    """(tokens, query width + heads, 3 query widths + heads where queries outnumber keys) fp32."""
    widths = 1 if local.num_heads == local.num_kv_heads else 3
    return Size(attention_tokens=4 * (widths * local.query_width + local.num_heads))
