"""The router: scores and choices, kept by every layer's dispatcher until it runs again."""

from planner.local import Local
from planner.size import Size
from planner.term import term


def exists(local: Local) -> bool:
    """Whether any layer of this rank has routed experts."""
    return local.moe_layers > 0


SEED = "seed 002: per-token MoE state, E x fp32 scores and an E-byte map"


@term(
    "router.scores",
    what="probability of every expert, kept by each layer's dispatcher",
    when=exists,
    source=SEED,
)
def scores(local: Local) -> Size:
    """(tokens, experts) fp32 in each layer; where state is released, in those not over."""
    width = 4 * local.num_experts
    return Size(tokens_reached=width, tokens_passed=local.passed(width))


@term(
    "router.map",
    what="which experts a token goes to, kept by each layer's dispatcher",
    when=exists,
    source=SEED,
)
def routing_map(local: Local) -> Size:
    """(tokens, experts) bytes in each layer; where state is released, in those not over."""
    return Size(tokens_reached=local.num_experts, tokens_passed=local.passed(local.num_experts))


@term(
    "router.choices",
    what="indices and probabilities of the chosen experts, in the layer at hand",
    when=exists,
    source="derivation: top-k indices int64 and probabilities fp32",
)
def choices(local: Local) -> Size:
    """(tokens, top-k) of 12 B."""
    return Size(tokens=12 * local.top_k)


@term(
    "router.input_gradient",
    what="gradient of the gate's input, in fp32 and again as it is summed",
    when=exists,
    source="ledger traces: the fp32 gate makes its input's gradient in fp32",
)
def input_gradient(local: Local) -> Size:
    """(tokens, hidden) fp32."""
    return Size(tokens=4 * local.hidden)


@term(
    "router.gate_gradient",
    what="gradient of the gate's weight",
    when=exists,
    source="ledger traces: Megatron's gate makes it, frozen or not",
)
def gate_gradient(local: Local) -> Size:
    """(experts, hidden) fp32."""
    return Size(call=4 * local.num_experts * local.hidden)


@term(
    "router.score_gradient",
    what="gradient of every expert's score",
    when=exists,
    source="ledger traces: that of the logits, beside the one of the gate's input it becomes",
)
def score_gradient(local: Local) -> Size:
    """(tokens, experts) fp32."""
    return Size(tokens=4 * local.num_experts)
