"""Trends: fitted copies and coverage from fit to fit, errors from sweep to sweep, as chart rows."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from pipeline.report.history import Fit, Standing

ChartRows = list[dict[str, Any]]

MOST_LINES = 8
"""Coefficients that are drawn: those that moved most, from fit to fit."""


def trends(fits: Sequence[Fit], sweeps: Sequence[Standing]) -> dict[str, ChartRows]:
    """Return the rows of each chart; none where there are fewer than two points to a line.

    Parameters
    ----------
    fits, sweeps
        Oldest first.
    """
    named = _names(fits)
    return {
        "fits": _copies(fits, named),
        "coverage": _coverage(fits, named) if len(fits) > 1 else [],
        "sweeps": _errors(sweeps),
    }


def _names(fits: Sequence[Fit]) -> list[str]:
    """Name each fit by its table and day; those that share both, by the digest too."""
    plain = [f"{fit.table} {fit.date}" for fit in fits]
    shared = Counter(plain)
    return [
        f"{name} {fit.digest[:6]}" if shared[name] > 1 else name
        for name, fit in zip(plain, fits, strict=True)
    ]


def _copies(fits: Sequence[Fit], named: Sequence[str]) -> ChartRows:
    """Return the copies of the coefficients that moved most, less those of their oldest fit."""
    lines: dict[str, ChartRows] = defaultdict(list)
    for order, (fit, name) in enumerate(zip(fits, named, strict=True)):
        for coefficient, (copies, low, high, source) in fit.copies.items():
            first = lines[coefficient][0]["copies"] if lines[coefficient] else copies
            lines[coefficient].append(
                {
                    "coefficient": coefficient,
                    "fit": name,
                    "order": order,
                    "copies": copies,
                    "moved": copies - first,
                    "low": low - first,
                    "high": high - first,
                    "from": source,
                }
            )
    drawn = [line for line in lines.values() if len(line) > 1]
    drawn.sort(key=lambda line: -max(abs(row["moved"]) for row in line))
    return [row for line in drawn[:MOST_LINES] for row in line]


def _coverage(fits: Sequence[Fit], named: Sequence[str]) -> ChartRows:
    return [
        {
            "fit": name,
            "order": order,
            "coverage": 100 * fit.covered / fit.measured_peaks,
            "low": 100 * fit.coverage_interval[0],
            "high": 100 * fit.coverage_interval[1],
            "calls": fit.measured_peaks,
        }
        for order, (fit, name) in enumerate(zip(fits, named, strict=True))
        if fit.measured_peaks
    ]


def _errors(sweeps: Sequence[Standing]) -> ChartRows:
    """Return the largest error of each table that has priced two sweeps or more."""
    seen = [one for one in sweeps if one.worst_percent is not None]
    count = Counter(one.table for one in seen)
    return [
        {
            "table": one.table,
            "sweep": f"{one.sweep} {one.date}",
            "order": order,
            "worst": one.worst_percent,
            "within": f"{one.covered} of {one.calls}",
            "all_within": one.covered == one.calls,
        }
        for order, one in enumerate(seen)
        if count[one.table] > 1
    ]
