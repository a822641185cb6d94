"""Kept: what layers save for backward, over all microbatches in flight of a pipeline.

Layers that are checkpoints keep their input alone.
"""

from planner import layer_bytes
from planner.local import Local
from planner.size import Size
from planner.term import term
from planner.terms.dispatch import handle_bytes
from planner.units import ceil_div

SOURCE = "derivation: tensors that Megatron-core's layers save (planner/layer_bytes.py)"


@term(
    "kept.checkpoints",
    what="inputs of the checkpoints of every microbatch in flight",
    when=lambda local: local.kept.checkpoints > 0,
    source="derivation: one stream of each checkpoint",
)
def checkpoints(local: Local) -> Size:
    """(tokens, hidden) a checkpoint and microbatch in flight, in the activation dtype."""
    return Size(tokens=local.kept.checkpoints * local.streamed(local.hidden))


@term(
    "kept.norms",
    what="the stream as norms take and give it, of kept layers",
    when=lambda local: local.kept.layers > 0,
    source=SOURCE,
)
def norms(local: Local) -> Size:
    """(tokens, hidden) four times a kept layer, in the activation dtype; dropout masks."""
    less = local.kept.dense * layer_bytes.fused_norm(local)
    return Size(tokens=local.kept.layers * layer_bytes.norms(local) - less)


@term(
    "kept.attention",
    what="projections, rotated queries and keys and output of attention, of kept layers",
    when=lambda local: local.kept.attention > 0,
    source=SOURCE,
)
def attention(local: Local) -> Size:
    """(tokens, 3 query widths + 3 key widths and more) a kept layer, in the activation dtype."""
    return Size(tokens=local.kept.attention * layer_bytes.attention(local))


@term(
    "kept.scores",
    what="attention probabilities of kept layers, where attention is unfused",
    when=lambda local: local.kept.attention > 0 and local.attention == "unfused",
    source="Reducing Activation Recomputation (arXiv 2205.05198): 2 a s^2 b, 5 with dropout",
)
def scores(local: Local) -> Size:
    """(tokens, heads, sequence) a kept layer, in the activation dtype."""
    return Size(tokens=local.kept.attention * layer_bytes.scores(local))


@term(
    "kept.dense",
    what="dense feed-forward parts of kept layers",
    when=lambda local: local.kept.dense > 0,
    source=SOURCE,
)
def dense(local: Local) -> Size:
    """(tokens, 3 x dense hidden; 2 x where not gated) a kept layer, in the activation dtype."""
    return Size(tokens=local.kept.dense * layer_bytes.dense(local))


@term(
    "kept.router",
    what="router scores, routing map and row-id map of kept layers",
    when=lambda local: local.kept.moe > 0,
    source=SOURCE,
)
def router(local: Local) -> Size:
    """(tokens, experts) of 17 B, and 12 B a chosen one, a kept layer."""
    return Size(tokens=local.kept.moe * layer_bytes.router(local))


@term(
    "kept.shared",
    what="shared experts of kept layers",
    when=lambda local: local.kept.moe > 0 and local.shared_hidden > 0,
    source=SOURCE,
)
def shared(local: Local) -> Size:
    """(tokens, 3 x shared hidden) a kept layer, in the activation dtype."""
    return Size(tokens=local.kept.moe * layer_bytes.shared(local))


@term(
    "kept.routed",
    what="routed rows of kept layers: input, FC1 output, FC2 input, probability",
    when=lambda local: local.kept.moe > 0,
    source=SOURCE,
)
def routed(local: Local) -> Size:
    """(routed rows, hidden + 3 x expert hidden) a kept layer, in the activation dtype."""
    return Size(rows=local.kept.moe * layer_bytes.routed(local))


@term(
    "kept.mixer",
    what="Gated DeltaNet mixers of kept layers",
    when=lambda local: local.kept.linear > 0,
    source="published planner (domain A.6): (4 hk dk + 8 hv dv) elements a token over tp",
)
def mixer(local: Local) -> Size:
    """(tokens, 4 key widths + 8 value widths) a kept layer, in the activation dtype."""
    sizes = local.linear_attention
    assert sizes is not None  # `when` looked
    keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
    return Size(tokens=local.kept.linear * local.over_tp((4 * keys + 8 * values) * local.itemsize))


@term(
    "kept.gathered",
    what="stream gathered over tp, which adapters of column-parallel projections keep whole",
    when=lambda local: local.kept.layers > 0 and local.sp > 1 and local.dense_adapters,
    source="published planner (domain A.6): one gathered stream a layer part where tp divides it",
)
def gathered(local: Local) -> Size:
    """(tokens, hidden) for each mixer and each dense part kept, in the activation dtype, whole."""
    parts = local.kept.layers
    parts += 0 if layer_bytes.recomputes(local, "mlp") else local.kept.dense
    return Size(tokens=parts * layer_bytes.gathered(local))


@term(
    "kept.states",
    what="Gated DeltaNet states of each request, of kept layers",
    when=lambda local: local.kept.linear > 0,
    source="published planner (domain A.6): recurrent fp32 and convolution state, in and out",
)
def states(local: Local) -> Size:
    """Recurrent state fp32 and convolution state, in and out, a request and kept layer."""
    sizes = local.linear_attention
    assert sizes is not None  # `when` looked
    values = sizes.value_heads * sizes.value_dim
    convolution = 2 * sizes.key_heads * sizes.key_dim + values
    state = 4 * values * sizes.key_dim + local.itemsize * convolution * (sizes.conv_width - 1)
    return Size(requests=local.over_tp(2 * local.kept.linear * state))


@term(
    "kept.handle",
    what="HybridEP handles of kept layers",
    when=lambda local: local.kept.moe > 0 and local.dispatcher == "hybridep",
    source="domain facts B.5: sparse-to-dense, local expert map, dense-to-expert",
)
def handle(local: Local) -> Size:
    """(slots of the group, local experts) of 5 B and 5 B a slot, a kept layer."""
    return Size(group_tokens=local.kept.moe * local.over_sp(handle_bytes(local)))


@term(
    "kept.deepep",
    what="DeepEP handles of kept layers, maps and probabilities of the tokens received",
    when=lambda local: local.kept.moe > 0 and local.dispatcher == "deepep",
    source="DeepEP's dispatch handles (recv_src_idx or recv_src_meta and send_nvl_head, "
    "is_token_in_rank, send_head); Megatron-core d98e8a6: multihot map, probabilities and places; "
    "Transformer Engine's row-id map, (2 local experts + 1) int32 a token received",
)
def deepep(local: Local) -> Size:
    """5 B a rank of the group for each token; 17 local experts and 8 B for each one received.

    Over several NVLink domains 44 B for 8. A token is received once by each rank that has any of
    its experts: of independent choices ``1 - (1 - 1/ranks)^top_k`` of the group's tokens.
    """
    if layer_bytes.recomputes(local, "moe"):
        return Size()
    ranks = local.group_ranks
    each = 17 * local.local_experts + (44 if local.domains > 1 else 8)
    share = ceil_div(each * (ranks**local.top_k - (ranks - 1) ** local.top_k), ranks**local.top_k)
    return Size(
        tokens=local.kept.moe * local.over_sp(5 * ranks),
        group_tokens=local.kept.moe * local.over_sp(share),
    )


@term(
    "kept.dispatched",
    what="input of the experts once more, which their adapters keep",
    when=lambda local: local.kept.moe > 0 and local.lora_rank > 0,
    source="published planner (domain A.2, A.6): two hidden widths a (token, expert) pair",
)
def dispatched(local: Local) -> Size:
    """(routed rows, hidden) a kept layer, in the activation dtype."""
    rows = 0 if layer_bytes.recomputes(local, "moe") else local.kept.moe
    return Size(rows=rows * local.routed(local.hidden * local.itemsize))


@term(
    "kept.adapters",
    what="rows between the two matrices of the experts' adapters, of kept layers",
    when=lambda local: local.kept.moe > 0 and local.lora_rank > 0,
    source="derivation: two rank-wide intermediates a row (seed 002's trace has them)",
)
def adapters(local: Local) -> Size:
    """(routed rows, 2 x adapter rank) a kept layer, in the activation dtype."""
    rows = 0 if layer_bytes.recomputes(local, "moe") else local.kept.moe
    return Size(rows=rows * local.routed(2 * local.lora_rank * local.itemsize))
