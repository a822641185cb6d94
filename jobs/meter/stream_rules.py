"""Rules for the residual stream, attention and head: what every layer has, routed or not."""

from jobs.meter.attribution import Rule

LAYER = r"decoder\.layers\.\d+"
SELF_ATTENTION = LAYER + r"\.self_attention"
BACKWARD = ("backward",)
PASSING = ("recompute", "backward")
"""At hand once backward has begun: the layers above are over, and only held."""

RESIDUAL = (
    Rule(
        term="dispatch.held_over",
        why="input of a layer whose backward is over, the output of the one before: its dispatcher "
        "holds a tensor whose grad_fn reaches it",
        module=LAYER,
        op=r"add\.Tensor",
        phases=("forward",),
        hand=PASSING,
        least=0,
    ),
    Rule(
        term="residual.stream",
        why="in forward, the sums of the layer at hand; at the head, the last layer's output",
        module=LAYER,
        op=r"add\.Tensor",
        phases=("forward",),
        hand=("forward", "head"),
        least=0,
    ),
    Rule(
        term="residual.boundaries",
        why="output of a layer, the next one's checkpointed input",
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
        term="dispatch.held_over",
        why="gradient of such a layer's input, pinned beside it; that of the nearest one is what "
        "the layer at hand receives",
        module=LAYER + r"\.input_layernorm",
        op=r"add\.Tensor",
        phases=BACKWARD,
        hand=PASSING,
        least=2,
    ),
    Rule(
        term="residual.statistics",
        why="norms' reciprocal root mean squares, one fp32 a token",
        module=rf"({LAYER}\.(input|pre_mlp)|decoder\.final)_layernorm",
        dtype="float32",
        shape=("T",),
    ),
    Rule(
        term="residual.stream",
        why="norm outputs and the gradients through norms and skip paths, (T, H)",
        module=rf"({LAYER}\.(input|pre_mlp)|decoder\.final)_layernorm",
    ),
    Rule(
        term="residual.stream",
        why="residual sums of the layer run again",
        module=LAYER,
        op=r"add\.Tensor",
    ),
    Rule(
        term="residual.stream",
        why="copy of layer 0's input gradient, the embedding output's .grad",
        module="",
        node="AccumulateGrad",
        phases=BACKWARD,
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
        term="head.outputs",
        why="log-probabilities and log-sum-exps, a chunk's and all tokens', fp32",
        module="head",
        dtype="float32",
    ),
    Rule(
        term="head.outputs",
        why="the loss, its scale and the gradient that starts backward",
        module="",
        shape=(),
    ),
)

ATTENTION_FORWARD = (
    Rule(
        term="attention.forward",
        why="in forward, what attention of the layer at hand has made: nothing of it is kept where "
        "the layer will be run again, or has no backward",
        module=SELF_ATTENTION + r"(\..*)?",
        phases=("forward",),
        hand=("forward",),
        least=0,
    ),
)
"""Of layers that are recomputed."""

ATTENTION = (
    Rule(
        term="attention.angles",
        why="the angles of every token, made once a call: positions, half and whole table",
        module="",
        op=r"_to_copy|mul\.Tensor|cat",
        phases=("forward",),
    ),
    Rule(
        term="attention.rotary",
        why="a layer's cosines and sines of every token, in fp32 and in the activation dtype",
        module=SELF_ATTENTION,
        shape=("T", "turned"),
    ),
    Rule(
        term="attention.statistics",
        why="log-sum-exp of every query and head",
        module=SELF_ATTENTION + r"\.core_attention",
        dtype="float32",
        shape=("heads", "T"),
    ),
    Rule(
        term="attention.statistics",
        why="the query and key norms' row statistics and weight gradients",
        module=SELF_ATTENTION + r"\.[qk]_layernorm",
        shape=("*",),
    ),
    Rule(
        term="attention.output",
        why="attention's output, (T, Q)",
        module=SELF_ATTENTION + r"\.core_attention",
        shape=("T", "Q"),
    ),
    Rule(
        term="attention.output",
        why="its gradient",
        module=SELF_ATTENTION + r"\.linear_proj",
        phases=BACKWARD,
    ),
    Rule(
        term="residual.stream",
        why="attention's contribution to the stream, (T, H)",
        module=SELF_ATTENTION + r"\.linear_proj",
    ),
    Rule(
        term="residual.stream",
        why="gradient of attention's input, (T, H)",
        module=SELF_ATTENTION + r"\.linear_qkv",
        phases=BACKWARD,
    ),
    Rule(
        term="attention.qkv",
        why="the fused projection's output",
        module=SELF_ATTENTION + r"\.linear_qkv",
    ),
    Rule(
        term="attention.qkv",
        why="its gradient, put together of queries', keys' and values'",
        module=SELF_ATTENTION,
        node="SplitWithSizesBackward0",
    ),
    Rule(
        term="attention.keys",
        why="local keys and values, before and after norm and rotation, and their gradients",
        module=SELF_ATTENTION + r"(\.core_attention|\.k_layernorm)?",
        shape=("T", "kv_heads", "D"),
    ),
    Rule(
        term="attention.keys",
        why="channels that are turned, the half of them that is negated, and those that are not",
        module=SELF_ATTENTION,
        shape=("T", "kv_heads", "part"),
    ),
    Rule(
        term="attention.gathered_keys",
        why="keys and values of all context-parallel ranks, (cp·T, kv heads, D), and gradients",
        module=SELF_ATTENTION + r"\.core_attention",
        shape=("*", "kv_heads", "D"),
    ),
    Rule(
        term="attention.queries",
        why="queries before and after norm and rotation, and their gradients",
        module=SELF_ATTENTION + r"(\.core_attention|\.q_layernorm)?",
    ),
)
