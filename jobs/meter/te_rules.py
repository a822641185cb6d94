"""Rules for Transformer Engine's attention: of a module of its own, inside the core attention."""

from jobs.meter.attribution import Rule
from jobs.meter.stream_rules import BACKWARD, SELF_ATTENTION

CORE = SELF_ATTENTION + r"\.core_attention(\..+)?"
AHEAD = ("forward", "recompute")

ATTENTION = (
    Rule(
        term="attention.workspace",
        why="scratch of the kernel",
        module=CORE,
        dtype="uint8",
    ),
    Rule(
        term="attention.statistics",
        why="log-sum-exp of every query and head, the ring's copies, where requests begin, the "
        "random state",
        module=CORE,
        dtype=r"float32|int\d+",
    ),
    Rule(
        term="attention.output",
        why="attention's output, a step's and the sum of the ring's",
        module=CORE,
        shape=("*", "heads", "D"),
        phases=AHEAD,
    ),
    Rule(
        term="attention.ring_queries",
        why="the ring's sum of queries' gradients",
        module=CORE,
        op="empty_like",
        shape=("T", "heads", "D"),
        phases=BACKWARD,
    ),
    Rule(
        term="attention.queries",
        why="gradient of queries, a step's where there is a ring",
        module=CORE,
        shape=("*", "heads", "D"),
        phases=BACKWARD,
    ),
    Rule(
        term="attention.ring_keys",
        why="the ring's buffers of keys and values, and of their gradients beside them",
        module=CORE,
        dtype="bfloat16",
        shape=("*",),
    ),
    Rule(
        term="attention.ring_keys",
        why="the same, two of each",
        module=CORE,
        dtype="bfloat16",
        shape=("*", "*"),
    ),
)

RING = (
    Rule(
        term="attention.ring_keys",
        why="a step's keys and values, and their gradients",
        module=CORE,
        shape=("*", "kv_heads", "D"),
    ),
)

WHOLE = (
    Rule(
        term="attention.values",
        why="values made contiguous for the kernel",
        module=CORE,
        shape=("T", "kv_heads", "D"),
        phases=AHEAD,
    ),
    Rule(
        term="attention.keys",
        why="gradients of keys and values",
        module=CORE,
        shape=("T", "kv_heads", "D"),
        phases=BACKWARD,
    ),
)


def attention(cp: int) -> tuple[Rule, ...]:
    """Return the rules of core attention, with or without a ring."""
    return (*ATTENTION, *(RING if cp > 1 else WHOLE))
