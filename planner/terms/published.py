"""Published: the published planner's estimate where recompute is not full (domain facts A.6).

Widths are per token and rank, in bytes of bf16. Where tensor parallelism divides the sequence, a
layer's part has its norm's input and output divided, and one gathered stream beside them.
"""

from planner.local import Local
from planner.size import Size
from planner.term import term
from planner.units import ceil_div

SOURCE = "published planner, domain facts A.6"
COLD = 64 * 2**20
"""Allowance for kernels of a cold call, bytes."""


def covered(local: Local) -> bool:
    """Whether the published estimate speaks of this recompute."""
    return local.recompute in ("none", "selective")


def _ends(local: Local) -> int:
    """Return numerator over tp of a layer part's stream: 2H/sp and the gathered H."""
    gathered = local.hidden if local.sp > 1 else 0
    return 2 * local.hidden * local.tp // local.sp + gathered * local.tp


def _bytes(over_tp: int, local: Local) -> int:
    return ceil_div(over_tp * local.itemsize, local.tp)


@term(
    "published.attention",
    what="attention of all layers that have it, kept for backward",
    when=lambda local: covered(local) and local.attention_layers > 0,
    source=SOURCE,
)
def attention(local: Local) -> Size:
    """(tokens, ends + (5, or 7 with a gate) query widths + 3 key widths over tp) a layer."""
    queries, keys = local.query_width * local.tp, local.whole_kv_width
    gate = 2 if local.gated_attention else 0
    width = _ends(local) + (5 + gate) * queries + 3 * keys
    if keys < local.head_dim * local.tp:  # fewer groups than ranks: gathered, then cut
        width += (local.tp - 1) * ((1 + gate // 2) * queries + 2 * keys)
    return Size(tokens=_bytes(local.attention_layers * width, local))


@term(
    "published.mixer",
    what="Gated DeltaNet mixers, kept for backward",
    when=lambda local: covered(local) and local.linear_attention is not None,
    source=SOURCE,
)
def mixer(local: Local) -> Size:
    """(tokens, ends + 4 key widths + 8 value widths over tp) a layer."""
    sizes = local.linear_attention
    assert sizes is not None  # `when` looked
    width = _ends(local) + 4 * sizes.key_heads * sizes.key_dim
    width += 8 * sizes.value_heads * sizes.value_dim
    return Size(tokens=_bytes((local.layers - local.attention_layers) * width, local))


@term(
    "published.states",
    what="Gated DeltaNet states of each segment of the packed sequences",
    when=lambda local: covered(local) and local.linear_attention is not None,
    source=SOURCE,
)
def states(local: Local) -> Size:
    """Recurrent state fp32 and convolution state, of 4 and 2 B, in and out, a layer and segment."""
    sizes = local.linear_attention
    assert sizes is not None  # `when` looked
    values = sizes.value_heads * sizes.value_dim
    convolution = 2 * sizes.key_heads * sizes.key_dim + values
    state = 4 * values * sizes.key_dim + 2 * convolution * (sizes.conv_width - 1)
    layers = local.layers - local.attention_layers
    return Size(requests=ceil_div(2 * layers * state, local.tp))


@term(
    "published.dense",
    what="dense feed-forward parts, kept for backward; recomputed ones keep one live",
    when=lambda local: covered(local) and local.dense_layers > 0,
    source=SOURCE,
)
def dense(local: Local) -> Size:
    """(tokens, ends + 3 widths over tp; 5 where the activation is not fused) a layer."""
    inner = (3 if local.fused_activation else 5) * local.dense_hidden * local.tp
    one, boundary = _ends(local) + inner, local.hidden * local.tp // local.sp
    return Size(tokens=_bytes(_layers("mlp", local.dense_layers, one, boundary, local), local))


@term(
    "published.moe",
    what="mixture-of-experts parts, kept for backward; recomputed ones keep one live",
    when=lambda local: covered(local) and local.moe_layers > 0,
    source=SOURCE,
)
def moe(local: Local) -> Size:
    """(tokens, ends + 6 (top-k expert + shared widths) + 2 (top-k - 1) hidden) a layer."""
    experts = local.top_k * local.expert_hidden * local.etp + local.shared_hidden * local.tp
    inner = 6 * experts + 2 * local.hidden * (local.top_k - 1)
    one, boundary = _ends(local) + inner * local.tp, 2 * local.hidden * local.tp // local.sp
    return Size(tokens=_bytes(_layers("moe", local.moe_layers, one, boundary, local), local))


def _layers(module: str, layers: int, one: int, boundary: int, local: Local) -> int:
    """Return the width of all layers: each in full, or its boundary and one live copy."""
    if module in local.recompute_modules:
        return layers * boundary + one - boundary
    return layers * one


@term(
    "published.cold",
    what="allowance for kernels of a cold call",
    when=covered,
    source=SOURCE,
)
def cold(_: Local) -> Size:
    """64 MiB a call."""
    return Size(call=COLD)
