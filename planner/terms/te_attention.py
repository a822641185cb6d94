"""Transformer Engine's attention: what it holds that the attention of `jobs.model` does not.

Read from version 2.13 (``attention/dot_product_attention``) and seen live by running it without a
device. The rest, queries, keys, output and statistics, is `planner.terms.attention`'s.
"""

from planner.local import Local
from planner.size import Size
from planner.term import term

RING = "Transformer Engine 2.13, AttnFuncWithCPAndKVP2P; live in tests/emulated/test_te.py"


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


def ring_elements(local: Local) -> int:
    """Elements a token held at the end of forward, beside queries, keys and values as given.

    Without a ring the values' copy and the output.
    """
    if local.cp == 1:
        return local.query_width + local.kv_width
    return (local.cp + 1) * local.query_width + 2 * local.cp * local.kv_width


def _backward(local: Local) -> int:
    """Elements a token that `megatron-local` prices at its backward, beside the same."""
    scratch = 2 * _scratch_bytes(local) // local.itemsize
    return 4 * local.query_width + 12 * local.kv_width + scratch


@term(
    "attention.ring_steps",
    what="outputs of all steps of a long ring, and the keys and values received, kept in forward "
    "until the last step; here they are more than what its backward holds",
    when=lambda local: (
        exists(local)
        and local.cp > 1
        and local.gradients  # without, they are part of attention.forward
        and ring_elements(local) > _backward(local)
    ),
    source=RING,
)
def ring_steps(local: Local) -> Size:
    """(tokens, (cp + 1) query widths + 2 cp key widths) in the activation dtype."""
    return Size(attention_tokens=ring_elements(local) * local.itemsize)


def _scratch_bytes(local: Local) -> int:
    widths = 1 if local.num_heads == local.num_kv_heads else 3
    return 4 * (widths * local.query_width + local.num_heads)


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
    return Size(attention_tokens=_scratch_bytes(local))
