"""The report as one self-contained HTML page: no network, no second file.

Python gives the charts' form and the columns of the calls; the page's script (`browser/`) fills
charts and tables from the calls that pass the filters.
"""

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import altair as alt
import vl_convert

from pipeline.report import call_charts, charts
from pipeline.report.coefficients import coefficients_section
from pipeline.report.contents import contents, pack
from pipeline.report.sound import sound
from pipeline.report.theme import THEMES, theme
from pipeline.store import Store

SNIPPET = "window.vegaEmbed = vegaEmbed;"  # all that the page calls of the bundle
BROWSER = Path(__file__).with_name("browser")
SCRIPTS = ("contents", "filters", "rows", "tables", "call", "charts", "main")


FEW_FAULTS = 3
MOST_FAULTS = 40
MOST_LETTERS = 2000  # of one fault


@dataclass(frozen=True, slots=True)
class Section:
    """One chart of the page: its name in the script, what it is called and what it shows."""

    name: str
    title: str
    text: str
    chart: charts.Drawing


def write_page(store: Store, path: Path) -> None:
    """Write the report of ``store`` to ``path``, atomically; unsound records become faults."""
    store = sound(store)
    held = contents(store)
    unit = held["unit"]["name"]
    of_call, of_sweep = list(_call_sections(unit)), list(_sweep_sections(unit))
    text = Template(_read("page.html")).substitute(
        title=html.escape(f"Peakcast: {store.out.absolute().name}"),
        style=_read("page.css"),
        faults=_faults(store),
        call_charts="\n".join(_section(one, "h3") for one in of_call),
        charts="\n".join(_section(one, "h2") for one in of_sweep),
        coefficients=coefficients_section(store, path.parent),
        machine=html.escape(_machine(store)),
        contents=pack(held),
        specs=_specs(of_call, of_sweep),
        bundle=_bundle(),
        script="\n".join(_read(f"{name}.js") for name in SCRIPTS),
    )
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def _call_sections(unit: str) -> Iterator[Section]:
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


def _sweep_sections(unit: str) -> Iterator[Section]:
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


def _section(one: Section, level: str) -> str:
    tag = "section" if level == "h2" else "div"
    return (
        f'<{tag} id="section-{one.name}" hidden><{level} id="title-{one.name}">'
        f"{html.escape(one.title)}</{level}><p>{html.escape(one.text)} "
        f'<span id="note-{one.name}"></span></p>'
        f'<div class="chart" id="chart-{one.name}" aria-labelledby="title-{one.name}"></div>'
        f"</{tag}>"
    )


def _specs(of_call: list[Section], of_sweep: list[Section]) -> str:
    """Return what the script knows of the charts; none of it comes from records."""
    specs: dict[str, Any] = {
        "charts": {
            one.name: one.chart.properties(description=one.title).to_dict()
            for one in (*of_call, *of_sweep)
        },
        "of_call": [one.name for one in of_call],
        "themes": {name: theme(name) for name in THEMES},
        "families": list(call_charts.FAMILIES),
        "phases": list(call_charts.PHASES),
    }
    return json.dumps(specs, separators=(",", ":")).replace("</", "<\\/")


@cache
def _bundle() -> str:
    """Return Vega-Lite and what runs it, of the version that altair's charts are in."""
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    return str(vl_convert.javascript_bundle(SNIPPET, vl_version=version))


def _faults(store: Store) -> str:
    """List what of the records could not be read or is no record."""
    lines = [
        f'<li class="fault"><b>fault</b> {html.escape(fault[:MOST_LETTERS])}</li>'
        for fault in store.faults[:MOST_FAULTS]
    ]
    more = len(store.faults) - len(lines)
    lines += [f'<li class="fault">and {more} more, all named by peakcast report</li>'] * (more > 0)
    if not lines:
        return ""
    count = f"{len(store.faults)} fault" + "s" * (len(store.faults) > 1)
    unfolded = "" if len(lines) > FEW_FAULTS else " open"
    return (
        f"<details{unfolded}><summary>{count}: what of the records could not be read or is no "
        f'record</summary><ul class="troubles">{"".join(lines)}</ul></details>'
    )


def _machine(store: Store) -> str:
    """Say where and with what the newest records were made."""
    known = [r.environment for cell in store.cells for r in cell.records if r.environment]
    return ", ".join(f"{name} {value}" for name, value in known[-1].items()) if known else ""


def _read(name: str) -> str:
    return (BROWSER / name).read_text(encoding="utf-8")
