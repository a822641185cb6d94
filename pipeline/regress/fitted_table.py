"""Fitted table: a table with other copies than those that it began with."""

from dataclasses import replace

from pipeline.regress.design import Design
from pipeline.regress.rows import Floats
from planner.coefficients import MILLI, Coefficients


def with_copies(
    design: Design, copies: Floats, low: Floats | None = None, high: Floats | None = None
) -> Coefficients:
    """Return the design's table with other copies, rounded to thousandths, and their intervals."""
    entries = list(design.table.copies)
    for place, key in enumerate(design.keys):
        entry = design.table.copies[key.entry]
        moments = [moment for moment, milli in entry.at.items() if milli == key.milli]
        value = round(float(copies[place]) * MILLI)
        at = {**entries[key.entry].at, **dict.fromkeys(moments, value)}
        interval = dict(entries[key.entry].interval)
        if low is not None and high is not None:
            ends = (
                min(round(float(low[place]), 3), value / MILLI),
                max(round(float(high[place]), 3), value / MILLI),
            )
            interval |= dict.fromkeys(moments, ends)
        entries[key.entry] = replace(entries[key.entry], at=at, interval=interval)
    return replace(design.table, copies=tuple(entries))
