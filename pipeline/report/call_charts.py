"""The charts of one call: what its peak is made of, how expected becomes observed, its timeline."""

import altair as alt

from pipeline.report.charts import IN_ORDER, QUIET, Drawing, Source

FAMILIES = {
    "residual": "#4c6ef5",
    "attention": "#15aabf",
    "gdn": "#0b7285",
    "router": "#fab005",
    "dispatch": "#f76707",
    "experts": "#40c057",
    "shared": "#be4bdb",
    "adapters": "#e64980",
    "head": "#7950f2",
    "embedding": "#a9e34b",
    "other": "#94a3b3",
    "unattributed": "#e03131",
}
"""Colours of the families of terms; a family that is not here goes under ``other``."""

PHASES = {"forward": "#4c6ef5", "recompute": "#15aabf", "backward": "#f76707", "other": "#94a3b3"}
ROW = 64  # pixels of one bar of the stack


def stack(unit: str, source: Source) -> Drawing:
    """Terms of the expected peak over those of the observed one, as two stacked bars."""
    chart: alt.Chart = (
        alt.Chart(source("stack"))
        .mark_bar(stroke="white", strokeWidth=0.6)
        .encode(
            x=alt.X("size:Q", title=f"bytes at the peak, {unit}", stack="zero"),
            y=alt.Y("side:N", title=None, sort=["expected", "observed"]),
            color=alt.Color(
                "family:N",
                title=None,
                scale=alt.Scale(domain=list(FAMILIES), range=list(FAMILIES.values())),
                legend=alt.Legend(orient="bottom", symbolType="square"),
            ),
            order="order:Q",
            tooltip=["term:N", "side:N", alt.Tooltip("size:Q", format=",.3f")],
        )
        .properties(height=alt.Step(ROW))
    )
    return chart


def waterfall(unit: str, source: Source) -> Drawing:
    """From expected, term by term, to observed; the axis does not begin at zero."""
    base = alt.Chart(source("waterfall")).encode(
        y=alt.Y("step:N", title=None, sort=IN_ORDER),
        color=alt.Color(
            "kind:N",
            title=None,
            scale=alt.Scale(
                domain=["total", "more", "less"], range=["#94a3b3", "#e8590c", "#2f9e44"]
            ),
        ),
        tooltip=[
            "step:N",
            alt.Tooltip("size:Q", format="+,.4f"),
            alt.Tooltip("to:Q", format=",.3f"),
        ],
    )
    x = alt.X(
        "from:Q", title=f"{unit}; the axis does not begin at zero", scale=alt.Scale(zero=False)
    )
    bars = base.mark_bar(height=12).encode(x=x, x2="to:Q")
    totals = base.transform_filter("datum.kind == 'total'").mark_tick(thickness=3, size=18)
    return alt.layer(bars, totals.encode(x=alt.X("to:Q"))).properties(height=alt.Step(22))


def timeline(unit: str, source: Source) -> Drawing:
    """Live bytes in the order of the call, with its peak, and expected and bound as lines."""
    x = alt.X(
        "at:Q",
        title="allocations, in order",
        axis=alt.Axis(labels=False, ticks=False, grid=False),
        scale=alt.Scale(nice=False),
    )
    y = alt.Y("live:Q", title=f"live, {unit}")
    area = (
        alt.Chart(source("timeline"))
        .mark_rect()
        .encode(
            x=x,
            x2="until:Q",
            y=y,
            y2=alt.datum(0),
            color=alt.Color(
                "phase:N",
                title=None,
                scale=alt.Scale(domain=list(PHASES), range=list(PHASES.values())),
            ),
            tooltip=["where:N", alt.Tooltip("live:Q", format=",.3f")],
        )
    )
    levels = (
        alt.Chart(source("levels"))
        .mark_rule(color=QUIET, strokeDash=[5, 4])
        .encode(y="live:Q", tooltip=["name:N", alt.Tooltip("live:Q", format=",.3f")])
    )
    names = (
        alt.Chart(source("levels"))
        .mark_text(align="left", dy=alt.expr("datum.name == 'bound' ? -7 : 9"), color=QUIET)
        .encode(x=alt.value(4), y="live:Q", text="name:N")
    )
    peak = alt.Chart(source("peak")).encode(x="at:Q", y="live:Q")
    mark = peak.mark_point(
        shape="triangle-down", filled=True, size=110, color="#e03131", yOffset=-6
    )
    word = peak.mark_text(
        color="#e03131", align=alt.expr("datum.at > datum.half ? 'right' : 'left'")
    ).encode(text="name:N", y=alt.value(-8))  # above the drawing: no line runs through it
    return alt.layer(area, levels, names, mark, word).properties(height=260)
