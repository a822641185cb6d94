"""Saved: what layers keep for backward where recompute is not full, one width at a time.

The published estimate's widths (domain facts A.6), each a term of its own, so that its copies can
be fitted on measured peaks. Sizes are sums over the layers of one rank. Where tensor parallelism
divides the sequence, adapters keep a layer part's input gathered. ``requests`` of a call are the
segments of its packed sequences, ``head_tokens`` the tokens whose hidden states are returned.
"""

from planner.local import Local
from planner.size import Size
from planner.term import term
from planner.terms.published import covered
from planner.units import ceil_div

SOURCE = "domain facts A.6, part by part"
ONE_TIME = 64 * 2**20
"""Allowance for kernels of a cold call, bytes."""
GEMM_WORKSPACE = 5 * 32 * 2**20
"""Transformer Engine's workspaces of matrix products, bytes."""


def _linear(local: Local) -> bool:
    return covered(local) and local.linear_attention is not None


def _linear_layers(local: Local) -> int:
    return local.layers - local.attention_layers


def _recomputed(local: Local) -> int:
    """Return layers whose feed-forward part is recomputed."""
    dense = local.dense_layers if "mlp" in local.recompute_modules else 0
    return dense + (local.moe_layers if "moe" in local.recompute_modules else 0)


def _kept_dense(local: Local) -> int:
    return 0 if "mlp" in local.recompute_modules else local.dense_layers


def _kept_moe(local: Local) -> int:
    return 0 if "moe" in local.recompute_modules else local.moe_layers


def _queries(local: Local) -> int:
    """Bytes of one query width of every attention layer, a token."""
    return local.attention_layers * local.query_width * local.itemsize


@term(
    "saved.stream",
    what="the stream as a layer part takes or gives it",
    when=covered,
    source=SOURCE,
)
def stream(local: Local) -> Size:
    """(tokens, hidden) a mixer and a kept feed-forward part, divided like the stream."""
    parts = local.layers + _kept_dense(local) + _kept_moe(local)
    return Size(tokens=parts * local.streamed(local.hidden))


@term(
    "saved.gathered",
    what="inputs of mixers and dense parts gathered over tp, which adapters keep whole",
    when=lambda local: covered(local) and local.sp > 1,
    source=SOURCE,
)
def gathered(local: Local) -> Size:
    """(tokens, hidden) a mixer and a kept dense part, whole."""
    parts = local.layers + _kept_dense(local)
    return Size(tokens=parts * local.hidden * local.itemsize)


@term(
    "saved.boundaries",
    what="inputs of recomputed feed-forward parts",
    when=lambda local: covered(local) and _recomputed(local) > 0,
    source=SOURCE,
)
def boundaries(local: Local) -> Size:
    """(tokens, hidden) a recomputed feed-forward part, divided like the stream."""
    return Size(tokens=_recomputed(local) * local.streamed(local.hidden))


@term(
    "saved.queries",
    what="query-wide tensors of attention: projected, normed, rotated, output, gate",
    when=lambda local: covered(local) and local.attention_layers > 0,
    source=SOURCE,
)
def queries(local: Local) -> Size:
    """(tokens, 5 query widths, 7 with a gate) an attention layer."""
    return Size(tokens=(7 if local.gated_attention else 5) * _queries(local))


@term(
    "saved.keys",
    what="key-wide tensors of attention",
    when=lambda local: covered(local) and local.attention_layers > 0,
    source=SOURCE,
)
def keys(local: Local) -> Size:
    """(tokens, 3 key widths over tp) an attention layer."""
    width = local.attention_layers * 3 * local.whole_kv_width * local.itemsize
    return Size(tokens=ceil_div(width, local.tp))


@term(
    "saved.projection",
    what="the rest of the projection of queries, keys and values, gathered where keys are too few",
    when=lambda local: (
        covered(local)
        and local.attention_layers > 0
        and local.whole_kv_width < local.head_dim * local.tp
    ),
    source=SOURCE,
)
def projection(local: Local) -> Size:
    """(tokens, (1 - 1/tp) (1 or 2 whole query widths + 2 key widths)) an attention layer."""
    whole = (2 if local.gated_attention else 1) * local.query_width * local.tp
    width = (local.tp - 1) * (whole + 2 * local.whole_kv_width)
    return Size(tokens=ceil_div(local.attention_layers * width * local.itemsize, local.tp))


@term(
    "saved.context",
    what="query-wide tensors that context-parallel attention keeps where it is not recomputed",
    when=lambda local: (
        covered(local)
        and local.cp > 1
        and local.attention_layers > 0
        and "core_attn" not in local.recompute_modules
    ),
    source="measured cells: eager attention without recompute",
)
def context(local: Local) -> Size:
    """(tokens, query width) an attention layer."""
    return Size(tokens=_queries(local))


@term(
    "saved.linear_keys",
    what="key-wide tensors of Gated DeltaNet mixers",
    when=_linear,
    source=SOURCE,
)
def linear_keys(local: Local) -> Size:
    """(tokens, 4 key widths over tp) a layer with linear attention."""
    sizes = local.linear_attention
    assert sizes is not None  # `when` looked
    width = 4 * sizes.key_heads * sizes.key_dim * local.itemsize
    return Size(tokens=ceil_div(_linear_layers(local) * width, local.tp))


@term(
    "saved.linear_values",
    what="value-wide tensors of Gated DeltaNet mixers",
    when=_linear,
    source=SOURCE,
)
def linear_values(local: Local) -> Size:
    """(tokens, 8 value widths over tp) a layer with linear attention."""
    sizes = local.linear_attention
    assert sizes is not None  # `when` looked
    width = 8 * sizes.value_heads * sizes.value_dim * local.itemsize
    return Size(tokens=ceil_div(_linear_layers(local) * width, local.tp))


@term(
    "saved.states",
    what="Gated DeltaNet states of each segment, divided over heads by tp and cp",
    when=_linear,
    source=SOURCE,
)
def states(local: Local) -> Size:
    """Recurrent state fp32 and convolution state, in and out, a segment and linear layer."""
    sizes = local.linear_attention
    assert sizes is not None  # `when` looked
    values = sizes.value_heads * sizes.value_dim
    convolution = 2 * sizes.key_heads * sizes.key_dim + values
    state = 4 * values * sizes.key_dim + local.itemsize * convolution * (sizes.conv_width - 1)
    return Size(requests=ceil_div(2 * _linear_layers(local) * state, local.tp * local.cp))


@term(
    "saved.dense",
    what="inside of kept dense parts: FC1's output, FC2's input, unfused halves",
    when=lambda local: covered(local) and _kept_dense(local) > 0,
    source=SOURCE,
)
def dense(local: Local) -> Size:
    """(tokens, 3 dense widths; 5 where the activation is not fused) a kept dense part."""
    widths = 3 if local.fused_activation else 5
    return Size(tokens=_kept_dense(local) * widths * local.dense_hidden * local.itemsize)


@term(
    "saved.routed",
    what="routed rows of kept expert parts: two inputs, FC1's output, FC2's input",
    when=lambda local: covered(local) and _kept_moe(local) > 0,
    source="derivation; domain facts A.6 has 2 hidden + 6 expert widths a pair, at the worst rank",
)
def routed(local: Local) -> Size:
    """(routed rows, 2 hidden + 3 expert widths) a kept expert part."""
    width = 2 * local.hidden + 3 * local.expert_hidden
    return Size(rows=_kept_moe(local) * local.routed(width * local.itemsize))


@term(
    "saved.router",
    what="router scores and maps, and the shared expert, of kept expert parts",
    when=lambda local: covered(local) and _kept_moe(local) > 0,
    source="derivation: 17 B an expert and token; three shared widths",
)
def router(local: Local) -> Size:
    """(tokens, experts) of 17 B and (tokens, 3 shared widths) a kept expert part."""
    each = ceil_div(17 * local.num_experts, local.sp) + 3 * local.shared_hidden * local.itemsize
    return Size(tokens=_kept_moe(local) * each)


@term(
    "saved.outputs",
    what="hidden states that the call returns, and what the caller's loss makes of them",
    when=covered,
    source="derivation: a mean-square loss in fp32 holds six more (two copies, their gradients)",
)
def outputs(local: Local) -> Size:
    """(tokens, hidden) of those returned, in the activation dtype."""
    return Size(head_tokens=local.hidden * local.itemsize)


@term(
    "saved.hand_stream",
    what="the stream of the layer at hand, whole",
    when=covered,
    source="measured cells: forward peak less what is retained",
)
def hand_stream(local: Local) -> Size:
    """(tokens, hidden) in the activation dtype."""
    return Size(tokens=local.hidden * local.itemsize)


@term(
    "saved.hand_dense",
    what="inside of the recomputed dense part at hand",
    when=lambda local: covered(local) and local.dense_layers > 0 and _recomputed(local) > 0,
    source="derivation: three widths made again and three of gradients",
)
def hand_dense(local: Local) -> Size:
    """(tokens, dense width) in the activation dtype."""
    return Size(tokens=local.dense_hidden * local.itemsize)


@term(
    "saved.hand_routed",
    what="routed rows of the expert part at hand",
    when=lambda local: covered(local) and local.moe_layers > 0,
    source="seeds 000 and 002: 5 hidden + 3 expert widths a row at the adapter sum of FC2",
)
def hand_routed(local: Local) -> Size:
    """(routed rows, 5 hidden + 3 expert widths) in the activation dtype."""
    return Size(rows=local.routed((5 * local.hidden + 3 * local.expert_hidden) * local.itemsize))


@term(
    "saved.expert_weights",
    what="one layer's expert weights in another layout, made by the first call",
    when=lambda local: covered(local) and local.moe_layers > 0,
    source="measured cells: what a cold call retains beyond a warm one",
)
def expert_weights(local: Local) -> Size:
    """(local experts, 3 hidden expert widths) in the activation dtype, once."""
    each = 3 * local.hidden * local.expert_hidden * local.itemsize
    return Size(call=local.local_experts * each)


@term(
    "saved.workspaces",
    what="workspaces of matrix products that the first call with experts makes",
    when=lambda local: covered(local) and local.moe_layers > 0,
    source="published planner: Transformer Engine's workspaces, 5 x 32 MiB",
)
def workspaces(_: Local) -> Size:
    """160 MiB, once."""
    return Size(call=GEMM_WORKSPACE)


@term(
    "saved.first_call",
    what="allowance for kernels of a cold call",
    when=covered,
    source="published planner: 64 MiB",
)
def first_call(_: Local) -> Size:
    """64 MiB, once."""
    return Size(call=ONE_TIME)
