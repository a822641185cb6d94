"""The charts of a sweep's history: a point a fit or a sweep, oldest first."""

import altair as alt

from pipeline.report.charts import IN_ORDER, QUIET, Drawing, Source

SIZE = {"width": 400, "height": 180}  # a width in pixels is what the page stretches, no step is
LONG = alt.Legend(orient="bottom", columns=2, labelLimit=420)  # names of coefficients are
SOURCES = alt.Shape(
    "from:N",
    title=None,
    scale=alt.Scale(domain=["data", "prior"], range=["circle", "diamond"]),
    legend=alt.Legend(symbolFillColor=QUIET, symbolStrokeColor=QUIET),
)


def copies_over_fits(source: Source) -> Drawing:
    """Draw copies less those of the oldest fit, with their intervals; a line a coefficient."""
    base = alt.Chart(source("fits")).encode(
        x=_over("fit"),
        color=alt.Color(
            "coefficient:N", title=None, scale=alt.Scale(scheme="tableau10"), legend=LONG
        ),
        tooltip=[
            *("coefficient:N", "fit:N", "from:N"),
            *(alt.Tooltip(f"{name}:Q", format="+.3f") for name in ("copies", "moved")),
        ],
    )
    zero = alt.Chart(alt.InlineData(values=[{"y": 0}])).mark_rule(color=QUIET).encode(y="y:Q")
    interval = base.mark_rule(opacity=0.5).encode(y="low:Q", y2="high:Q")
    lines = base.mark_line(opacity=0.7).encode(y="moved:Q")
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        y=alt.Y("moved:Q", title="copies, less the oldest fit's"), shape=SOURCES
    )
    return alt.layer(zero, interval, lines, points).properties(**SIZE)


def coverage_over_fits(source: Source) -> Drawing:
    """Share of the calls within the fitted bound, with its interval of 95 %."""
    y = alt.Y("coverage:Q", title="within the bound, %", scale=alt.Scale(zero=False))
    base = alt.Chart(source("coverage")).encode(
        x=_over("fit"),
        tooltip=["fit:N", "calls:Q", alt.Tooltip("coverage:Q", format=".2f")],
    )
    interval = base.mark_rule(color=QUIET).encode(y="low:Q", y2="high:Q")
    lines = base.mark_line(opacity=0.6).encode(y=y)
    points = base.mark_point(filled=True, size=55, opacity=1).encode(y=y)
    return alt.layer(interval, lines, points).properties(**SIZE)


def error_over_sweeps(source: Source) -> Drawing:
    """Largest error of each table, a line a table; red where a call was above its bound."""
    base = alt.Chart(source("sweeps")).encode(
        x=_over("sweep"),
        y=alt.Y("worst:Q", title="largest error, %"),
        tooltip=["table:N", "sweep:N", alt.Tooltip("worst:Q", format=".2f"), "within:N"],
    )
    lines = base.mark_line(opacity=0.6).encode(color=alt.Color("table:N", title=None))
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        color=alt.condition("datum.all_within", "table:N", alt.value("#e03131"))
    )
    return alt.layer(lines, points).properties(**SIZE)


def _over(what: str) -> alt.X:
    return alt.X(f"{what}:N", title=None, sort=IN_ORDER, axis=alt.Axis(labelAngle=-20))
