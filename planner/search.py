"""Search: the largest batch that fits, and the topologies that a batch fits on, best first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from planner.batch import Batch, Layout, lay_out
from planner.children import child_of, fits
from planner.coefficients import Coefficients
from planner.compiled import TermCompiler
from planner.errors import ConfigError
from planner.memory import MemorySample
from planner.model import Model
from planner.pricer import Pricer, compile_pricer
from planner.routing import Routing
from planner.step import Step
from planner.topology import Topology
from planner.units import Bytes

MOST_TOKENS = 2**40
"""Tokens on a rank beyond which a search takes the room to be without limit."""


def largest_batch(
    pricer: "Pricer", sample: MemorySample, *, gradients: bool = True
) -> Batch | None:
    """Return the largest batch that fits as it is: one request on every dp replica, all alike.

    Parameters
    ----------
    gradients
        Whether its requests need gradients.

    Returns
    -------
    Batch or None
        ``None`` when not even the smallest one fits.

    Raises
    ------
    ConfigError
        When no rank has a limit, so that there is no largest batch.
    """
    sample.require(pricer.topology.world)
    if all(room is None for room in sample.room_bytes):
        raise ConfigError(
            "no rank has a limit, so that there is no largest batch; give room_bytes of a rank"
        )
    cp = pricer.topology.cp
    step = 2 * cp if cp > 1 else 1

    def batch(units: int) -> Batch:
        return Batch(requests=(units * step,) * pricer.topology.dp, gradients=gradients)

    def within(units: int) -> bool:
        layout = lay_out(batch(units), pricer.topology)
        return fits((child_of(pricer, layout, sample),), sample, together=False)

    if not within(1):
        return None
    below, above = 1, 2
    while within(above):
        if above > MOST_TOKENS:
            raise ConfigError("tokens take no room on any rank that has a limit")
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        if within(middle):
            below = middle
        else:
            above = middle
    return batch(below)


@dataclass(frozen=True, slots=True)
class Placement:
    """A topology that a batch was priced on.

    Parameters
    ----------
    demand_bytes
        What its fullest rank needs, growth included.
    room_bytes
        What every rank has.
    unpriced_parts
        How many parts the table does not price there.
    """

    topology: Topology
    demand_bytes: Bytes
    room_bytes: int
    unpriced_parts: int

    @property
    def fits(self) -> bool:
        """Whether the fullest rank has room."""
        return self.demand_bytes <= self.room_bytes


def topologies(
    model: Model,
    world: int,
    room_bytes: int,
    *,
    batch: Batch,
    step: Step | None = None,
    coefficients: Coefficients | str = "megatron-local",
    routing: Routing | None = None,
) -> list[Placement]:
    """Price a batch on every topology of ``world`` ranks that the model can be divided over.

    Parameters
    ----------
    room_bytes
        What every rank has for what a call holds beyond the weights.

    Returns
    -------
    list of Placement
        Fewest unpriced parts first (a low demand that lacks a price says nothing), then those that
        fit, then the least demand; equal ones in the order of fewer split axes.

    Raises
    ------
    ConfigError
        When the model divides over none, or the tokens were laid out by the caller.
    """
    if batch.rank_tokens:
        raise ConfigError("a batch that is laid out already has one topology; give its requests")
    found = list(
        price_all(model, every_topology(world), batch, room_bytes, step, coefficients, routing)
    )
    if not found:
        raise ConfigError(f"{model.name} cannot be divided over {world} ranks in any way")
    return sorted(
        found,
        key=lambda p: (p.unpriced_parts, not p.fits, p.demand_bytes, _split_axes(p.topology)),
    )


def price_all(
    model: Model,
    places: Iterable[Topology],
    batch: Batch,
    room_bytes: int,
    step: Step | None = None,
    coefficients: Coefficients | str = "megatron-local",
    routing: Routing | None = None,
) -> Iterator[Placement]:
    """Price a batch on each topology; those that the model cannot be divided over are left out."""
    table = Coefficients.load(coefficients) if isinstance(coefficients, str) else coefficients
    terms = TermCompiler(table)
    step = step or Step()
    layouts: dict[tuple[int, int], Layout] = {}
    for topology in places:
        split = topology.dp, topology.cp
        try:
            pricer = compile_pricer(model, topology, step, coefficients=terms, routing=routing)
            if split not in layouts:
                layouts[split] = lay_out(batch, topology)
            kinds = pricer.kinds(layouts[split])
        except ConfigError:
            continue
        demand = Bytes(max(figures.demand_once for figures in kinds))
        unpriced = pricer.unpriced_parts(forward_only=batch.forward_only)
        yield Placement(topology, demand, room_bytes, unpriced)


def every_topology(world: int) -> Iterator[Topology]:
    """Yield every topology of ``world`` ranks."""
    degrees = [degree for degree in range(1, world + 1) if world % degree == 0]
    for pp, cp, tp in product(degrees, repeat=3):
        if world % (pp * cp * tp):
            continue
        stage = world // pp
        for ep, etp in product(degrees, repeat=2):
            if stage % (ep * etp) == 0:
                yield Topology(pp=pp, dp=stage // (cp * tp), cp=cp, tp=tp, ep=ep, etp=etp)


def _split_axes(topology: Topology) -> tuple[int, ...]:
    return topology.pp, topology.tp, topology.etp, topology.ep, topology.cp
