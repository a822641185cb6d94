"""Moments that a call passes through and that can be its fullest; others are not priced."""

from planner.local import Local
from planner.moments import Moment, Phase

BACKWARD = frozenset(moment for moment in Moment if moment.phase is Phase.BACKWARD)
AT_SHARED_EXPERT = frozenset(
    (Moment.FORWARD_SHARED, Moment.RECOMPUTE_SHARED, Moment.BACKWARD_SHARED)
)


def may_be_fullest(moment: Moment, local: Local) -> bool:
    """Whether a moment has to be looked at on a rank.

    There is no backward without gradients. A shared expert holds at most six of its widths a token
    beside what is held where rows come back, or at the router's gradients, and there are three
    hidden widths more: one that is no wider than half the stream is never above them.
    """
    if moment in BACKWARD and not local.gradients:
        return False
    return moment not in AT_SHARED_EXPERT or 2 * local.shared_hidden > local.hidden
