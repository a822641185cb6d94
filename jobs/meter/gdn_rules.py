"""Rules for linear attention: a Gated DeltaNet in the place of a layer's self-attention.

Over context-parallel ranks heads are divided and tokens are those of all ranks: widths are one
rank's share, and first dimensions are free. Before and behind the exchange tokens are local and
widths whole: such tensors are sorted by operator.
"""

from jobs.meter.attribution import Rule
from jobs.meter.stream_rules import BACKWARD, SELF_ATTENTION

CORE = SELF_ATTENTION + r"\.core"
RULE = r"peakcast\.gated_delta_rule(_backward)?"
NORMS = r"peakcast\.(unit|gated)_norm(_backward)?"

GDN = (
    Rule(
        term="gdn.states",
        why="a chunk's state at its start, (chunks, heads, dk, dv), and its gradient",
        module=CORE,
        op=RULE,
        shape=("*", "*", "dk", "dv"),
    ),
    Rule(
        term="gdn.heads",
        why="what the rule makes of keys' shape: w, and gradients",
        module=CORE,
        op=RULE,
        shape=("...", "dk"),
    ),
    Rule(
        term="gdn.heads",
        why="what the rule makes of values' shape: outputs, u, written values, gradients",
        module=CORE,
        op=RULE,
        shape=("...", "dv"),
    ),
    Rule(
        term="gdn.mixing",
        why="A, (T, heads, 64)",
        module=CORE,
        op=RULE,
        shape=("...", "chunk"),
    ),
    Rule(
        term="gdn.scalars",
        why="gradient of the gated norm's scale",
        module=CORE,
        op=NORMS,
        shape=("dv",),
    ),
    Rule(
        term="gdn.keys",
        why="queries and keys of unit length, and gradients of what they are made from",
        module=CORE,
        op=r"peakcast\.unit_norm(_backward)?",
        shape=("...", "dk"),
    ),
    Rule(
        term="gdn.outputs",
        why="the gated norm's output",
        module=CORE,
        op=r"peakcast\.gated_norm",
        shape=("...", "dv"),
    ),
    Rule(
        term="gdn.outputs",
        why="the same of all heads, as they come back over cp, (T, value width)",
        module=CORE,
        op=r"peakcast\.merge_heads",
        shape=("T", "all values"),
    ),
    Rule(
        term="gdn.heads",
        why="gradients of the gated norm's argument and gate",
        module=CORE,
        op=NORMS,
        shape=("...", "dv"),
    ),
    Rule(
        term="gdn.inputs",
        why="what the convolution takes and gives, and their gradients",
        module=CORE,
        shape=("*", "mixed"),
    ),
    Rule(
        term="gdn.inputs",
        why="the taps of this rank's channels, and their gradient",
        module=SELF_ATTENTION + r"(\.core)?",
        shape=("mixed", "taps"),
    ),
    Rule(
        term="gdn.projected",
        why="the projection's output and gradient, sorted by rank, and outputs put together",
        module=CORE,
        op=r"peakcast\.(split|merge)_heads",
    ),
    Rule(
        term="gdn.heads",
        why="queries and keys given to each of their value heads, (T, key heads, repeats, dk)",
        module=CORE,
        shape=("...", "repeats", "dk"),
    ),
    Rule(
        term="gdn.heads",
        why="values, gate and outputs side by side, (T, value width), also on their way over cp",
        module=CORE,
        shape=("*", "values"),
    ),
    Rule(
        term="gdn.heads",
        why="gradient of the outputs, from base and adapter",
        module=SELF_ATTENTION + r"\.out_proj",
        phases=BACKWARD,
    ),
    Rule(
        term="gdn.keys",
        why="queries or keys copied out of the convolution's output, (T, key width)",
        module=CORE,
        shape=("*", "keys"),
    ),
    Rule(
        term="gdn.keys",
        why="gradients of queries and keys summed over value heads, (T, key heads, dk)",
        module=CORE,
        shape=("...", "dk"),
    ),
    Rule(
        term="gdn.projected",
        why="the projection's output and gradient as received and put in order",
        module=CORE,
        shape=("*", "projected"),
    ),
    Rule(
        term="gdn.scalars",
        why="decay and write strength of each head, statistics of the norms, and gradients",
        module=CORE,
    ),
    Rule(
        term="gdn.projected",
        why="the projection's output",
        module=SELF_ATTENTION + r"\.in_proj",
        phases=("forward", "recompute"),
    ),
    Rule(
        term="residual.stream",
        why="the mixer's contribution to the stream, and the gradient of its input, (T, H)",
        module=SELF_ATTENTION + r"\.(in|out)_proj",
    ),
)
