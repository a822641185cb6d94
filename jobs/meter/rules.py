"""The rules by which storages of the model under test go to planner terms.

They read top to bottom; the first that matches decides. Written against the real model (all-to-all
at EP1, HybridEP and all-to-all above, CP, full recompute and none, adapters and none).
"""

from collections.abc import Iterable

from jobs.meter.attribution import Rule
from planner.model import Model
from planner.step import Step

LAYER = r"decoder\.layers\.\d+"
MLP = LAYER + r"\.mlp"
EXPERTS = MLP + r"\.experts"
SHARED = MLP + r"\.shared_experts"
ATTENTION = LAYER + r"\.self_attention"
INTEGERS = r"u?int\d+|bool"
FORWARD = ("forward", "recompute")
BACKWARD = ("backward",)

GRADIENTS = (
    Rule(
        term="adapters.gradients",
        why=".grad of an adapter: it stays until the optimizer has used it",
        module=EXPERTS + r"\.fc[12]",
        shape=("...", "r", "*"),
        gradient=True,
    ),
    Rule(
        term="adapters.gradients",
        why="the same of the adapter's first factor, (experts, in, r)",
        module=EXPERTS + r"\.fc[12]",
        shape=("...", "r"),
        gradient=True,
    ),
    Rule(
        term="weights.gradients",
        why=".grad of any other parameter, where the base trains",
        gradient=True,
    ),
)

RESIDUAL = (
    Rule(
        term="residual.boundaries",
        why="output of a layer is the next one's checkpointed input (in its own forward, the sum "
        "after attention bears the same tags)",
        module=LAYER,
        op=r"add\.Tensor",
        phases=("forward",),
    ),
    Rule(
        term="residual.boundaries",
        why="the embedding's output is layer 0's checkpointed input",
        module="embedding",
        phases=("forward",),
    ),
    Rule(
        term="residual.input_gradients",
        why="gradient of a layer's input, summed over norm and skip path: the .grad of the "
        "checkpoint's detached input, alive as long as that is",
        module=LAYER + r"\.input_layernorm",
        op=r"add\.Tensor",
        phases=BACKWARD,
    ),
    Rule(
        term="residual.input_gradients",
        why="copy of layer 0's input gradient, the embedding output's .grad",
        module="",
        node="AccumulateGrad",
        phases=BACKWARD,
    ),
    Rule(
        term="residual.stream",
        why="residual sums of the layer run again, and of skip paths in backward",
        module=LAYER,
        op=r"add\.Tensor",
    ),
    Rule(
        term="residual.stream",
        why="norms: outputs, row statistics, gradients",
        module=rf"({LAYER}\.(input|pre_mlp)|decoder\.final)_layernorm",
    ),
)

ATTENTION_RULES = (
    Rule(
        term="attention.core",
        why="attention output, log-sum-exp, gathered keys and values, and their gradients",
        module=ATTENTION + r"\.core_attention",
    ),
    Rule(
        term="attention.rotary",
        why="a layer's cosines and sines of every token, in fp32 and in the activation dtype",
        module=ATTENTION,
        shape=("T", "D"),
    ),
    Rule(
        term="attention.rotary",
        why="the angles of every token, made once a call: positions, half and whole table",
        module="",
        op=r"_to_copy|mul\.Tensor|cat",
        phases=("forward",),
    ),
    Rule(
        term="attention.projections",
        why="query, key and value before and after norm and rotation, output projection, gradients",
        module=ATTENTION + r"(\..*)?",
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
        term="router.scores",
        why="logits, top-k and probabilities, (T, E) and (T, k); in backward the gate's products",
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

DISPATCH = (
    Rule(
        term="dispatch.permutation",
        why="row-id maps, chunk destinations, handles, gathered routing maps, counts",
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
        why="one fp32 a routed row, permuted or dispatched, and its gradient",
        module=MLP,
        dtype="float32",
        shape=("*",),
    ),
    Rule(
        term="experts.dispatched_inputs",
        why="routed rows (R, H) on their way to the experts, and all that an all-to-all receives",
        module=MLP,
        op=r"new_empty|peakcast\.(permute|sort_chunks_with_probs)",
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

EXPERT_RULES = (
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
        module=EXPERTS + r"\.fc[12]",
        shape=("*", "r"),
    ),
    Rule(
        term="experts.fc1_outputs",
        why="base, adapter and sum, (R, 2F)",
        module=EXPERTS + r"\.fc1",
        phases=FORWARD,
    ),
    Rule(
        term="experts.dispatched_inputs",
        why="gradients of FC1's input from base and adapter and their sum, (R, H)",
        module=EXPERTS + r"\.fc1",
        phases=BACKWARD,
    ),
    Rule(
        term="experts.fc2_outputs",
        why="base, adapter and sum, (R, H)",
        module=EXPERTS + r"\.fc2",
        phases=FORWARD,
    ),
    Rule(
        term="experts.fc2_inputs",
        why="gradients of FC2's input from base and adapter and their sum, (R, F)",
        module=EXPERTS + r"\.fc2",
        phases=BACKWARD,
    ),
)

SHARED_RULES = (
    Rule(
        term="shared.fc1_outputs",
        why="gate and up, (T, 2Fs)",
        module=SHARED + r"\.linear_fc1",
        phases=FORWARD,
    ),
    Rule(
        term="residual.stream",
        why="gradient of the shared expert's input, (T, H)",
        module=SHARED + r"\.linear_fc1",
        phases=BACKWARD,
    ),
    Rule(
        term="shared.activation",
        why="SwiGLU, (T, Fs)",
        module=SHARED,
        op=r"peakcast\.swiglu",
    ),
    Rule(
        term="shared.fc1_outputs",
        why="gradient of SwiGLU's argument, (T, 2Fs)",
        module=SHARED,
        op=r"peakcast\.swiglu_backward",
    ),
    Rule(
        term="shared.activation",
        why="gradient of SwiGLU, (T, Fs)",
        module=SHARED + r"\.linear_fc2",
        phases=BACKWARD,
    ),
    Rule(
        term="shared.return",
        why="the shared expert's output before and after its gate, the gate, and their gradients",
        module=SHARED + r"(\.linear_fc2)?",
    ),
)

HEAD = (
    Rule(
        term="head.logits",
        why="one chunk's logits, and in backward their gradient",
        module="head",
        op=r"mm|peakcast\.logits_gradient",
        shape=("*", "V"),
    ),
    Rule(
        term="residual.stream",
        why="gradient of the head's input, (T, H)",
        module="head",
        shape=("T", "H"),
        phases=BACKWARD,
    ),
    Rule(
        term="head.statistics",
        why="log-probabilities and log-sum-exps, a chunk's and all tokens', fp32",
        module="head",
        dtype="float32",
    ),
    Rule(
        term="head.statistics",
        why="the loss, its scale and the gradient that starts backward",
        module="",
        shape=(),
    ),
)

RULES: tuple[Rule, ...] = (
    *GRADIENTS,
    *RESIDUAL,
    *HEAD,
    *ATTENTION_RULES,
    *ROUTER,
    *DISPATCH,
    *EXPERT_RULES,
    *SHARED_RULES,
)


def symbols(model: Model, step: Step, tokens: Iterable[int]) -> dict[str, frozenset[int]]:
    """Return the sizes that the rules' names stand for.

    Parameters
    ----------
    tokens
        Local tokens of each child of the call. Where a layer's routed rows happen to equal them,
        its (R, H) tensors in the dispatcher read as (T, H).
    """
    sizes = {
        "H": model.hidden,
        "E": model.num_experts,
        "V": model.vocab,
        "D": model.head_dim,
        "r": step.lora_rank,
    }
    return {"T": frozenset(tokens)} | {name: frozenset((size,)) for name, size in sizes.items()}
