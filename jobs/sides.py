"""The two sides of a call's record: what the planner said, and what the meters saw."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobs import hybridep
from jobs.meter.attribution import Attribution
from jobs.meter.call import CallLedger
from jobs.meter.timeline import timeline
from jobs.record import Observed, Planned
from planner.admission import Decision, Refuse, Split
from planner.children import in_turn
from planner.price import Price

NAMED = 8
"""Storages that a record names of those that no term explains."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Communication buffers outside PyTorch: bytes held, and tokens per rank they can take."""

    nbytes: int
    tokens: int

    @classmethod
    def now(cls) -> "Outside":
        """Read this process's buffers."""
        return cls(hybridep.held_bytes(), hybridep.held_tokens())


def plan_of(decision: Decision, prices: Sequence[Price], held_over: int, rank: int) -> Planned:
    """Return the planner's side of a call: the fullest child's figures on this rank."""
    fullest = max(prices, key=lambda price: price.expected_bytes)
    demand = decision.demands[rank]
    verdict: dict[str, Any] = {
        "verdict": type(decision).__name__.lower(),
        "children": len(decision.children),
        "demands": [
            asdict(other) | {"bytes": other.bytes, "short_bytes": other.short_bytes}
            for other in decision.demands
        ],
    }
    if isinstance(decision, Split):
        verdict["unsplit"] = asdict(decision.unsplit)
    if isinstance(decision, Refuse):
        verdict |= {"reason": decision.reason, "ways_out": list(decision.ways_out)}
    return Planned(
        expected_bytes=fullest.expected_bytes,
        bound_bytes=in_turn([price.figures for price in prices], released=0),
        growth_bytes=max(price.growth_bytes for price in prices),
        retained_bytes=max(price.retained_bytes for price in prices),
        held_over_bytes=held_over,
        demand_bytes=demand.bytes,
        decision=verdict,
        peak_moment=str(fullest.peak_moment),
        terms={name: int(size) for name, size in fullest.terms.items()},
        moments={
            str(moment): {"expected": figure.expected, "bound": figure.bound}
            for moment, figure in fullest.moments.items()
        },
        unpriced=[str(part) for part in fullest.unpriced],
        coefficients=fullest.coefficients,
        local_tokens=fullest.local_tokens,
        routed_rows=list(prices[-1].routed_rows),
        copies={
            line.term: line.copies for line in fullest.lines if line.moment is fullest.peak_moment
        },
    )


def observe(
    call: CallLedger,
    attribution: Attribution,
    before: Outside,
    after: Outside,
    rows: list[int],
    garbage: int,
    seconds: float,
) -> Observed:
    """Return the meters' side of a call."""
    return Observed(
        baseline_bytes=call.baseline_bytes,
        peak_bytes=call.peak_bytes,
        working_set_bytes=call.working_set_bytes,
        retained_bytes=call.retained_bytes or 0,
        held_over_bytes=call.held_over_bytes,
        growth_bytes=after.nbytes - before.nbytes,
        outside_bytes=after.nbytes,
        terms=attribution.terms,
        unattributed_bytes=attribution.unattributed_bytes,
        peak_at=call.peak_at,
        routed_rows=rows,
        call_s=seconds,
        ledger_s=call.ledger_s,
        garbage_bytes=garbage,
        unattributed=[
            {"bytes": a.nbytes, "shape": list(a.shape), "module": a.module, "op": a.op}
            for a in attribution.unattributed[:NAMED]
        ],
        timeline=timeline(call),
    )
