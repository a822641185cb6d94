"""HybridEP: the communication buffers that DeepEP keeps outside PyTorch, and how they grow.

One process holds one buffer, sized for the busiest call so far; it never shrinks. Sizes after
DeepEP hybrid-ep ``94a9f8f``, one NVLink domain: for T = ranks x tokens a rank, a row takes the
combine token (16 bit; dispatch aliases it), an fp32 probability and a routing-map byte per expert
column, and an fp32 scaling factor per 128 channels, with or without FP8.

Known limitations: chunk flags (2·ceil(M/64)·ranks·4 B) and the preprocessing scratch
(8·108·(ranks + local experts) B) are left out, some 0.008 % of a full-size buffer.
"""

import math
from dataclasses import dataclass

from planner.errors import require_choice
from planner.internode import internode_bytes
from planner.units import Bytes, Tokens, align_up, ceil_div

RESERVES = ("near-balanced", "call")
REPLACEMENTS = ("beside", "in-place")

LEAST_TOKENS = 512
COMBINE_CHUNK = 64
RESERVE_STEP = 512
SCALE_BLOCK = 128
TMA_ALIGNMENT = 4
"""DeepEP: rows of all ranks together fall on a multiple of 4."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferPolicy:
    """How a trainer sizes and replaces the buffer.

    Parameters
    ----------
    reserve
        ``near-balanced``: at least twice the mean shard, as the published planner asks for ahead of
        the call; ``call``: the busiest rank's tokens, as Megatron-core's first dispatch does.
    replace
        ``beside``: the new buffer is built while the old one is still referenced, so its whole size
        is charged; ``in-place``: DeepEP's own update releases first, so the difference is.
    """

    reserve: str
    replace: str

    def __post_init__(self) -> None:
        require_choice("BufferPolicy", "reserve", self.reserve, RESERVES)
        require_choice("BufferPolicy", "replace", self.replace, REPLACEMENTS)


def padded_tokens(tokens: int, ranks: int) -> Tokens:
    """Pad tokens per rank as DeepEP does: to 4/gcd(4, ranks), at least 512, then chunks of 64."""
    aligned = align_up(tokens, TMA_ALIGNMENT // math.gcd(TMA_ALIGNMENT, ranks))
    return Tokens(align_up(max(aligned, LEAST_TOKENS), COMBINE_CHUNK))


def near_balanced_tokens(longest: int, cp: int, busiest: int) -> Tokens:
    """Tokens per rank that the published planner reserves.

    Parameters
    ----------
    longest
        Padded tokens of the longest packed sequence, over all its cp ranks.
    busiest
        Tokens of the rank that holds most.
    """
    mean = ceil_div(longest, RESERVE_STEP * cp) * RESERVE_STEP
    return Tokens(max(min(longest, 2 * mean), busiest))


def buffer_bytes(
    tokens: int, *, ranks: int, hidden: int, num_experts: int, itemsize: int = 2, domains: int = 1
) -> Bytes:
    """Bytes that a rank's buffer holds for ``tokens`` padded tokens on each of ``ranks`` ranks.

    ``num_experts`` counts the group's expert columns, all experts of a layer; over several NVLink
    domains probabilities have the columns of one, and buffers between domains are added.
    """
    columns = 4 * num_experts // domains + num_experts
    row = itemsize * hidden + columns + 4 * (hidden // SCALE_BLOCK)
    between = internode_bytes(
        tokens, domains=domains, hidden=hidden, num_experts=num_experts, itemsize=itemsize
    )
    return Bytes(tokens * ranks * row + between)


def growth_bytes(needed: int, held: int, policy: BufferPolicy) -> Bytes:
    """Bytes that a call adds outside PyTorch, from the buffer it needs and the one that is held."""
    if needed <= held:
        return Bytes(0)
    return Bytes(needed if policy.replace == "beside" else needed - held)
