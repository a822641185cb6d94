"""Ways out of a refusal: which setting to change, and the value that it needs to have."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.children import Child, child_of, demands_of, fits
from planner.errors import ConfigError
from planner.memory import Demand, MemorySample
from planner.step import Step
from planner.topology import Topology
from planner.units import Tokens, gib

if TYPE_CHECKING:
    from planner.batch import Layout
    from planner.pricer import Pricer

MOST_DEGREE = 1024
LEAST_CHUNK = 64


@dataclass(frozen=True, slots=True)
class WayOut:
    """One change that makes a batch fit.

    Parameters
    ----------
    setting
        What to change.
    value
        What it needs to be; ``None`` where that is the reader's choice.
    says
        The same in words.
    """

    setting: str
    value: int | str | bool | None
    says: str

    def __str__(self) -> str:
        return self.says


def ways_of(
    pricer: "Pricer",
    whole: Child,
    smallest: Sequence[Child],
    sample: MemorySample,
    binding: Demand,
) -> tuple[WayOut, ...]:
    """Return every way out that is priced and fits; the first ones always stand.

    Parameters
    ----------
    smallest
        The batch in as many children as it has requests (or whole).
    binding
        The rank that is shortest, and what it needs.
    """
    together = pricer.coefficients.children_together
    found = [
        WayOut(
            "room_bytes",
            binding.bytes,
            f"give every rank room for {gib(binding.bytes)} to run it whole",
        )
    ]
    if len(smallest) > 1:
        least = max(
            demands_of(smallest, sample, together=together), key=lambda demand: demand.short_bytes
        )
        found.append(
            WayOut(
                "room_bytes",
                least.bytes,
                f"give every rank room for {gib(least.bytes)} to run it in "
                f"{len(smallest)} children",
            )
        )
    found += _fewer_tokens(pricer, whole, len(smallest), sample)
    found += _other_steps(pricer, whole.layout, sample)
    found += _other_topologies(pricer, whole, sample)
    return tuple(found)


def largest_scale(pricer: "Pricer", layout: "Layout", sample: MemorySample) -> "Layout | None":
    """Return the layout scaled down to the most tokens that fit, or ``None`` when none does."""
    total = int(sum(layout.dense_tokens))
    lowest, highest = 0, total
    best: Layout | None = None
    while highest - lowest > 1:
        middle = (lowest + highest) // 2
        part = layout._replace(
            dense_tokens=tuple(Tokens(t * middle // total) for t in layout.dense_tokens),
            longest=Tokens(layout.longest * middle // total),
        )
        if fits((child_of(pricer, part, sample),), sample, together=False):
            lowest, best = middle, part
        else:
            highest = middle
    return best if best is not None and any(best.dense_tokens) else None


def _fewer_tokens(
    pricer: "Pricer", whole: Child, children: int, sample: MemorySample
) -> Iterator[WayOut]:
    layout = whole.layout
    best: Layout | None = largest_scale(pricer, layout, sample)
    alone = "" if children > 1 else " (a batch splits between requests; this one cannot be split)"
    if best is not None:
        tokens = sum(best.dense_tokens)
        yield WayOut(
            "tokens",
            tokens,
            f"send at most {tokens} of its {sum(layout.dense_tokens)} tokens a call, "
            f"{best.busiest} on the busiest rank{alone}",
        )


def _other_steps(pricer: "Pricer", layout: "Layout", sample: MemorySample) -> Iterator[WayOut]:
    step = pricer.step
    if pricer.local.recompute == "none":
        full = replace(step, recompute="full")
        if _fits_under(pricer, pricer.topology, full, layout, sample):
            yield WayOut("recompute", "full", "recompute every layer: recompute = full")
    chunk = step.head_chunk // 2
    while chunk >= LEAST_CHUNK:
        if _fits_under(pricer, pricer.topology, replace(step, head_chunk=chunk), layout, sample):
            yield WayOut(
                "head_chunk", chunk, f"cut the head into chunks of {chunk} tokens: head_chunk"
            )
            return
        chunk //= 2


def _other_topologies(pricer: "Pricer", whole: Child, sample: MemorySample) -> Iterator[WayOut]:
    """Yield the least cp, and the least ep on as many ranks, at which the whole batch fits."""
    topology, layout = pricer.topology, whole.layout

    def wider(factor: int) -> "Layout":
        """Spread every replica over more cp ranks."""
        cp = topology.cp
        shares = []
        for start in range(0, len(layout.dense_tokens), cp):
            replica = int(sum(layout.dense_tokens[start : start + cp]))
            shares += [Tokens(-(-replica // (cp * factor)))] * (cp * factor)
        return layout._replace(dense_tokens=tuple(shares), even=False)

    for axis, spread in (("cp", wider), ("ep", lambda _: layout)):
        least = _least_degree(pricer, axis, spread, sample)
        if least is not None:
            raised = _raised(topology, axis, least)
            freed = _freed(pricer, pricer.remade(topology=raised), 0)
            more = f", where weights and states take {gib(freed)} less" if freed > 0 else ""
            yield WayOut(axis, least, f"raise {axis} to {least} ({raised.world} ranks{more})")


def _least_degree(
    pricer: "Pricer", axis: str, spread: Callable[[int], "Layout"], sample: MemorySample
) -> int | None:
    now = getattr(pricer.topology, axis)
    factor = 2
    while now * factor <= MOST_DEGREE:
        try:
            topology = _raised(pricer.topology, axis, now * factor)
            if _fits_under(pricer, topology, pricer.step, spread(factor), sample):
                return int(now * factor)
        except ConfigError:
            if axis == "ep":
                return None  # what does not divide will not divide when doubled
        factor *= 2
    return None


def _raised(topology: Topology, axis: str, degree: int) -> Topology:
    return replace(topology, cp=degree) if axis == "cp" else replace(topology, ep=degree)


def _fits_under(
    pricer: "Pricer", topology: Topology, step: Step, layout: "Layout", sample: MemorySample
) -> bool:
    """Return whether a layout fits under other settings, with every part priced as now."""
    other = pricer.remade(topology=topology, step=step)
    now, then = (p.unpriced_of(forward_only=layout.forward_only) for p in (pricer, other))
    if len(then) > len(now):
        return False
    fresh = MemorySample(room_bytes=_rooms(pricer, other, sample))
    return fits((child_of(other, layout, fresh),), fresh, together=False)


def _rooms(pricer: "Pricer", other: "Pricer", sample: MemorySample) -> tuple[int | None, ...]:
    """Return what each rank would have after a start with other settings.

    The least of its stage now, what weights and states take less, and the buffer that is held: it
    is made again, and charged whole.
    """
    stages = pricer.topology.pp
    size, there = pricer.topology.world // stages, other.topology.world // stages
    found: list[int | None] = []
    for place in range(stages):
        rooms = [
            room + _held(pricer, sample, rank)
            for rank, room in enumerate(sample.room_bytes)
            if room is not None and rank // size == place
        ]
        freed = _freed(pricer, other, place)
        found += [min(rooms) + freed if rooms else None] * there
    return tuple(found)


def _held(pricer: "Pricer", sample: MemorySample, rank: int) -> int:
    tokens = sample.held_tokens if isinstance(sample.held_tokens, int) else sample.held_tokens[rank]
    return pricer.buffer_bytes(tokens) if tokens else 0


def _freed(pricer: "Pricer", other: "Pricer", place: int) -> int:
    """Return how much less weights and states take on a pipeline stage of another topology."""
    now, then = (p.topology.world // p.topology.pp for p in (pricer, other))
    before, after = pricer.static(place * now), other.static(place * then)
    return before.resident_bytes - after.resident_bytes
