"""What a cell's rows come to: one line for its cold call and one for its warm calls."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.completion import GOOD
from pipeline.store import Row
from planner.units import gib


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Calls of one cell and temperature, over all ranks.

    Parameters
    ----------
    fullest
        The row of the rank and call that needed most: observed working set, else what was reached
        until the call was cut short, else expected.
    worst_percent
        The error (observed - expected) farthest from zero over all rows; nan if none was observed.
    covered, observed
        Rows whose working set stayed within the bound, and rows that were observed to their end.
    failed
        Rows of calls that failed; what they had reached is no observation.
    """

    fullest: Row
    worst_percent: float
    covered: int
    observed: int
    failed: int


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Group rows by cell and temperature, in order; rows without a plan are left out."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["planned_expected_bytes"] is not None:
            groups[row["key"], row["temperature"]].append(row)
    return [_summary(group) for group in groups.values()]


def _summary(group: Sequence[Row]) -> Summary:
    seen = [row for row in group if row["observed_working_set_bytes"] is not None]
    errors = [row["error_percent"] for row in seen if row["error_percent"] is not None]
    return Summary(
        fullest=max(
            seen or group,
            key=lambda r: (
                r["observed_working_set_bytes"] or r["reached_bytes"] or 0,
                r["planned_expected_bytes"],
            ),
        ),
        worst_percent=max(errors, key=abs, default=math.nan),
        covered=sum(row["covered"] for row in seen),
        observed=len(seen),
        failed=sum(row["outcome"] not in GOOD for row in group),
    )


def worst_percent(rows: Sequence[Row]) -> float:
    """Return the largest absolute error of ``rows`` in percent; nan where nothing was observed."""
    errors = [abs(r["error_percent"]) for r in rows if r["error_percent"] is not None]
    return max(errors, default=math.nan)


def one_line(rows: Sequence[Row]) -> str:
    """Predicted against observed of one cell's fullest call, in a line."""
    summaries = summarise(rows)
    if not summaries:
        return "nothing was planned"
    summary = max(summaries, key=lambda s: s.fullest["planned_expected_bytes"])
    row = summary.fullest
    expected, bound = gib(row["planned_expected_bytes"]), gib(row["planned_bound_bytes"])
    if row["observed_working_set_bytes"] is None:
        return f"predicted {expected}, bound {bound}, demand {gib(row['planned_demand_bytes'])}"
    seen = gib(row["observed_working_set_bytes"])
    return (
        f"predicted {expected} (bound {bound}), observed {seen} ({row['error_percent']:+.2f} %), "
        f"worst of {summary.observed} {summary.worst_percent:+.2f} %"
    )
