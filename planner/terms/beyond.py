"""Beyond: what a step may ask for and no table prices yet; a rank that has it says so.

A declared term that no table has copies of is unpriced wherever it exists, so that admission
refuses unless the caller leaves room for it.
"""

from planner.local import Local
from planner.size import Size
from planner.term import term


@term(
    "beyond.offloaded_activations",
    what="activations on their way to host memory and back",
    when=lambda local: local.offload_activations,
    source="none: how many layers' activations are on the device at once is not known",
)
def offloaded_activations(local: Local) -> Size:
    """(tokens, hidden) at least, in the activation dtype."""
    return Size(tokens=local.streamed(local.hidden))


@term(
    "beyond.eight_bit_copies",
    what="activations of eight bits beside or instead of others",
    when=lambda local: local.fp8,
    source="none: what experts, latent and linear attention keep of them is not known",
)
def eight_bit_copies(local: Local) -> Size:
    """(tokens, hidden) at least, of one byte."""
    return Size(tokens=local.streamed(local.hidden) // local.itemsize)
