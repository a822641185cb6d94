"""Admission: may this batch run now, in how many children, or why not.

A decision is a pure function of a pricer, a batch and a sample of every rank's memory, so that
ranks which exchanged their samples take the same decision without another word, and it replays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.batch import Batch, Layout, balanced_runs, lay_out
from planner.coefficients import Unpriced
from planner.errors import ConfigError
from planner.moments import Phase
from planner.price import Price
from planner.profile import Profile
from planner.state import LiveState
from planner.units import Bytes, gib

if TYPE_CHECKING:
    from planner.pricer import Pricer


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySample:
    """Every rank's memory just before a call.

    Parameters
    ----------
    room_bytes
        What each global rank can still take; ``None``: no limit.
    held_tokens
        Padded tokens that the HybridEP buffers were made for (0: none yet): one figure, or each
        rank's own.
    held_over_bytes
        On each rank, what the dispatchers kept of an earlier call: gone by the time that backward
        begins, since every layer's forward replaces its own. Empty: none.
    profiles
        What earlier calls of each rank have shown. Empty: nothing yet.
    """

    room_bytes: tuple[int | None, ...]
    held_tokens: int | tuple[int, ...] = 0
    held_over_bytes: tuple[int, ...] = ()
    profiles: tuple[Profile, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What one rank needs against what it has.

    Parameters
    ----------
    peak_bytes, growth_bytes
        Bound inside PyTorch, and growth set aside outside it.
    """

    rank: int
    peak_bytes: Bytes
    growth_bytes: Bytes
    room_bytes: int | None

    @property
    def bytes(self) -> Bytes:
        """Peak and growth together."""
        return Bytes(self.peak_bytes + self.growth_bytes)

    @property
    def short_bytes(self) -> int:
        """How much room is missing; 0 or less: it fits."""
        return 0 if self.room_bytes is None else self.bytes - self.room_bytes

    def __str__(self) -> str:
        room = "no limit" if self.room_bytes is None else gib(self.room_bytes)
        grown = f" ({gib(self.growth_bytes)} of it buffer growth)" if self.growth_bytes else ""
        return f"rank {self.rank} needs {gib(self.bytes)}{grown}, has {room}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """One forward/backward of a decision: where its requests lie, and its price on every rank."""

    layout: Layout
    prices: tuple[Price, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Admit:
    """The batch fits as it is."""

    children: tuple[Child, ...]
    demands: tuple[Demand, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The batch fits when it runs as these children, one after the other; every rank runs all."""

    children: tuple[Child, ...]
    demands: tuple[Demand, ...]
    unsplit: Demand


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse:
    """The batch does not fit.

    Parameters
    ----------
    reason
        What is wrong, with its numbers.
    ways_out
        What would make it fit, each with the value it needs.
    demands
        Every rank's demand, unsplit.
    children
        The unsplit batch, priced.
    """

    reason: str
    ways_out: tuple[str, ...]
    demands: tuple[Demand, ...]
    children: tuple[Child, ...]
    unpriced: tuple[Unpriced, ...] = ()


Decision = Admit | Split | Refuse


def admit(
    pricer: "Pricer", batch: Batch, sample: MemorySample, *, allow_unpriced: bool = False
) -> Decision:
    """Admit, split or refuse a batch.

    Parameters
    ----------
    allow_unpriced
        Whether a batch may run although the table leaves some of its bytes unpriced.

    Raises
    ------
    ConfigError
        When the sample does not speak of every rank.
    """
    _require_every_rank(sample, pricer.topology.world)
    whole: tuple[Child, ...] = (_child(pricer, batch, sample, lay_out(batch, pricer.topology)),)
    unsplit = demands_of(whole, sample, together=pricer.coefficients.children_together)
    unpriced = whole[0].prices[0].unpriced
    if unpriced and not allow_unpriced:
        return Refuse(
            reason=f"{len(unpriced)} parts are not priced by {pricer.coefficients.name}",
            ways_out=(
                "choose a coefficient table that was measured on this topology",
                "allow unpriced parts (allow_unpriced) and leave room for them yourself: "
                + "; ".join(str(part) for part in unpriced),
            ),
            demands=unsplit,
            children=whole,
            unpriced=unpriced,
        )
    if _fits(unsplit):
        return Admit(children=whole, demands=unsplit)
    binding = max(unsplit, key=lambda demand: demand.short_bytes)
    smallest: tuple[Child, ...] = whole
    for count in range(2, most_children(whole[0].layout) + 1):
        smallest = tuple(
            _child(pricer, batch, sample, layout, accumulating=place > 0)
            for place, layout in enumerate(split_layouts(batch, pricer, whole[0].layout, count))
        )
        demands = demands_of(smallest, sample, together=pricer.coefficients.children_together)
        if _fits(demands):
            return Split(children=smallest, demands=demands, unsplit=binding)
    return _refuse(pricer, whole, unsplit, smallest, sample)


def most_children(layout: Layout) -> int:
    """Children a batch can be split into: requests of the replica that has most."""
    return max(len(run) for run in layout.replicas)


def split_layouts(batch: Batch, pricer: "Pricer", layout: Layout, count: int) -> tuple[Layout, ...]:
    """Cut every replica's requests into ``count`` contiguous, token-balanced runs.

    A replica with fewer requests than children has empty runs, so that all ranks run as many.
    """
    runs: list[tuple[tuple[int, ...], ...]] = []
    for replica in layout.replicas:
        lengths = [batch.requests[index] for index in replica]
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
    demands: list[Demand] = []
    for rank, room in enumerate(sample.room_bytes):
        prices = [child.prices[rank] for child in children]
        peak = _together(prices) if together and len(prices) > 1 else _in_turn(prices, sample, rank)
        if sample.profiles:
            seen = sample.profiles[rank]
            peak = max(peak, *(seen.floor(price.expected_bytes) for price in prices))
        demands.append(
            Demand(
                rank=rank,
                peak_bytes=peak,
                growth_bytes=max(price.growth_bound_bytes for price in prices),
                room_bytes=room,
            )
        )
    return tuple(demands)


def _in_turn(prices: Sequence[Price], sample: MemorySample, rank: int) -> Bytes:
    """Peak of children that run one after the other, above what is live when the first begins.

    What the dispatchers hold of an earlier call lies below that baseline and is released before
    backward, so it makes room there. What an earlier child left lies above it during forward.
    """
    released = sample.held_over_bytes[rank] if sample.held_over_bytes else 0
    peak, left = 0, 0
    for price in prices:
        forward, backward = price.peak(Phase.FORWARD)[1], price.peak(Phase.BACKWARD)[1]
        peak = max(peak, forward + left, backward - released)
        left = price.peak(Phase.BETWEEN)[1]
    return Bytes(peak)


def _together(prices: Sequence[Price]) -> Bytes:
    """Peak of children whose graphs live side by side (domain: the published rung cost)."""
    forward = sum(price.retained_bound_bytes for price in prices) + max(
        max(0, price.peak(Phase.FORWARD)[1] - price.retained_bound_bytes) for price in prices
    )
    backward = sum(price.persistent_bound_bytes for price in prices) + max(
        max(0, price.peak(Phase.BACKWARD)[1] - price.persistent_bound_bytes) for price in prices
    )
    return Bytes(max(forward, backward))


def _child(
    pricer: "Pricer",
    batch: Batch,
    sample: MemorySample,
    layout: Layout,
    *,
    accumulating: bool = False,
) -> Child:
    state = LiveState(held_tokens=sample.held_tokens)
    return Child(
        layout=layout,
        prices=pricer.price_ranks(batch, state, layout=layout, accumulating=accumulating),
    )


def _require_every_rank(sample: MemorySample, world: int) -> None:
    for name, figures in (
        ("room_bytes", sample.room_bytes),
        ("held_over_bytes", sample.held_over_bytes),
        ("profiles", sample.profiles),
        ("held_tokens", sample.held_tokens if isinstance(sample.held_tokens, tuple) else ()),
    ):
        if len(figures) != world and (figures or name == "room_bytes"):
            raise ConfigError(
                f"MemorySample.{name} speaks of {len(figures)} ranks; the topology has {world}"
            )


def _fits(demands: Sequence[Demand]) -> bool:
    return all(demand.short_bytes <= 0 for demand in demands)


def _refuse(
    pricer: "Pricer",
    whole: tuple[Child, ...],
    unsplit: tuple[Demand, ...],
    smallest: tuple[Child, ...],
    sample: MemorySample,
) -> Refuse:
    binding = max(unsplit, key=lambda demand: demand.short_bytes)
    price = whole[0].prices[binding.rank]
    largest = max(price.terms.items(), key=lambda item: item[1])
    ways = [f"give every rank room for {gib(binding.bytes)} to run it whole"]
    if len(smallest) > 1:
        least = max(
            demands_of(smallest, sample, together=pricer.coefficients.children_together),
            key=lambda demand: demand.short_bytes,
        )
        ways.append(
            f"give every rank room for {gib(least.bytes)} to run it in {len(smallest)} children"
        )
        ways.append(
            "send shorter requests: "
            f"the largest child has {max(c.layout.busiest for c in smallest)} tokens on a rank"
        )
    else:
        ways.append(
            f"send fewer tokens: {price.local_tokens} on rank {binding.rank} cannot be split "
            "(a batch splits between requests)"
        )
    if pricer.local.recompute == "none":
        ways.append("recompute every layer (Step.recompute='full')")
    tried = f", also in {len(smallest)} children" if len(smallest) > 1 else ""
    return Refuse(
        reason=(
            f"{binding}: short of {gib(binding.short_bytes)}{tried}; "
            f"the largest term is {largest[0]} with {gib(largest[1])} at {price.peak_moment}"
        ),
        ways_out=tuple(ways),
        demands=unsplit,
        children=whole,
    )
