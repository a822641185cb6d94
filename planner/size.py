"""Size: bytes of one copy of a term, per unit of the quantities that a batch brings.

A formula states how a tensor grows (``tokens=hidden·itemsize``: one row a token), never a number of
tokens. So a price is a sum of products of counts, compiled once per topology, and cannot fall when
a count rises.
"""

from typing import NamedTuple

from planner.moments import Moment, Phase


class Size(NamedTuple):
    """Bytes per unit of each quantity, at one layer of one rank.

    Parameters
    ----------
    call
        Once a call, whatever its size.
    tokens, requests
        Per local token; per request of this rank's replica.
    rows
        Per routed row of the layer at hand.
    group_tokens
        Per slot of the expert group: ranks of the group x tokens of its busiest rank.
    head_tokens
        Per token of a head chunk (at most the chunk's size).
    graded
        Per layer whose parameters' gradients are live: those above the one at hand, whose backward
        is over, or all of them once an earlier child has left its own.
    tokens_reached, rows_reached, group_tokens_reached, tokens_passed, rows_passed, …
        Per token, routed row and slot, counted once for each layer whose router has run, up to and
        with the one at hand (reached), and for each layer above it whose backward is over (passed).
    tokens_entered
        Per token, once for each layer whose input is held: those up to and with the one at hand; in
        a call without a backward the one at hand and the first, whose input forward's caller has.
    attention_tokens, linear_tokens, linear_requests
        Per local token where the layer at hand has attention, and where it has linear attention;
        per request of the replica where it has linear attention.
    tokens_behind
        Per token, once for each layer above but the nearest, whose input gradient is the one that
        the layer at hand receives.
    """

    call: int = 0
    tokens: int = 0
    requests: int = 0
    rows: int = 0
    group_tokens: int = 0
    head_tokens: int = 0
    graded: int = 0
    tokens_reached: int = 0
    tokens_passed: int = 0
    rows_reached: int = 0
    rows_passed: int = 0
    group_tokens_reached: int = 0
    group_tokens_passed: int = 0
    tokens_behind: int = 0
    attention_tokens: int = 0
    linear_tokens: int = 0
    linear_requests: int = 0
    tokens_entered: int = 0


QUANTITIES = Size._fields
"""Names of the quantities, in the order of `planner.work.Work`."""

PASSED = frozenset(
    QUANTITIES.index(name) for name in ("tokens_passed", "rows_passed", "group_tokens_passed")
)
REACHED = {
    QUANTITIES.index(f"{name}_reached"): QUANTITIES.index(name)
    for name in ("tokens", "rows", "group_tokens")
}


def _counted_as(moment: Moment) -> Moment:
    if moment in (Moment.FORWARD_MIXER, Moment.FORWARD_SHARED):
        return Moment.FORWARD_MIXER
    return Moment.FORWARD_FLOOR if moment.phase is Phase.FORWARD else Moment.RETAINED


ALIKE = {moment: _counted_as(moment) for moment in Moment}
"""For each moment one at which sizes count the same: units are worked out once for both."""


def units(size: Size, moment: Moment) -> list[tuple[int, int]]:
    """Return what a size counts at a moment: place in `QUANTITIES` and bytes a unit, no zeros.

    In forward no layer is passed; at mixer and shared expert the one at hand is not reached yet.
    """
    counted = [(place, unit) for place, unit in enumerate(size) if unit]
    if ALIKE[moment] is Moment.RETAINED:
        return counted
    counted = [(place, unit) for place, unit in counted if place not in PASSED]
    if ALIKE[moment] is Moment.FORWARD_MIXER:
        counted += [(REACHED[place], -unit) for place, unit in counted if place in REACHED]
    return counted
