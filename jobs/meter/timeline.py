"""Timeline: a call's live bytes in a few points, for people to look at."""

from jobs.meter.call import CallLedger

POINTS = 96
"""Enough to see every layer's forward and recompute; some kilobytes in a record."""


def timeline(call: CallLedger, points: int = POINTS) -> list[tuple[int, str]]:
    """Return at most ``points`` of (bytes live, "phase module"), in the order of the call.

    The call's allocations are cut into stretches of equal number, and each gives its fullest
    moment: the highest point is the working set.
    """
    moments = list(call.live_bytes())
    stretches = min(points, len(moments))
    found = []
    for index in range(stretches):
        first = index * len(moments) // stretches
        last = (index + 1) * len(moments) // stretches
        allocation, live = max(moments[first:last], key=lambda moment: moment[1])
        found.append((live, f"{allocation.phase} {allocation.module}".rstrip()))
    return found
