"""The head: target log-probabilities, a chunk of tokens at a time."""

from planner.local import Local
from planner.size import Size
from planner.term import term


def chunked(local: Local) -> bool:
    """Whether a chunked head lies on this rank."""
    return local.last and not local.whole_head


@term(
    "head.logits",
    what="logits of one chunk and their temporaries",
    when=chunked,
    source="published planner: head stage, dense = chunk x vocabulary columns",
)
def logits(local: Local) -> Size:
    """(chunk tokens, vocabulary columns) in the activation dtype."""
    return Size(head_tokens=local.vocab * local.itemsize)


@term(
    "head.indices",
    what="index vectors of one chunk",
    when=chunked,
    source="published planner: 128 B a chunk row and 36 B a target in it",
)
def indices(_: Local) -> Size:
    """164 B a chunk token."""
    return Size(head_tokens=128 + 36)


@term(
    "head.outputs",
    what="log-probability of each target (and, gathered over cp, once more)",
    when=lambda local: local.last,
    source="published planner: 4 B a target, twice at CP > 1",
    persists=True,
)
def outputs(_: Local) -> Size:
    """(tokens,) fp32."""
    return Size(tokens=4)


@term(
    "head.whole_logits",
    what="logits of all tokens of a microbatch, where the head is not chunked",
    when=lambda local: local.last and local.whole_head,
    source="derivation: Megatron-core's vocabulary-parallel loss: bf16 logits and one fp32 copy, "
    "which becomes probabilities and then their gradient in place; Transformer Engine's loss "
    "(triton/cross_entropy.py) writes the gradient over the logits",
)
def whole_logits(local: Local) -> Size:
    """(tokens, vocabulary columns) in the activation dtype and, unless fused, in fp32."""
    return Size(tokens=local.vocab * (local.itemsize + (0 if local.fused_head else 4)))


@term(
    "head.prediction_logits",
    what="probabilities of the multi-token-prediction losses, kept for backward",
    when=lambda local: local.mtp_layers > 0 and local.whole_head,
    source="derivation: one fp32 (tokens, vocabulary columns) a layer; fused, its logits",
)
def prediction_logits(local: Local) -> Size:
    """(tokens, vocabulary columns) fp32 a layer; fused, in the activation dtype."""
    each = local.itemsize if local.fused_head else 4
    return Size(tokens=each * local.vocab * local.mtp_layers)


@term(
    "head.stream",
    what="input and output of the last norm",
    when=lambda local: local.last and local.whole_head,
    source="derivation: the norm's input and output are kept for backward",
)
def head_stream(local: Local) -> Size:
    """(tokens, hidden) twice, divided like the stream."""
    return Size(tokens=2 * local.streamed(local.hidden))
