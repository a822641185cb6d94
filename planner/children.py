"""Children: the forward/backwards that a decision runs one after the other, and what they need."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.batch import Batch, Layout, balanced_runs, lay_out
from planner.figures import Figures
from planner.memory import Demand, MemorySample
from planner.moments import Phase
from planner.price import Price
from planner.profile import Profile
from planner.units import Bytes

if TYPE_CHECKING:
    from planner.pricer import Pricer


class Child:
    """One forward/backward of a decision: where its requests lie, and its price on every rank.

    Parameters
    ----------
    figures
        Every rank's figures; prices are made of them when they are read.
    coefficients
        Name of the table that priced it.
    """

    __slots__ = ("coefficients", "figures", "layout")

    def __init__(self, layout: Layout, figures: Sequence[Figures], coefficients: str) -> None:
        self.layout = layout
        self.figures = figures
        self.coefficients = coefficients

    @property
    def prices(self) -> tuple[Price, ...]:
        """The price of every rank, in global rank order."""
        return tuple(
            [Price(rank, self.coefficients, mine) for rank, mine in enumerate(self.figures)]
        )


def child_of(
    pricer: "Pricer", layout: Layout, sample: MemorySample, *, accumulating: bool = False
) -> Child:
    """Return the child that runs the requests of ``layout``."""
    figures = pricer.figures(layout, sample.held_tokens, accumulating)
    return Child(layout, figures, pricer.coefficients.name)


def most_children(layout: Layout) -> int:
    """Children a batch can be split into: requests of the replica that has most."""
    return max(len(run) for run in layout.replicas)


def split(
    pricer: "Pricer", batch: Batch, layout: Layout, sample: MemorySample, count: int
) -> tuple[Child, ...]:
    """Return the ``count`` children of a batch; the later ones add to gradients of the first."""
    return tuple(
        child_of(pricer, part, sample, accumulating=place > 0)
        for place, part in enumerate(split_layouts(batch, pricer, layout, count))
    )


def split_layouts(batch: Batch, pricer: "Pricer", layout: Layout, count: int) -> tuple[Layout, ...]:
    """Cut every replica's requests into ``count`` contiguous, token-balanced runs.

    A replica with fewer requests than children has empty runs, so that all ranks run as many.
    """
    runs: list[tuple[tuple[int, ...], ...]] = []
    for replica in layout.replicas:
        lengths = batch.packed_lengths(replica)
        runs.append(tuple(tuple(replica[i] for i in run) for run in balanced_runs(lengths, count)))
    return tuple(
        lay_out(batch, pricer.topology, tuple(replica[child] for replica in runs))
        for child in range(count)
    )


def demands_of(
    children: Sequence[Child], sample: MemorySample, *, together: bool
) -> tuple[Demand, ...]:
    """Return each rank's demand for running ``children`` one after the other.

    A grown buffer stays, so the largest growth is paid once, beside whichever child is fullest.
    ``together``: the children's graphs live side by side until backward, so that what persists adds
    up and only the rest is shared; otherwise a child's backward ends before the next begins.
    """
    return tuple(
        Demand(rank=rank, peak_bytes=peak, growth_bytes=growth, room_bytes=room)
        for rank, (peak, growth, room) in enumerate(needs(children, sample, together))
    )


def fits(children: Sequence[Child], sample: MemorySample, *, together: bool) -> bool:
    """Return whether every rank has room for running ``children`` one after the other."""
    if len(children) == 1 and not sample.held_over_bytes and not sample.profiles:
        for figures, room in zip(children[0].figures, sample.room_bytes, strict=True):
            if room is not None and figures.demand > room:
                return False
        return True
    for peak, growth, room in needs(children, sample, together):
        if room is not None and peak + growth > room:
            return False
    return True


def needs(
    children: Sequence[Child], sample: MemorySample, together: bool
) -> Iterator[tuple[Bytes, Bytes, int | None]]:
    """Yield each rank's peak inside PyTorch, growth outside it, and room."""
    released = sample.held_over_bytes
    profiles = sample.profiles
    for rank, room in enumerate(sample.room_bytes):
        mine = [child.figures[rank] for child in children]
        seen = profiles[rank] if profiles else None
        makes_room = 0
        if together and len(mine) > 1:
            peak = _together(mine, seen)
        else:
            makes_room = released[rank] if released else 0
            peak = in_turn(mine, makes_room)
        if seen is not None:
            peak = max(peak, *(Bytes(seen.floor(f.expected_peak) - makes_room) for f in mine))
        growth = mine[0].growth.bound
        for figures in mine[1:]:
            growth = max(growth, figures.growth.bound)
        yield peak, growth, room


def in_turn(children: Sequence[Figures], released: int) -> Bytes:
    """Peak of children that run one after the other, above what is live when the first begins.

    What the dispatchers hold of an earlier call (``released``) lies below that baseline and is gone
    before backward, so it makes room there. What an earlier child left lies above it in forward.

    Parameters
    ----------
    released
        Bytes that are gone before backward.
    """
    peak, left = 0, 0
    last = len(children) - 1
    for place, figures in enumerate(children):
        peak = max(
            peak, figures.bound(Phase.FORWARD) + left, figures.bound(Phase.BACKWARD) - released
        )
        if place < last:
            left = figures.bound(Phase.BETWEEN)
    return Bytes(peak)


def _together(children: Sequence[Figures], seen: Profile | None) -> Bytes:
    """Peak of children whose graphs live side by side (domain: the published rung cost).

    What forward leaves has a rate of its own, where one was seen: not the peak's.
    """
    retained = [figures.bound(Phase.RETAINED) for figures in children]
    if seen is not None:
        retained = [
            max(mine, seen.retained_floor(f.expected_peak, f.expected(Phase.RETAINED)))
            for mine, f in zip(retained, children, strict=True)
        ]
    kept = [figures.persistent_bound for figures in children]
    forward = sum(retained) + max(
        max(0, figures.bound(Phase.FORWARD) - mine)
        for figures, mine in zip(children, retained, strict=True)
    )
    backward = sum(kept) + max(
        max(0, figures.bound(Phase.BACKWARD) - mine)
        for figures, mine in zip(children, kept, strict=True)
    )
    return Bytes(max(forward, backward))
