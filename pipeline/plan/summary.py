"""A plan as JSON values: what a batch needs, rank by rank and term by term, and whether it fits."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from planner.admission import Admit, Decision, Refuse, Split
from planner.batch import Batch
from planner.outside import Outside
from planner.plain import to_plain
from planner.price import Price
from planner.pricer import Pricer
from planner.state import LiveState
from planner.static import Static
from planner.topology import Topology


@dataclass(frozen=True)
class Plan:
    """One batch under one pricer, decided on.

    Parameters
    ----------
    device_bytes
        Memory of a device; ``None``: no limit.
    decision
        As admission took it with what static bytes leave of the device, unpriced parts allowed:
        they are listed beside it.
    expandable
        Whether PyTorch's allocator has expandable segments.
    """

    pricer: Pricer
    batch: Batch
    device_bytes: int | None
    decision: Decision
    expandable: bool = False

    @property
    def state(self) -> LiveState:
        """What the processes hold already."""
        return LiveState(self.decision.sample.held_tokens)

    @cached_property
    def prices(self) -> tuple[Price, ...]:
        """Every rank's price of the whole batch."""
        return self.pricer.price_ranks(self.batch, self.state)

    @cached_property
    def worst(self) -> Price:
        """The price of the rank that needs most, static bytes and demand together."""
        topology = self.pricer.topology
        size = topology.world // topology.pp
        static = [self.pricer.static(pp * size).resident_bytes for pp in range(topology.pp)]
        return max(
            self.prices,
            key=lambda price: (price.demand_bytes + static[price.rank // size], -price.rank),
        )

    @cached_property
    def static(self) -> Static:
        """What that rank holds whatever the batch."""
        return self.pricer.static(self.worst.rank)

    @cached_property
    def outside(self) -> Outside:
        """What it holds outside PyTorch beside HybridEP's buffers (on a device)."""
        inside = self.static.resident_bytes + self.worst.bound_bytes
        return self.pricer.outside(inside, expandable=self.expandable)

    @property
    def fits(self) -> bool:
        """Whether the batch fits as it is."""
        return isinstance(self.decision, Admit)


def summary(plan: Plan) -> dict[str, Any]:
    """Return the plan of the rank that needs most; bytes are integers.

    ``peak_bytes`` are what admission sets aside: the bound with its margin, growth in both peaks
    and never in what is retained. ``expected_bytes`` and ``bound_bytes`` speak of what lies inside
    PyTorch, ``terms`` of expected bytes.
    """
    price, pricer = plan.worst, plan.pricer
    counts = pricer.model.parameters
    decision = plan.decision
    held = pricer.buffer_bytes(plan.state.held_by(price.rank))
    runtime = plan.outside
    return {
        "model": pricer.model.name,
        "parameters": {"total": counts.total, "active": counts.active},
        "assumptions": list(pricer.model.assumptions),
        "topology": to_plain(pricer.topology) | {"world": pricer.topology.world},
        "step": to_plain(pricer.step),
        "coefficients": pricer.coefficients.name,
        "tokens": plan.batch.tokens,
        "logical_tokens": plan.batch.logical_tokens,
        "gradients": not plan.batch.forward_only,
        "rank": price.rank,
        "rank_tokens": [of_rank.local_tokens for of_rank in plan.prices],
        "peak_moment": str(price.peak_moment),
        "peak_bytes": {
            "forward": price.forward_bytes,
            "backward": None if price.forward_only else price.backward_bytes,
            "retained": price.retained_bound_bytes,
        },
        "expected_bytes": price.expected_bytes,
        "bound_bytes": price.bound_bytes,
        "growth_bytes": price.growth_bytes,
        "outside_bytes": held + price.growth_bytes + runtime.expected_bytes,
        "outside_bound_bytes": held + price.growth_bound_bytes + runtime.bound_bytes,
        "outside": [
            {"name": line.term, "bytes": line.expected, "bound_bytes": line.bound}
            for line in runtime.lines
        ],
        "demand_bytes": price.demand_bytes,
        "static_bytes": plan.static.resident_bytes,
        "static": [{"name": line.term, "bytes": line.bytes} for line in plan.static.lines],
        "device_bytes": plan.device_bytes,
        "room_bytes": decision.sample.room_bytes[price.rank],
        "fits": plan.fits,
        "verdict": type(decision).__name__.lower(),
        "children": len(decision.children) if isinstance(decision, Split) else 1,
        "reason": decision.reason if isinstance(decision, Refuse) else None,
        "ways_out": to_plain(decision.ways) if isinstance(decision, Refuse) else [],
        "terms": [
            {"name": line.term, "moment": str(line.moment), "bytes": line.expected}
            for line in price.lines
        ],
        "unpriced": [str(part) for part in price.unpriced],
    }


def degrees(topology: Topology) -> str:
    """Name a topology by the degrees above one, and its ranks."""
    axes = ("pp", "dp", "cp", "tp", "ep", "etp")
    split = [f"{axis}{n}" for axis in axes if (n := getattr(topology, axis)) > 1]
    return f"{' '.join(split)}, {topology.world} ranks" if split else "one rank"
