"""The smallest number of children that fit.

A bound from below falls with the number of children: whatever the cut, some child of the largest
replica brings at least an even share of it. So the first number that the bound allows is found by
doubling and bisection, and only from there on are children really cut and priced, one number after
the other. The result is that of trying every number from two up.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.batch import Batch, Layout
from planner.children import Child, child_of, fits, most_children, split
from planner.memory import MemorySample
from planner.moments import Phase
from planner.units import Tokens, ceil_div

if TYPE_CHECKING:
    from planner.pricer import Pricer


def fewest_children(
    pricer: "Pricer", batch: Batch, whole: Child, sample: MemorySample
) -> tuple[Child, ...] | None:
    """Return the fewest children (at least two) that fit, or ``None``."""
    together = pricer.coefficients.children_together
    unlearned = replace(sample, profiles=())  # what was seen near one size says nothing of others
    if together and not _graphs_fit(whole, unlearned):
        return None
    most = most_children(whole.layout)
    if most < 2 or not _may_fit(pricer, whole.layout, unlearned, most):
        return None
    for count in range(_first_allowed(pricer, whole.layout, unlearned, most), most + 1):
        children = split(pricer, batch, whole.layout, sample, count)
        if fits(children, sample, together=together):
            return children
    return None


def _first_allowed(pricer: "Pricer", layout: Layout, sample: MemorySample, most: int) -> int:
    """Return the first number of children that the bound from below allows (``most`` is)."""
    below, count = 1, 2
    while count < most and not _may_fit(pricer, layout, sample, count):
        below, count = count, min(2 * count, most)
    while count - below > 1:
        middle = (below + count) // 2
        if _may_fit(pricer, layout, sample, middle):
            count = middle
        else:
            below = middle
    return count


def _may_fit(pricer: "Pricer", layout: Layout, sample: MemorySample, count: int) -> bool:
    """Return whether an even share of the largest replica fits, all others being empty."""
    cp = pricer.topology.cp
    largest = max(range(len(layout.replicas)), key=lambda place: layout.dense_tokens[place * cp])
    share = ceil_div(layout.dense_tokens[largest * cp], count)
    part = layout._replace(
        replicas=tuple(run[:1] if i == largest else () for i, run in enumerate(layout.replicas)),
        dense_tokens=tuple(
            Tokens(share if place // cp == largest else 0)
            for place in range(len(layout.dense_tokens))
        ),
        longest=Tokens(share * cp),
        even=False,
    )
    return fits((child_of(pricer, part, sample),), sample, together=False)


def _graphs_fit(whole: Child, sample: MemorySample) -> bool:
    """Return whether what all children keep side by side fits, however they are cut."""
    return all(
        room is None or max(figures.persistent_bound, figures.bound(Phase.RETAINED)) <= room
        for figures, room in zip(whole.figures, sample.room_bytes, strict=True)
    )
