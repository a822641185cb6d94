"""The charts of a sweep. The only doors to altair are `pipeline.report`'s charts and its page.

A chart names its data; a `Source` gives them, inline for a print, by name alone on the page, whose
script fills them in and changes them with the filters. Sizes come in the page's unit.
"""

from collections.abc import Callable

import altair as alt

from planner.units import GIB, MIB

Drawing = alt.LayerChart | alt.FacetChart | alt.Chart
Source = Callable[[str], alt.Data]

STEP = 22  # pixels of one line of a chart with a name on each line
TOLERANCE_PERCENT = 5.0  # what the study promises of its expected figures
SIDES = ("predicted", "observed")
SIDE_COLOURS = ["#9aa5b1", "#1f6feb"]
TEMPERATURES = ("cold", "warm")
TEMPERATURE_COLOURS = ["#1f6feb", "#e8590c"]
IN_ORDER = alt.EncodingSortField("order", op="min")  # stays when rows come back after a filter
UNITS = {"KiB": MIB // 1024, "MiB": MIB, "GiB": GIB}
ABOVE_ZERO = "datum.expected > 0 && datum.observed > 0"  # what a scale of doublings can show
QUIET = "#868e96"  # rules and ticks, seen on light and on dark


def by_name(name: str) -> alt.Data:
    """Return data that a script fills in."""
    return alt.NamedData(name=name)


def doublings() -> alt.Scale:
    """Return a scale on which twice as much is as far anywhere: cells of any sizes stand apart."""
    return alt.Scale(type="log", base=2, nice=False, padding=10)


def sized(unit: str) -> alt.Axis:
    """Return an axis whose ticks name their unit; values come in the page's."""
    words = ""
    for name, size in UNITS.items():
        shown = f"format(datum.value / {size / UNITS[unit]}, ',.4~r') + ' {name}'"
        words = f"datum.value >= {size / UNITS[unit]} ? {shown} : {words}" if words else shown
    return alt.Axis(labelExpr=words, tickCount=7)


def predicted_against_observed(unit: str, source: Source) -> Drawing:
    """Observed working set over expected; from the dashed line up to the tick: within the bound."""
    x = alt.X("expected:Q", title="expected", scale=doublings(), axis=sized(unit))
    line = (
        alt.Chart(source("diagonal"))
        .mark_line(color=QUIET, strokeDash=[4, 4])
        .encode(x="x:Q", y="x:Q")
    )
    interval = (
        alt.Chart(source("calls"))
        .mark_rule(color=QUIET, opacity=0.35)
        .encode(x=x, y="expected:Q", y2="bound:Q")
    )
    bound = (
        alt.Chart(source("calls"))
        .mark_tick(color=QUIET, thickness=1.5, size=12, orient="horizontal")
        .encode(x=x, y="bound:Q")
    )
    points = (
        alt.Chart(source("calls"))
        .mark_point(filled=True, size=60, opacity=0.75, cursor="pointer")
        .encode(
            x=x,
            y=alt.Y(
                "observed:Q",
                title="observed (point), bound (tick)",
                scale=doublings(),
                axis=sized(unit),
            ),
            color=alt.Color("topology:N", scale=alt.Scale(scheme="tableau10")),
            shape=alt.Shape("weights:N"),
            tooltip=call_tips("expected", "observed", "bound", "error"),
        )
    )
    marks = [one.transform_filter(ABOVE_ZERO) for one in (interval, bound, points)]
    return alt.layer(line, *marks).properties(height=360)


def error_by_cell(source: Source) -> Drawing:
    """Error of every rank and call, a line a cell or kind of cell; the band is what is promised."""
    band = (
        alt.Chart(alt.InlineData(values=[{"low": -TOLERANCE_PERCENT, "high": TOLERANCE_PERCENT}]))
        .mark_rect(color="#20c997", opacity=0.12)
        .encode(x="low:Q", x2="high:Q")
    )
    zero = alt.Chart(alt.InlineData(values=[{"x": 0}])).mark_rule(color=QUIET).encode(x="x:Q")
    y = alt.Y("line:N", title=None, sort=IN_ORDER)
    bound = (
        alt.Chart(source("calls"))
        .mark_tick(color=QUIET, thickness=1.5, size=12)
        .encode(x="bound_percent:Q", y=y)
    )
    points = (
        alt.Chart(source("calls"))
        .mark_point(filled=True, size=50, opacity=0.7, cursor="pointer")
        .encode(
            x=alt.X("error:Q", title="observed over expected (point), bound (tick), %"),
            y=y,
            color=temperature(),
            tooltip=call_tips("error", "bound_percent"),
        )
    )
    return alt.layer(band, zero, bound, points).properties(height=alt.Step(STEP))


def residual_by_term(unit: str, source: Source) -> Drawing:
    """Residual of each term at the peak: the range over calls, and its median as a point."""
    y = alt.Y("term:N", title=None, sort=IN_ORDER)
    base = alt.Chart(source("residuals")).encode(
        y=y,
        yOffset=alt.YOffset("temperature:N", scale=alt.Scale(domain=list(TEMPERATURES))),
        color=temperature(),
        tooltip=[
            "term:N",
            "temperature:N",
            *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("low", "median", "high")),
            alt.Tooltip("calls:Q"),
            alt.Tooltip("farthest:N", title="farthest"),
        ],
    )
    zero = alt.Chart(alt.InlineData(values=[{"x": 0}])).mark_rule(color=QUIET).encode(x="x:Q")
    ranges = base.mark_bar(height=3, opacity=0.6).encode(
        x=alt.X("low:Q", title=f"observed less expected at the peak, {unit}"), x2="high:Q"
    )
    medians = base.mark_point(filled=True, size=45, opacity=1).encode(x="median:Q")
    return alt.layer(zero, ranges, medians).properties(height=alt.Step(STEP, **{"for": "position"}))


def both_sides(unit: str, source: Source, name: str, title: str) -> Drawing:
    """Predicted (bar) and observed (point) bytes of the fullest rank, a line a cell and kind."""
    colour = alt.Color(
        "side:N", title=None, scale=alt.Scale(domain=list(SIDES), range=SIDE_COLOURS)
    )
    base = alt.Chart(source(name)).encode(
        x=alt.X("size:Q", title=f"{title}, fullest rank, {unit}", stack=None),
        y=alt.Y("line:N", title=None, sort=IN_ORDER),
        color=colour,
        tooltip=["line:N", "side:N", alt.Tooltip("size:Q", format=".4f")],
    )
    bars = base.transform_filter("datum.side == 'predicted'").mark_bar(height=12)
    points = base.transform_filter("datum.side == 'observed'").mark_point(
        filled=True, size=55, opacity=1
    )
    return alt.layer(bars, points).properties(height=alt.Step(STEP))


def garbage(unit: str, source: Source) -> Drawing:
    """Bytes that nothing but the cyclic collector freed, a line a cell and kind of call."""
    bars: alt.Chart = (
        alt.Chart(source("garbage"))
        .mark_bar(color="#e03131", height=12)
        .encode(
            x=alt.X("size:Q", title=f"garbage, fullest rank, {unit}"),
            y=alt.Y("line:N", title=None, sort=IN_ORDER),
            tooltip=["line:N", alt.Tooltip("size:Q", format=".4f")],
        )
        .properties(height=alt.Step(STEP))
    )
    return bars


def pairs(unit: str, source: Source, name: str) -> Drawing:
    """Compare two kinds of call on one line: observed (point) and expected (tick)."""
    y = alt.Y("line:N", title=None, sort=IN_ORDER)
    x = alt.X(
        "observed:Q",
        title="observed (point) and expected (tick), fullest rank",
        scale=doublings(),
        axis=sized(unit),
    )
    colour = alt.Color(
        "kind:N", title=None, scale=alt.Scale(range=[*TEMPERATURE_COLOURS, "#2f9e44", "#9c36b5"])
    )
    base = alt.Chart(source(name)).transform_filter(ABOVE_ZERO)
    rule = base.mark_line(color=QUIET, opacity=0.5).encode(x=x, y=y, detail="line:N")
    points = base.mark_point(filled=True, size=70, opacity=0.9).encode(
        x=x,
        y=y,
        color=colour,
        tooltip=[
            *("line:N", "kind:N"),
            *(alt.Tooltip(f"{name}:Q", format=",.2f") for name in ("expected", "observed")),
            *(alt.Tooltip(f"{name}:Q", format=",") for name in ("rows_predicted", "rows_observed")),
        ],
    )
    ticks = base.mark_tick(thickness=1.5, size=14).encode(x="expected:Q", y=y, color=colour)
    return alt.layer(rule, ticks, points).properties(height=alt.Step(STEP))


def ledger_overhead(source: Source) -> Drawing:
    """Share of a call's time that the ledger itself took, mean over ranks and calls."""
    bars: alt.Chart = (
        alt.Chart(source("ledger"))
        .mark_bar(color="#748ffc", height=12)
        .encode(
            x=alt.X("percent:Q", title="ledger's share of the call's time, %"),
            y=alt.Y("line:N", title=None, sort=IN_ORDER),
            tooltip=["line:N", alt.Tooltip("percent:Q", format=".1f")],
        )
        .properties(height=alt.Step(STEP))
    )
    return bars


def temperature() -> alt.Color:
    """Colour a mark by cold and warm."""
    return alt.Color(
        "temperature:N",
        title=None,
        scale=alt.Scale(domain=list(TEMPERATURES), range=TEMPERATURE_COLOURS),
    )


def call_tips(*figures: str) -> list[str | alt.Tooltip]:
    """Return the tooltip of a mark that stands for a call: what it is, and some figures."""
    names: list[str | alt.Tooltip] = ["label:N", "temperature:N", "rank:Q", "call:Q"]
    return [*names, *(alt.Tooltip(f"{name}:Q", format=",.3f") for name in figures)]
