"""The shared expert: runs on every local token, whatever the routing."""

from planner.local import Local
from planner.size import Size
from planner.term import term

SEED = "seed 002: traces, shared expert at the recompute peak"


def exists(local: Local) -> bool:
    """Whether the model has a shared expert."""
    return local.shared_hidden > 0 and local.moe_layers > 0


@term(
    "shared.return",
    what="shared expert's output, held beside the routed work (gated: and before its gate)",
    when=exists,
    source=SEED + ": 4,096 + 4,096 B a local token at hidden 2048",
)
def shared_return(local: Local) -> Size:
    """(tokens, hidden) in the activation dtype."""
    return Size(tokens=local.hidden * local.itemsize)


@term(
    "shared.fc1_outputs",
    what="shared expert's gate and up",
    when=exists,
    source=SEED + ": 2,048 B a token at width 512",
)
def shared_fc1_outputs(local: Local) -> Size:
    """(tokens, 2 x shared hidden) in the activation dtype."""
    return Size(tokens=2 * local.shared_hidden * local.itemsize)


@term(
    "shared.activation",
    what="shared expert's gated activation",
    when=exists,
    source=SEED + ": 1,024 B a token at width 512",
)
def shared_activation(local: Local) -> Size:
    """(tokens, shared hidden) in the activation dtype."""
    return Size(tokens=local.shared_hidden * local.itemsize)
