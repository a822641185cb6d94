"""The residual stream: checkpointed boundaries, what flows inside a layer, and gradients."""

from planner.local import Local
from planner.size import Size
from planner.term import term


@term(
    "residual.boundaries",
    what="saved input of each checkpointed layer whose backward is still to come; without a "
    "backward, inputs that forward itself holds",
    when=lambda local: local.recompute == "full",
    persists=True,
    source="derivation: full uniform recompute keeps one (tokens, hidden) a layer",
)
def boundaries(local: Local) -> Size:
    """(tokens, hidden) a layer entered, in the activation dtype."""
    return Size(tokens_entered=local.hidden * local.itemsize)


@term(
    "residual.input_gradients",
    what="one gradient for each boundary, as the published planner allows for",
    when=lambda local: local.recompute == "full",
    persists=True,
    source="published planner: boundary input gradients at TP1, one per boundary",
)
def input_gradients(local: Local) -> Size:
    """(tokens, hidden) for every layer, in the activation dtype."""
    return Size(tokens=local.layers * local.hidden * local.itemsize)


@term(
    "residual.stream",
    what="norms, residual sums and their gradients inside the layer at hand",
    source="derivation: (tokens, hidden) tensors between a layer's modules",
)
def stream(local: Local) -> Size:
    """(tokens, hidden) in the activation dtype."""
    return Size(tokens=local.hidden * local.itemsize)


@term(
    "residual.statistics",
    what="norms of the stream in the layer at hand",
    source="derivation: one fp32 a token and norm",
)
def statistics(_: Local) -> Size:
    """(tokens,) fp32."""
    return Size(tokens=4)


@term(
    "residual.floor",
    what="static activation floor of the published planner: clamp(layers // 4 + 4, 4, 16) streams",
    source="published planner: static activation floor",
)
def floor(local: Local) -> Size:
    """(tokens, hidden) x clamp(layers // 4 + 4, 4, 16), in the activation dtype."""
    copies = min(max(local.layers // 4 + 4, 4), 16)
    return Size(tokens=copies * local.hidden * local.itemsize)
