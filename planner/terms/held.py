"""Held: what a pipeline and its modules hold from one microbatch to the next, and between steps."""

from planner.local import Local
from planner.size import Size
from planner.term import term


@term(
    "held.received",
    what="the stream that each virtual stage was sent last, and its gradient",
    when=lambda local: local.received > 0,
    source="Megatron-core d98e8a6: TransformerBlock.input_tensor is replaced, never let go of, and "
    "backward_step retains its gradient; case M03 has 16 of them, but for 1 MB, on two machines",
)
def received(local: Local) -> Size:
    """(tokens, hidden) twice a virtual stage that is sent any, divided like the stream."""
    return Size(tokens=2 * local.received * local.streamed(local.hidden))


def _gathered(local: Local) -> int:
    head = local.last and local.whole_head and local.sp > 1
    rows = local.hidden * local.itemsize if head else 0
    if local.dispatcher == "allgather" and local.group_ranks > 1 and local.moe_layers > 0:
        rows = max(rows, local.group_ranks * local.streamed(local.hidden))
    return rows


@term(
    "held.gathered",
    what="buffer that tokens are gathered in, over tp for the head or over ranks for experts",
    when=lambda local: _gathered(local) > 0,
    source="Megatron-core d98e8a6: GlobalMemoryBuffer grows to what the output layer or the "
    "all-gather dispatcher asks for, and stays",
)
def gathered(local: Local) -> Size:
    """(tokens, hidden) whole, or of all ranks of the expert group: the larger of them."""
    return Size(tokens=_gathered(local))


@term(
    "held.dispatchers",
    what="routing map, probabilities and permutation that each layer's dispatcher keeps",
    when=lambda local: (
        local.trained and local.moe_layers > 0 and local.dispatcher in ("alltoall", "allgather")
    ),
    source="Megatron-core d98e8a6: attributes of its token dispatchers; Transformer Engine's "
    "row-id map of (2E + 1) int32 a token (with adapters dispatch.* and router.* terms say it)",
)
def dispatchers(local: Local) -> Size:
    """All-to-all: 13 experts + 4 B a token and layer; gathered: a byte an expert, 12 B a row."""
    layers = local.moe_layers
    if local.dispatcher == "allgather":
        return Size(
            tokens=layers * local.over_sp(local.group_ranks * local.local_experts),
            rows=layers * 12,
        )
    return Size(
        tokens=layers * local.over_sp(5 * local.num_experts + 4 * (2 * local.num_experts + 1))
    )
