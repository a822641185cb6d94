"""A print of the report as one picture, for a pull request: made without a browser."""

from pathlib import Path
from typing import Any

import altair as alt

from pipeline.report import call_charts, charts
from pipeline.report.contents import contents
from pipeline.report.theme import theme
from pipeline.store import Store

WIDTH = 460  # pixels of each of the two columns
Rows = dict[str, list[dict[str, Any]]]


def write_picture(store: Store, path: Path) -> None:
    """Write the leading charts as one PNG or SVG (by the name's ending), without a browser.

    Predicted against observed and the error by cell, over what the fullest call's peak is made of
    and its timeline, where its record holds one.

    Raises
    ------
    ValueError
        When no call of the store was observed.
    """
    held = contents(store)
    seen = [p for p, size in enumerate(held["calls"]["observed"]) if size is not None]
    seen = [place for place in seen if held["calls"]["expected"][place]]
    if not seen:
        raise ValueError(f"{store.out} holds no observed call, so there is nothing to draw")
    unit = held["unit"]["name"]
    rows = _calls(held, seen) | _fullest(held, max(seen, key=held["calls"]["observed"].__getitem__))

    def source(name: str) -> alt.Data:
        return alt.InlineData(values=rows[name])

    upper = [
        charts.predicted_against_observed(unit, source).properties(width=WIDTH, height=300),
        charts.error_by_cell(source).properties(width=WIDTH),
    ]
    lower = [call_charts.stack(unit, source).properties(width=WIDTH)]
    if rows["timeline"]:
        lower.append(call_charts.timeline(unit, source).properties(width=WIDTH, height=200))
    picture = alt.vconcat(*(_apart(alt.hconcat(*one)) for one in (upper, lower)))
    titled = _apart(picture).properties(title=_title(store, held, seen))
    titled.configure(**theme("light")).save(path, scale_factor=2)


def _apart(charts_together: Any) -> Any:
    """Give each chart colours and shapes of its own."""
    return charts_together.resolve_scale(color="independent", shape="independent")


def _title(store: Store, held: dict[str, Any], seen: list[int]) -> alt.TitleParams:
    calls = held["calls"]
    worst = max((calls["error"][place] for place in seen), key=abs)
    within = sum(calls["observed"][place] <= calls["bound"][place] for place in seen)
    outcomes = held["cells"]["outcome"]
    failed = sum(outcome in ("failed", "incomplete") for outcome in outcomes)
    return alt.TitleParams(
        text=f"{store.out.absolute().name}: {len(outcomes)} cells, {failed} failed",
        subtitle=f"{len(seen)} calls of ranks observed, largest error {worst:+.2f} %, "
        f"{within} within the bound; below, the fullest call",
        anchor="start",
    )


def _calls(held: dict[str, Any], seen: list[int]) -> Rows:
    """Return the rows of the calls, and the ends of the line where expected is exact."""
    calls, cells, unit = held["calls"], held["cells"], held["unit"]["bytes"]
    rows = [
        {
            **{name: cells[name][calls["cell"][p]] for name in ("label", "line", "topology")},
            "weights": cells["weights"][calls["cell"][p]],
            "order": p,
            **{name: calls[name][p] for name in ("temperature", "rank", "call", "error")},
            **{name: calls[name][p] / unit for name in ("expected", "bound", "observed")},
            "bound_percent": 100 * (calls["bound"][p] / calls["expected"][p] - 1),
        }
        for p in seen
    ]
    ends = [row[name] for row in rows for name in ("expected", "observed")]
    return {"calls": rows, "diagonal": [{"x": min(ends)}, {"x": max(ends)}]}


def _fullest(held: dict[str, Any], place: int) -> Rows:
    """Return the rows of one call's charts."""
    terms, unit = held["terms"], held["unit"]["bytes"]
    families = list(call_charts.FAMILIES)
    stack = []
    for number, name in enumerate(terms["names"]):
        family = name.split(".")[0] if name.split(".")[0] in families else "other"
        planned = terms["planned"][number][place]
        observed = planned + terms["residual"][number][place]
        stack += [
            {
                "term": name,
                "family": family,
                "order": families.index(family),
                "side": side,
                "size": size / unit,
            }
            for side, size in (("expected", planned), ("observed", observed))
            if size
        ]
    detail, names = held["details"]["calls"][str(place)], held["details"]["names"]
    wheres = [names[number] for number in detail["where"]]
    timeline = [
        {
            "at": at,
            "until": at + 1,
            "live": size / unit,
            "where": where,
            "phase": where.split(" ")[0] if where.split(" ")[0] in call_charts.PHASES else "other",
        }
        for at, (size, where) in enumerate(zip(detail["live"], wheres, strict=True))
    ]
    top = max(timeline, key=lambda row: row["live"], default=None)
    levels = [
        {"name": name, "live": held["calls"][name][place] / unit} for name in ("expected", "bound")
    ]
    peak = {"half": len(timeline) / 2, "name": f"peak: {top['where']}"} if top else {}
    return {
        "stack": stack,
        "timeline": timeline,
        "levels": levels,
        "peak": [{**peak, "at": top["at"] + 0.5, "live": top["live"]}] if top else [],
    }
