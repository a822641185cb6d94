"""Admission: may this batch run now, in how many children, or why not.

A decision is a pure function of a pricer, a batch and a sample of every rank's memory, so that
ranks which exchanged their samples take the same decision without another word, and it replays.
"""

from typing import TYPE_CHECKING

from planner.batch import Batch
from planner.children import Child, child_of, demands_of, fits, most_children, split
from planner.coefficients import Unpriced
from planner.memory import Demand, MemorySample
from planner.moments import Moment
from planner.splits import fewest_children
from planner.units import Bytes, gib
from planner.ways_out import WayOut, ways_of

if TYPE_CHECKING:
    from planner.pricer import Pricer


class _Decision:
    """What all decisions have.

    Parameters
    ----------
    children
        What runs, one after the other; every rank runs all. Of a refusal: the unsplit batch.
    sample
        The memory that was decided on.
    """

    __slots__ = ("_demands", "children", "sample", "together")

    def __init__(self, children: tuple[Child, ...], sample: MemorySample, together: bool) -> None:
        self.children = children
        self.sample = sample
        self.together = together
        self._demands: tuple[Demand, ...] | None = None

    @property
    def demands(self) -> tuple[Demand, ...]:
        """What each rank needs for all children, against what it has."""
        if self._demands is None:
            self._demands = demands_of(self.children, self.sample, together=self.together)
        return self._demands

    @property
    def binding(self) -> Demand:
        """The rank that is shortest of room (without limits: the one that needs most)."""
        return max(self.demands, key=_shortage)

    @property
    def binding_term(self) -> tuple[str, Moment, Bytes]:
        """The largest term of the binding rank at its expected peak: name, moment, bytes.

        The name is ``unpriced`` where the table prices no term of this step.
        """
        prices = [child.prices[self.binding.rank] for child in self.children]
        price = max(prices, key=lambda price: price.demand_bytes)
        terms = price.terms or {"unpriced": Bytes(0)}
        name, size = max(terms.items(), key=lambda item: item[1])
        return name, price.peak_moment, size


def _shortage(demand: Demand) -> tuple[bool, int, int]:
    limited = demand.room_bytes is not None
    return limited, demand.short_bytes if limited else demand.bytes, -demand.rank


class Admit(_Decision):
    """The batch fits as it is."""

    __slots__ = ()


class Split(_Decision):
    """The batch fits when it runs as these children.

    Parameters
    ----------
    unsplit
        What the binding rank would need for the whole.
    """

    __slots__ = ("unsplit",)

    def __init__(
        self, children: tuple[Child, ...], sample: MemorySample, together: bool, unsplit: Demand
    ) -> None:
        super().__init__(children, sample, together)
        self.unsplit = unsplit


class Refuse(_Decision):
    """The batch does not fit, or not all of its bytes are priced.

    Parameters
    ----------
    reason
        What is wrong, with its numbers.
    ways
        What would make it fit, each with the setting to change and the value that it needs.
    unpriced
        The parts without a price, where they are the reason.
    """

    __slots__ = ("reason", "unpriced", "ways")

    def __init__(
        self,
        children: tuple[Child, ...],
        sample: MemorySample,
        together: bool,
        *,
        reason: str = "",
        ways: tuple[WayOut, ...] = (),
        unpriced: tuple[Unpriced, ...] = (),
    ) -> None:
        super().__init__(children, sample, together)
        self.reason = reason
        self.ways = ways
        self.unpriced = unpriced

    @property
    def ways_out(self) -> tuple[str, ...]:
        """The ways out, numbered."""
        return tuple(f"{number}. {way}" for number, way in enumerate(self.ways, start=1))


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
    sample.require(pricer.topology.world)
    together = pricer.coefficients.children_together
    whole = child_of(pricer, pricer.lay_out(batch), sample)
    if not allow_unpriced and (unpriced := pricer.unpriced_of(forward_only=batch.forward_only)):
        return _not_priced(pricer, whole, sample, unpriced)
    if fits((whole,), sample, together=together):
        return Admit((whole,), sample, together)
    children = fewest_children(pricer, batch, whole, sample)
    if children is not None:
        return Split(children, sample, together, Admit((whole,), sample, together).binding)
    return _refuse(pricer, batch, whole, sample)


def _not_priced(
    pricer: "Pricer", whole: Child, sample: MemorySample, unpriced: tuple[Unpriced, ...]
) -> Refuse:
    return Refuse(
        (whole,),
        sample,
        pricer.coefficients.children_together,
        reason=f"{len(unpriced)} parts are not priced by {pricer.coefficients.name}",
        ways=(
            WayOut("coefficients", None, "choose a table that was measured on this topology"),
            WayOut(
                "allow_unpriced",
                True,
                "allow unpriced parts and leave room for them yourself: "
                + "; ".join(str(part) for part in unpriced),
            ),
        ),
        unpriced=unpriced,
    )


def _refuse(pricer: "Pricer", batch: Batch, whole: Child, sample: MemorySample) -> Refuse:
    together = pricer.coefficients.children_together
    refusal = Refuse((whole,), sample, together)
    most = most_children(whole.layout)
    smallest = split(pricer, batch, whole.layout, sample, most) if most > 1 else (whole,)
    term, moment, size = refusal.binding_term
    tried = f", also in {most} children" if most > 1 else ""
    refusal.reason = (
        f"{refusal.binding}: short of {gib(refusal.binding.short_bytes)}{tried}; "
        f"the largest term is {term} with {gib(size)} at {moment}"
    )
    refusal.ways = ways_of(pricer, whole, smallest, sample, refusal.binding)
    return refusal
