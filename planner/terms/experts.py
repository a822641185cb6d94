"""Routed experts: whole routed tensors between dispatch and combine, and the experts' adapters."""

from planner.local import Local
from planner.size import Size
from planner.term import term
from planner.terms.router import exists

TRACE = "seed 002: allocator traces, 11,792 elements per routed row at the recompute peak"


@term(
    "experts.dispatched_inputs",
    what="routed rows as the experts receive them",
    when=exists,
    source=TRACE,
)
def dispatched_inputs(local: Local) -> Size:
    """(routed rows, hidden) in the activation dtype."""
    return Size(rows=local.hidden * local.itemsize)


@term(
    "experts.probabilities",
    what="router probability of each routed row",
    when=exists,
    source="derivation: the dispatcher hands one fp32 a row to the experts",
)
def probabilities(_: Local) -> Size:
    """(routed rows,) fp32."""
    return Size(rows=4)


@term(
    "experts.fc1_outputs",
    what="FC1 gate and up: base, adapter and their sum",
    when=exists,
    source=TRACE,
)
def fc1_outputs(local: Local) -> Size:
    """(routed rows, 2 x expert hidden) in the activation dtype."""
    return Size(rows=2 * local.expert_hidden * local.itemsize)


@term(
    "experts.fc2_inputs",
    what="gated activation, the input of FC2",
    when=exists,
    source=TRACE,
)
def fc2_inputs(local: Local) -> Size:
    """(routed rows, expert hidden) in the activation dtype."""
    return Size(rows=local.expert_hidden * local.itemsize)


@term(
    "experts.fc2_outputs",
    what="FC2: base, adapter and their sum",
    when=exists,
    source=TRACE,
)
def fc2_outputs(local: Local) -> Size:
    """(routed rows, hidden) in the activation dtype."""
    return Size(rows=local.hidden * local.itemsize)


@term(
    "experts.adapter_intermediates",
    what="rows between an adapter's two matrices",
    when=lambda local: local.lora_rank > 0 and local.moe_layers > 0,
    source="derivation: 11,792 traced less 11,776 priced elements are two rank-8 intermediates",
)
def adapter_intermediates(local: Local) -> Size:
    """(routed rows, adapter rank) in the activation dtype."""
    return Size(rows=local.lora_rank * local.itemsize)
