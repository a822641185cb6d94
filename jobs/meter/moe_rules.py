"""Rules for a layer's experts: router, dispatch, routed and shared experts."""

from jobs.meter.attribution import Rule
from jobs.meter.stream_rules import BACKWARD, LAYER, PASSING

MLP = LAYER + r"\.mlp"
EXPERTS = MLP + r"\.experts"
SHARED_EXPERT = MLP + r"\.shared_experts"
INTEGERS = r"u?int\d+|bool"
FORWARD = ("forward", "recompute")

GRADIENTS = (
    Rule(
        term="weights.gradients",
        why=".grad of any parameter but an adapter's, where the base trains",
        gradient=True,
    ),
)

ROUTER = (
    Rule(
        term="router.map",
        why="which experts a token goes to, (T, E) bool and the int32 it is made from",
        module=MLP + r"\.router",
        dtype=INTEGERS,
        shape=("T", "E"),
    ),
    Rule(
        term="router.choices",
        why="top-k: indices int64, logits and probabilities fp32, gradients",
        module=MLP + r"\.router",
        shape=("T", "k"),
    ),
    Rule(
        term="residual.stream",
        why="gradient of the router's input, in fp32 and in the activation dtype",
        module=MLP + r"\.router",
        shape=("T", "H"),
        phases=BACKWARD,
    ),
    Rule(
        term="router.scores",
        why="logits and probabilities of all experts, (T, E) fp32; in backward the gate's weight",
        module=MLP + r"\.router",
    ),
    Rule(
        term="router.scores",
        why="gradient of the probabilities as the dispatcher returns it",
        module=MLP,
        dtype=r"float\d+|bfloat16",
        shape=("T", "E"),
    ),
)

HYBRIDEP = (
    Rule(
        term="dispatch.held_over",
        why="HybridEP handle of a layer whose backward is over",
        module=MLP,
        op="new_empty",
        dtype=INTEGERS,
        hand=PASSING,
        least=1,
    ),
    Rule(
        term="dispatch.handle",
        why="HybridEP handle, gathered routing maps and counts",
        module=MLP,
        op="new_empty",
        dtype=INTEGERS,
    ),
    Rule(
        term="dispatch.probabilities",
        why="dispatched probabilities, one fp32 a routed row; they stay on HybridEP's manager",
        module=MLP,
        op="new_empty",
        dtype="float32",
        shape=("*",),
        phases=FORWARD,
    ),
)

SENT = (
    Rule(
        term="dispatch.sent",
        why="rows as permuted to be sent, (T x k, H)",
        module=MLP,
        op=r"peakcast\.permute",
        shape=("*", "H"),
        phases=FORWARD,
    ),
)

DISPATCH = (
    Rule(
        term="dispatch.sort_index",
        why="where the chunk sort puts each row, (R,) int32",
        module=MLP,
        op=r"peakcast\.sort_chunks.*|empty\.memory_format",
        dtype=INTEGERS,
        shape=("*",),
    ),
    Rule(
        term="dispatch.permutation",
        why="row-id map of the permutation, and counts",
        module=MLP,
        dtype=INTEGERS,
    ),
    Rule(
        term="residual.stream",
        why="tokens as they come back: unpermuted or combined, summed with the shared expert; in "
        "backward the gradient of the MLP's input",
        module=MLP,
        shape=("T", "H"),
    ),
    Rule(
        term="experts.probabilities",
        why="probabilities as permuted and sorted, and gradients",
        module=MLP,
        dtype="float32",
        shape=("*",),
    ),
    Rule(
        term="experts.dispatched_inputs",
        why="routed rows (R, H) on their way to the experts, and all that an all-to-all receives",
        module=MLP,
        op=r"new_empty|empty\.memory_format|peakcast\.(permute|sort_chunks_with_probs)",
        shape=("*", "H"),
        phases=FORWARD,
    ),
    Rule(
        term="experts.dispatched_inputs",
        why="their gradients on the way back to the tokens",
        module=MLP,
        node=".*sort_chunks_with_probs.*",
        shape=("*", "H"),
        phases=BACKWARD,
    ),
    Rule(
        term="experts.fc2_outputs",
        why="the experts' outputs sorted back, and the gradients that reach the experts",
        module=MLP,
        shape=("*", "H"),
    ),
)

ROUTED = (
    Rule(
        term="experts.probabilities",
        why="gradient of the routed rows' probabilities",
        module=EXPERTS,
        dtype="float32",
        shape=("*",),
    ),
    Rule(
        term="experts.fc2_inputs",
        why="weighted SwiGLU of the routed rows, (R, F)",
        module=EXPERTS,
        phases=FORWARD,
    ),
    Rule(
        term="experts.fc1_outputs",
        why="gradient of SwiGLU's argument, (R, 2F)",
        module=EXPERTS,
        phases=BACKWARD,
    ),
    Rule(
        term="experts.adapter_intermediates",
        why="rows between an adapter's two factors and their gradients, (R, r)",
        module=EXPERTS + r"\.(linear_)?fc[12]",
        shape=("*", "r"),
    ),
    Rule(
        term="experts.fc1_outputs",
        why="base, adapter and sum, (R, 2F)",
        module=EXPERTS + r"\.(linear_)?fc1",
        phases=FORWARD,
    ),
    Rule(
        term="experts.dispatched_inputs",
        why="gradients of FC1's input from base and adapter and their sum, (R, H)",
        module=EXPERTS + r"\.(linear_)?fc1",
        phases=BACKWARD,
    ),
    Rule(
        term="experts.fc2_outputs",
        why="base, adapter and sum, (R, H)",
        module=EXPERTS + r"\.(linear_)?fc2",
        phases=FORWARD,
    ),
    Rule(
        term="experts.fc2_inputs",
        why="gradients of FC2's input from base and adapter and their sum, (R, F)",
        module=EXPERTS + r"\.(linear_)?fc2",
        phases=BACKWARD,
    ),
)

SHARED = (
    Rule(
        term="shared.fc1_outputs",
        why="gate and up, (T, 2Fs)",
        module=SHARED_EXPERT + r"\.linear_fc1",
        phases=FORWARD,
    ),
    Rule(
        term="residual.stream",
        why="gradient of the shared expert's input, (T, H)",
        module=SHARED_EXPERT + r"\.linear_fc1",
        phases=BACKWARD,
    ),
    Rule(
        term="shared.activation",
        why="SwiGLU, (T, Fs)",
        module=SHARED_EXPERT,
        op=r"peakcast\.swiglu",
    ),
    Rule(
        term="shared.fc1_outputs",
        why="gradient of SwiGLU's argument, (T, 2Fs)",
        module=SHARED_EXPERT,
        op=r"peakcast\.swiglu_backward",
    ),
    Rule(
        term="shared.activation",
        why="gradient of SwiGLU, (T, Fs)",
        module=SHARED_EXPERT + r"\.linear_fc2",
        phases=BACKWARD,
    ),
    Rule(
        term="shared.return",
        why="the shared expert's output before and after its gate, the gate, and their gradients",
        module=SHARED_EXPERT + r"(\.linear_fc2)?",
    ),
)


def dispatch(dispatcher: str, ep: int) -> tuple[Rule, ...]:
    """Return the rules of a dispatcher: another's have no business with its tensors."""
    if dispatcher == "hybridep":
        return (*HYBRIDEP, *DISPATCH)
    return (*SENT, *DISPATCH) if ep > 1 else DISPATCH
