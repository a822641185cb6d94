"""The sections of the page that are charts: in their order, with what they say of themselves.

A section's name is that of its rows in the page's script.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.report import call_charts, charts, trend_charts


@dataclass(frozen=True, slots=True)
class Section:
    """One chart of the page: its name in the script, what it is called and what it shows."""

    name: str
    title: str
    text: str
    chart: charts.Drawing


def call_sections(unit: str) -> Iterator[Section]:
    """Yield the charts of the one call that is chosen."""
    named = charts.by_name
    yield Section(
        "stack",
        "What the peak is made of",
        "Terms of the expected peak over those attributed to the observed one, coloured by family.",
        call_charts.stack(unit, named),
    )
    yield Section(
        "waterfall",
        "From expected to observed",
        "Each bar is a term's residual: to the right it held more than it was priced at.",
        call_charts.waterfall(unit, named),
    )
    yield Section(
        "timeline",
        "Live bytes through the call",
        "What the call had allocated and not yet let go of, each bar the fullest moment of its "
        "stretch.",
        call_charts.timeline(unit, named),
    )


def sweep_sections(unit: str) -> Iterator[Section]:
    """Yield the charts of all calls that pass the filters."""
    named = charts.by_name
    yield Section(
        "scatter",
        "Predicted against observed",
        "Each point is one call on one rank; a click shows it above. On the dashed line the "
        "expected working set is exact; from there to the tick is within the bound.",
        charts.predicted_against_observed(unit, named),
    )
    yield Section(
        "errors",
        "Error by cell",
        f"The band is ±{charts.TOLERANCE_PERCENT:g} %; a point right of its ticks passed a bound.",
        charts.error_by_cell(named),
    )
    yield Section(
        "residuals",
        "Residual by term",
        "Bytes at the peak that a term was observed to hold beyond what it was priced at: the "
        "range over calls, and the median as a point.",
        charts.residual_by_term(unit, named),
    )
    yield Section(
        "growth",
        "Buffer growth",
        "What the communication buffers outside PyTorch grew by in a call. No line: nothing, as "
        "predicted.",
        charts.both_sides(unit, named, "growth", "growth"),
    )
    yield Section(
        "held",
        "Held over",
        "What an earlier call of the process left alive when the call began, still referenced. No "
        "line: nothing, as predicted.",
        charts.both_sides(unit, named, "held", "held over"),
    )
    yield Section(
        "garbage",
        "Garbage",
        "What a call left that nothing refers to any more and that only the cyclic collector "
        "freed. It is no held-over state and part of no price; a peak measured before the "
        "collector ran may contain it.",
        charts.garbage(unit, named),
    )
    yield Section(
        "temperature",
        "Cold against warm",
        "The same cell in its first call and in later ones.",
        charts.pairs(unit, named, "temperature"),
    )
    yield Section(
        "weights",
        "Weights against weights",
        "Trained routing sends more rows to the busiest rank; the fullest rank of each.",
        charts.pairs(unit, named, "weights"),
    )
    yield Section(
        "ledger",
        "Ledger overhead",
        "Following every storage takes time; none of it is memory.",
        charts.ledger_overhead(named),
    )


def history_sections() -> Iterator[Section]:
    """Yield the charts of this sweep and those beside it, and of the fits among them."""
    named = charts.by_name
    yield Section(
        "fits",
        "Fitted copies from fit to fit",
        "Each coefficient less its copies in the oldest fit that has it, with intervals of 95 %: "
        "those that moved most. A diamond stayed at its prior: the data could not tell it apart.",
        trend_charts.copies_over_fits(named),
    )
    yield Section(
        "coverage",
        "Coverage from fit to fit",
        "Share of the calls of a fit that its table's bound held for, with its interval of 95 %.",
        trend_charts.coverage_over_fits(named),
    )
    yield Section(
        "sweeps",
        "Error from sweep to sweep",
        "Largest error of each table in the sweeps that it priced; a red point had a call above "
        "its bound.",
        trend_charts.error_over_sweeps(named),
    )
