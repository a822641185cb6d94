"""Internode: what HybridEP adds where its group spans several NVLink domains (domain facts B.4).

Every rank then also holds the tokens it sends to and reduces for each other domain, and its queue
pairs are as deep as three times its tokens, which the network card limits.
"""

from planner.errors import ConfigError
from planner.units import Bytes, ceil_div

QUEUE_DEPTH = 65_536
"""Entries that one queue pair can hold; dispatch needs 3 x tokens + 1, so 21,844 at most."""

MOST_TOKENS = (QUEUE_DEPTH - 2) // 3
CHUNK = 64
SCALE_BLOCK = 128


def require_tokens(padded: int, domains: int) -> None:
    """Check that a rank's tokens fit the queue pairs between domains.

    Raises
    ------
    ConfigError
        For more than 21,844 tokens a rank over more than one NVLink domain.
    """
    if domains > 1 and padded > MOST_TOKENS:
        raise ConfigError(
            f"HybridEP over {domains} NVLink domains takes at most {MOST_TOKENS} tokens a rank "
            f"(3 x tokens + 1 entries of a queue pair, below {QUEUE_DEPTH}); this call needs "
            f"{padded}; split the batch, raise cp, or keep ep·etp within one NVLink domain "
            "(Step.nvlink_ranks)"
        )


def internode_bytes(
    tokens: int, *, domains: int, hidden: int, num_experts: int, itemsize: int = 2
) -> Bytes:
    """Bytes that a rank's buffers between domains hold beside the ones within its own.

    Parameters
    ----------
    tokens
        Padded tokens of each rank.
    domains
        NVLink domains that the group spans (1: nothing is added).
    num_experts
        Expert columns of the whole group.
    """
    if domains <= 1:
        return Bytes(0)
    others, columns = domains - 1, num_experts // domains
    scale = hidden // SCALE_BLOCK * 4
    inputs = hidden * itemsize + num_experts * 4 + scale
    dispatch = others * (hidden * itemsize + columns * 4 + scale)
    combine = 2 * others * (hidden * 2 + columns * 4)
    flags = 2 * 2 * 8 * (ceil_div(tokens, CHUNK) * others + 2 * others)
    return Bytes(tokens * (inputs + dispatch + combine) + flags)
