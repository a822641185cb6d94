"""The head: target log-probabilities, a chunk of tokens at a time."""

from planner.local import Local
from planner.size import Size
from planner.term import term


@term(
    "head.logits",
    what="logits of one chunk and their temporaries",
    source="published planner: head stage, dense = chunk x vocabulary columns",
)
def logits(local: Local) -> Size:
    """(chunk tokens, vocabulary columns) in the activation dtype."""
    return Size(head_tokens=local.vocab * local.itemsize)


@term(
    "head.indices",
    what="index vectors of one chunk",
    source="published planner: 128 B a chunk row and 36 B a target in it",
)
def indices(_: Local) -> Size:
    """164 B a chunk token."""
    return Size(head_tokens=128 + 36)


@term(
    "head.outputs",
    what="log-probability of each target (and, gathered over cp, once more)",
    source="published planner: 4 B a target, twice at CP > 1",
    persists=True,
)
def outputs(_: Local) -> Size:
    """(tokens,) fp32."""
    return Size(tokens=4)
