"""The report's charts. The only door to altair, with `pipeline.report.page`.

Each function takes rows of `pipeline.store` and returns one chart; bytes are shown in MiB (2^20).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from pipeline.store import Row, Store, rows
from planner.units import MIB

Drawing = alt.LayerChart | alt.FacetChart | alt.Chart

WIDTH = 700
STEP = 22  # pixels of one line of a chart with a name on each line
TOLERANCE_PERCENT = 5.0  # what the study promises of its expected figures
SIDES = ("predicted", "observed")
SIDE_COLOURS = ["#9aa5b1", "#1f6feb"]
TEMPERATURE_COLOURS = ["#1f6feb", "#e8590c"]
WEIGHT_COLOURS = ["#2f9e44", "#9c36b5"]


def data_of(records: Sequence[Row], *names: str) -> alt.InlineData:
    """Keep the columns ``names`` of ``records``, bytes turned to MiB and renamed ``*_mib``."""
    values = [
        {
            name.replace("_bytes", "_mib"): row[name] / MIB
            if name.endswith("_bytes")
            else row[name]
            for name in names
        }
        for row in records
    ]
    return alt.InlineData(values=values)


def predicted_against_observed(seen: Sequence[Row]) -> Drawing:
    """Observed working set over expected; on the line: exact; a tick marks each point's bound."""
    data = data_of(
        seen,
        *("label", "topology", "weights", "temperature", "rank", "call", "error_percent"),
        *("planned_expected_bytes", "planned_bound_bytes", "observed_working_set_bytes"),
    )
    figures = [row["planned_expected_bytes"] / MIB for row in seen]
    figures += [row["observed_working_set_bytes"] / MIB for row in seen]
    span = [0.95 * min(figures), 1.02 * max(figures)]
    x = alt.X("planned_expected_mib:Q", title="expected, MiB", scale=alt.Scale(domain=span))
    line = (
        alt.Chart(alt.InlineData(values=[{"x": v} for v in span]))
        .mark_line(color="#c0c6cc", strokeDash=[4, 4])
        .encode(x="x:Q", y="x:Q")
    )
    bound = (
        alt.Chart(data)
        .mark_tick(color="#868e96", thickness=1.5, size=14, orient="horizontal")
        .encode(x=x, y="planned_bound_mib:Q")
    )
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=70, opacity=0.75)
        .encode(
            x=x,
            y=alt.Y(
                "observed_working_set_mib:Q",
                title="observed working set (point) and bound (tick), MiB",
                scale=alt.Scale(zero=False),
            ),
            color=alt.Color("topology:N", scale=alt.Scale(scheme="tableau10")),
            shape=alt.Shape("weights:N"),
            tooltip=_tips("planned_expected_mib", "observed_working_set_mib", "error_percent"),
        )
    )
    return alt.layer(line, bound, points).properties(width=WIDTH, height=380)


def error_by_cell(seen: Sequence[Row]) -> Drawing:
    """Error of every rank and call, a line a cell; the band is what the study promises."""
    data = data_of(
        [{**row, "bound_percent": _over_expected(row)} for row in seen],
        *("label", "temperature", "rank", "call", "error_percent", "bound_percent"),
    )
    band = (
        alt.Chart(alt.InlineData(values=[{"low": -TOLERANCE_PERCENT, "high": TOLERANCE_PERCENT}]))
        .mark_rect(color="#e6fcf5")
        .encode(x="low:Q", x2="high:Q")
    )
    zero = alt.Chart(alt.InlineData(values=[{"x": 0}])).mark_rule(color="#c0c6cc").encode(x="x:Q")
    y = alt.Y("label:N", title=None, sort=None)
    bound = (
        alt.Chart(data)
        .mark_tick(color="#868e96", thickness=1.5, size=12)
        .encode(x="bound_percent:Q", y=y)
    )
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=60, opacity=0.75)
        .encode(
            x=alt.X("error_percent:Q", title="observed over expected (point), bound (tick), %"),
            y=y,
            color=_temperature(),
            tooltip=_tips("error_percent", "bound_percent"),
        )
    )
    return alt.layer(band, zero, bound, points).properties(width=WIDTH, height=alt.Step(STEP))


def residual_by_term(terms: Sequence[Row]) -> Drawing:
    """Residual (observed - expected) of each term at the peak, a point for each rank and call."""
    largest: dict[str, int] = {}
    for row in terms:
        size = max(abs(row["residual_bytes"]), largest.get(row["term"], 0))
        largest[row["term"]] = size
    order = sorted(largest, key=lambda term: -largest[term])
    data = data_of(
        terms,
        *("label", "temperature", "rank", "call", "term"),
        *("planned_bytes", "observed_bytes", "residual_bytes"),
    )
    zero = alt.Chart(alt.InlineData(values=[{"x": 0}])).mark_rule(color="#c0c6cc").encode(x="x:Q")
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=50, opacity=0.6)
        .encode(
            x=alt.X("residual_mib:Q", title="observed - expected at the peak, MiB"),
            y=alt.Y("term:N", title=None, sort=order),
            color=_temperature(),
            tooltip=["term:N", *_tips("planned_mib", "observed_mib", "residual_mib")],
        )
    )
    return alt.layer(zero, points).properties(width=WIDTH, height=alt.Step(STEP))


def both_sides(seen: Sequence[Row], what: str, title: str) -> Drawing:
    """Predicted (bar) and observed (point) growth or held-over bytes, a line a cell.

    Cells and calls for which both are zero have no line.
    """
    values = []
    for row in seen:
        if not row[f"planned_{what}_bytes"] and not row[f"observed_{what}_bytes"]:
            continue
        for side, prefix in zip(SIDES, ("planned", "observed"), strict=True):
            size = row[f"{prefix}_{what}_bytes"]
            line = f"{row['label']} {row['temperature']}"
            values.append({"line": line, "rank": row["rank"], "side": side, "mib": size / MIB})
    colour = alt.Color(
        "side:N", title=None, scale=alt.Scale(domain=list(SIDES), range=SIDE_COLOURS)
    )
    x = alt.X("max(mib):Q", title=f"{title}, fullest rank, MiB")
    y = alt.Y("line:N", title=None, sort=None)
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=y, color=colour, tooltip=["line:N", "side:N", alt.Tooltip("max(mib):Q", format=".4f")]
    )
    bars = base.transform_filter("datum.side == 'predicted'").mark_bar(height=12).encode(x=x)
    points = base.transform_filter("datum.side == 'observed'").mark_point(
        filled=True, size=60, opacity=1
    )
    return alt.layer(bars, points.encode(x=x)).properties(width=WIDTH, height=alt.Step(STEP))


def pairs(seen: Sequence[Row], across: str, line: Sequence[str]) -> Drawing:
    """Compare the values of ``across``, observed and expected, on one line for each ``line``."""
    groups = sorted({row[across] for row in seen}, key=lambda v: v not in ("cold", "random"))
    colours = TEMPERATURE_COLOURS if across == "temperature" else WEIGHT_COLOURS
    fullest: dict[tuple[str, str], Row] = {}
    for row in seen:
        place = (" ".join(row[name] for name in line), row[across])
        if (
            place not in fullest
            or row["observed_working_set_bytes"] > fullest[place]["observed_working_set_bytes"]
        ):
            fullest[place] = {**row, "line": place[0]}
    data = data_of(
        list(fullest.values()),
        *("line", across, "rank", "call", "observed_routed_rows", "planned_routed_rows"),
        *("planned_expected_bytes", "observed_working_set_bytes"),
    )
    y = alt.Y("line:N", title=None, sort=None)
    x = alt.X(
        "observed_working_set_mib:Q",
        title="observed (point) and expected (tick) working set, fullest rank, MiB",
        scale=alt.Scale(zero=False),
    )
    colour = alt.Color(f"{across}:N", scale=alt.Scale(domain=groups, range=colours))
    rule = (
        alt.Chart(data).mark_line(color="#ced4da", strokeWidth=2).encode(x=x, y=y, detail="line:N")
    )
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=80, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                "line:N",
                f"{across}:N",
                "rank:Q",
                "call:Q",
                alt.Tooltip("planned_expected_mib:Q", format=".2f"),
                alt.Tooltip("observed_working_set_mib:Q", format=".2f"),
                "observed_routed_rows:Q",
                "planned_routed_rows:Q",
            ],
        )
    )
    ticks = (
        alt.Chart(data)
        .mark_tick(thickness=1.5, size=14)
        .encode(x="planned_expected_mib:Q", y=y, color=colour)
    )
    return alt.layer(rule, ticks, points).properties(width=WIDTH, height=alt.Step(STEP))


def ledger_overhead(seen: Sequence[Row]) -> Drawing:
    """Share of a call's time that the ledger itself took, mean over ranks and calls."""
    values = [
        {"label": row["label"], "percent": 100 * row["ledger_s"] / row["call_s"]}
        for row in seen
        if row["call_s"]
    ]
    bars: alt.Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(color="#748ffc", height=12)
        .encode(
            x=alt.X("mean(percent):Q", title="ledger's share of the call's time, %"),
            y=alt.Y("label:N", title=None, sort=None),
            tooltip=["label:N", alt.Tooltip("mean(percent):Q", format=".1f")],
        )
        .properties(width=WIDTH, height=alt.Step(STEP))
    )
    return bars


def write_picture(store: Store, path: Path) -> None:
    """Write the two leading charts as one PNG or SVG (by the name's ending), without a browser.

    Raises
    ------
    ValueError
        When no call of the store was observed.
    """
    seen = [row for row in rows(store) if row["observed_working_set_bytes"] is not None]
    if not seen:
        raise ValueError(f"{store.out} holds no observed call, so there is nothing to draw")
    picture = alt.hconcat(
        predicted_against_observed(seen).properties(width=460, height=340),
        error_by_cell(seen).properties(width=420),
    ).resolve_scale(color="independent", shape="independent")
    styled(picture).save(path, scale_factor=2)


def styled(chart: Any) -> Any:
    """Give a chart the report's fonts and quiet axes."""
    return (
        chart.configure(font="system-ui, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(
            gridColor="#eef1f4",
            domainColor="#ced4da",
            tickColor="#ced4da",
            labelLimit=300,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=10,
        )
        .configure_axisX(tickCount=8)
        .configure_legend(
            orient="right", labelFontSize=12, titleFontSize=12, titleFontWeight="normal"
        )
    )


def _temperature() -> alt.Color:
    return alt.Color(
        "temperature:N",
        title=None,
        scale=alt.Scale(domain=["cold", "warm"], range=TEMPERATURE_COLOURS),
    )


def _over_expected(row: Row) -> float:
    expected = row["planned_expected_bytes"]
    return float(100 * (row["planned_bound_bytes"] - expected) / expected)


def _tips(*figures: str) -> list[Any]:
    names = ["label:N", "temperature:N", "rank:Q", "call:Q"]
    return [*names, *(alt.Tooltip(f"{name}:Q", format=".3f") for name in figures)]
