"""Details: what the page tells of single calls alone: timeline, place of the peak, leftovers.

They are bulky, so that a large sweep keeps them for `MOST_CALLS` calls: the fullest of each cell
first, then those that were cut short, then those with the largest errors; the page says for how
many.
"""

from collections.abc import Sequence
from typing import Any

from jobs.record import Observed, Planned, RankRecord
from pipeline.store import Row, place_of

MOST_CALLS = 1000


def details(
    records: Sequence[RankRecord], table: Sequence[Row], fullest: Sequence[int]
) -> dict[str, Any]:
    """Return the details of calls by their place in ``records``, and the names that they share.

    Parameters
    ----------
    table
        Rows of the records, in the same order.
    fullest
        Places of the fullest call of each cell, cold and warm.
    """
    first = set(fullest)
    planned_and_seen = [p for p, r in enumerate(records) if r.observed or r.planned]
    planned_and_seen.sort(
        key=lambda p: (
            p not in first,
            records[p].reached is None,
            -abs(table[p]["error_percent"] or 0),
            p,
        )
    )
    names: dict[str, int] = {}
    chosen = sorted(planned_and_seen[:MOST_CALLS])
    return {
        "of": len(planned_and_seen),
        "calls": {str(place): _detail(records[place], names) for place in chosen},
        "names": list(names),
    }


def _detail(record: RankRecord, names: dict[str, int]) -> dict[str, Any]:
    detail: dict[str, Any] = {}
    if record.planned is not None:
        detail |= _planned(record.planned)
    if record.observed is not None:
        detail |= _observed(record.observed, names)
    return detail


def _planned(planned: Planned) -> dict[str, Any]:
    return {
        "moment": planned.peak_moment,
        "demand": planned.demand_bytes,
        "verdict": str(planned.decision.get("verdict", "")),
        "unpriced": planned.unpriced,
        "tokens": planned.local_tokens,
        "table": planned.coefficients,
    }


def _observed(observed: Observed, names: dict[str, int]) -> dict[str, Any]:
    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    return {
        "at": place_of(observed),
        "baseline": observed.baseline_bytes,
        "outside": observed.outside_bytes,
        "live": [size for size, _ in observed.timeline],
        "where": [number(where) for _, where in observed.timeline],
        "leftovers": [
            [one.get("bytes"), str(one.get("shape", "")), one.get("module"), one.get("op")]
            for one in observed.unattributed
        ],
        "device": [
            [name, value]
            for name, value in observed.device.items()
            if isinstance(value, (int, float, str)) and value not in (0, "")
        ],
    }
