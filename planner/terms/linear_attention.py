"""Linear attention of the layer at hand, where it has a Gated DeltaNet mixer.

Context parallelism divides heads here, not tokens, so that a local token's bytes are the same.
"""

from planner.local import Local
from planner.mixers import LinearAttention
from planner.size import Size
from planner.term import term
from planner.units import ceil_div

FLA = "flash-linear-attention's kernels, as jobs/model/kernels state them; ledger traces 2026-11-30"
CHUNK = 64
"""Positions that the chunked rule takes at a time."""


def exists(local: Local) -> bool:
    """Whether this rank has a layer with linear attention."""
    return bool(local.linear_layers)


def _sizes(local: Local) -> LinearAttention:
    assert local.linear_attention is not None  # `when` looked
    return local.linear_attention


def _keys(local: Local) -> int:
    return _sizes(local).key_heads * _sizes(local).key_dim


def _values(local: Local) -> int:
    return _sizes(local).value_heads * _sizes(local).value_dim


def _per_token(local: Local, elements: int) -> Size:
    return Size(linear_tokens=ceil_div(elements * local.itemsize, local.tp))


@term(
    "gdn.projected",
    what="the projection's output as it is sent, received and put in order over cp",
    when=exists,
    source=FLA,
)
def projected(local: Local) -> Size:
    """(tokens, 2 x key width + 2 x value width + 2 x value heads) in the activation dtype."""
    return _per_token(local, 2 * (_keys(local) + _values(local) + _sizes(local).value_heads))


@term(
    "gdn.inputs",
    what="queries, keys and values as the causal convolution takes them",
    when=exists,
    source=FLA,
)
def inputs(local: Local) -> Size:
    """(tokens, 2 x key width + value width) in the activation dtype."""
    return _per_token(local, 2 * _keys(local) + _values(local))


@term(
    "gdn.keys",
    what="queries and keys of unit length, before each is given to its value heads",
    when=lambda local: exists(local) and _sizes(local).value_heads > _sizes(local).key_heads,
    source=FLA,
)
def keys(local: Local) -> Size:
    """(tokens, key width) in the activation dtype: queries or keys."""
    return _per_token(local, _keys(local))


@term(
    "gdn.heads",
    what="queries, keys, values, outputs and gate of every value head; in backward what is of "
    "their shape",
    when=exists,
    source=FLA,
)
def heads(local: Local) -> Size:
    """(tokens, value heads x (2 x key channels + 3 x value channels)) in the activation dtype."""
    sizes = _sizes(local)
    return _per_token(local, sizes.value_heads * (2 * sizes.key_dim + 3 * sizes.value_dim))


@term(
    "gdn.outputs",
    what="normed outputs, kept where the output projection has an adapter",
    when=exists,
    source=FLA,
)
def outputs(local: Local) -> Size:
    """(tokens, value width) in the activation dtype."""
    return _per_token(local, _values(local))


@term(
    "gdn.mixing",
    what="A: how the positions of a chunk act on each other",
    when=exists,
    source=FLA,
)
def mixing(local: Local) -> Size:
    """(tokens, value heads, 64) in the activation dtype."""
    return _per_token(local, _sizes(local).value_heads * CHUNK)


@term(
    "gdn.states",
    what="state at the start of each chunk, and its gradient",
    when=exists,
    source=FLA,
)
def states(local: Local) -> Size:
    """(chunks, value heads, key channels, value channels) in the activation dtype.

    A request's last chunk may be short: one more is counted for each request, at most 63/64 too
    much.
    """
    sizes = _sizes(local)
    state = sizes.value_heads * sizes.key_dim * sizes.value_dim * local.itemsize
    share = local.tp * local.cp
    return Size(
        linear_tokens=ceil_div(state, CHUNK * local.tp), linear_requests=ceil_div(state, share)
    )


@term(
    "gdn.scalars",
    what="decay, write strength and norms of each token and head",
    when=exists,
    source=FLA,
)
def scalars(local: Local) -> Size:
    """(tokens, 3 x value heads + 2 x key heads) fp32, and value heads in the activation dtype."""
    sizes = _sizes(local)
    wide = 4 * (3 * sizes.value_heads + 2 * sizes.key_heads)
    return Size(linear_tokens=ceil_div(wide + local.itemsize * sizes.value_heads, local.tp))
