"""Dispatch: index tables of the layer at hand, and what dispatchers hold of those that are over."""

from planner.local import Local
from planner.size import Size
from planner.term import term


def _alltoall(local: Local) -> bool:
    return local.dispatcher == "alltoall" and local.moe_layers > 0


def _hybridep(local: Local) -> bool:
    return local.dispatcher == "hybridep" and local.moe_layers > 0


def _sends(local: Local) -> bool:
    return _alltoall(local) and local.ep > 1


def _own_rows(local: Local) -> Size:
    """Rows of this rank's tokens, wherever their experts are."""
    return Size(tokens=local.top_k * local.hidden * local.itemsize)


def handle_bytes(local: Local) -> int:
    """Bytes of a HybridEP handle per slot of the group (ranks x tokens of the busiest).

    Per slot: a byte and an int32 for each local expert (routing and row-id map), an int32 of the
    sparse-to-dense map, and at most one byte of the rest.
    """
    return 5 * local.local_experts + 4 + 1


@term(
    "dispatch.permutation",
    what="row-id map of the permutation, kept by each layer's dispatcher",
    when=_alltoall,
    source="seed 002: TE's row-id map, (2E + 1) x int32 a token",
)
def permutation(local: Local) -> Size:
    """(tokens, 2 x experts + 1) int32 in each layer; where state is released, in those not over."""
    width = 4 * (2 * local.num_experts + 1)
    return Size(tokens_reached=width, tokens_passed=local.passed(width))


@term(
    "dispatch.sort_index",
    what="order of routed rows by local expert",
    when=_alltoall,
    source="derivation: the chunk sort keeps one int32 a row",
)
def sort_index(_: Local) -> Size:
    """(routed rows,) int32."""
    return Size(rows=4)


@term(
    "dispatch.sent",
    what="this rank's rows as permuted to be sent, held until the experts are done",
    when=_sends,
    source="trace: Megatron's all-to-all dispatcher, whose caller holds them while experts run",
)
def sent(local: Local) -> Size:
    """(tokens x top-k, hidden) in the activation dtype."""
    return _own_rows(local)


@term(
    "dispatch.returned",
    what="rows that came back to this rank, before they are summed into its tokens",
    when=_sends,
    source="trace: received by the second all-to-all",
)
def returned(local: Local) -> Size:
    """(tokens x top-k, hidden) in the activation dtype."""
    return _own_rows(local)


@term(
    "dispatch.handle",
    what="HybridEP handle of the layer at hand",
    when=_hybridep,
    source="domain facts B.5: sparse-to-dense, local expert map, dense-to-expert",
)
def handle(local: Local) -> Size:
    """(slots of the group, local experts) of 5 B and 5 B a slot."""
    return Size(group_tokens=handle_bytes(local))


@term(
    "dispatch.probabilities",
    what="probability of each routed row, kept by each layer's HybridEP dispatcher",
    when=_hybridep,
    source="domain facts B.8: dispatched_probs stays on the manager",
)
def probabilities(local: Local) -> Size:
    """(routed rows,) fp32 in each layer; where state is released, in those not over."""
    return Size(rows_reached=4, rows_passed=local.passed(4))


@term(
    "dispatch.held_over",
    what="input and input gradient of each layer that is over, pinned by its dispatcher",
    when=lambda local: (
        local.recompute == "full"
        and not local.release_dispatcher_state
        and (_alltoall(local) or _hybridep(local))
    ),
    source="domain facts B.8 and seed 000: a probability's grad_fn reaches the recomputed graph",
)
def held_over(local: Local) -> Size:
    """(tokens, hidden) twice a layer passed; with HybridEP its handle as well."""
    stream = local.hidden * local.itemsize
    handle_width = handle_bytes(local) if local.dispatcher == "hybridep" else 0
    return Size(tokens_passed=stream, tokens_behind=stream, group_tokens_passed=handle_width)
