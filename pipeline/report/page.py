"""The report as one self-contained HTML page: no network, no second file.

Python gives the charts' form and the columns of the calls; the page's script (`browser/`) fills
charts and tables from the calls that pass the filters.
"""

import html
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import altair as alt
import vl_convert

from pipeline.report import call_charts
from pipeline.report.coefficients import coefficients_section, past_of
from pipeline.report.contents import contents, pack
from pipeline.report.sections import Section, call_sections, history_sections, sweep_sections
from pipeline.report.theme import THEMES, theme
from pipeline.report.trends import trends
from pipeline.store import Store

SNIPPET = "window.vegaEmbed = vegaEmbed;"  # all that the page calls of the bundle
BROWSER = Path(__file__).with_name("browser")
SCRIPTS = ("contents", "filters", "rows", "tables", "call", "charts", "main")


FEW_FAULTS = 3
MOST_FAULTS = 40
MOST_LETTERS = 2000  # of one fault


@dataclass(frozen=True, slots=True)
class Form:
    """What is the same on every page: places of the charts as HTML, and the charts as JSON."""

    of_call: str
    of_sweep: str
    of_history: str
    specs: str


def write_page(store: Store, path: Path) -> None:
    """Write the report of ``store`` to ``path``, atomically."""
    past = past_of(store, path.parent)
    held = contents(store) | {"trends": trends(past.fits, past.sweeps)}
    form = _form(held["unit"]["name"])
    text = Template(_read("page.html")).substitute(
        title=html.escape(f"Peakcast: {store.out.absolute().name}"),
        style=_read("page.css"),
        faults=_faults(store),
        call_charts=form.of_call,
        charts=form.of_sweep,
        coefficients=coefficients_section(store, past),
        history=form.of_history,
        machine=html.escape(_machine(store)),
        contents=pack(held),
        specs=form.specs,
        bundle=_bundle(),
        script="\n".join(_read(f"{name}.js") for name in SCRIPTS),
    )
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8", errors="backslashreplace")  # words are as found
    scratch.replace(path)


@cache
def _form(unit: str) -> Form:
    of_call, of_sweep = list(call_sections(unit)), list(sweep_sections(unit))
    of_history = list(history_sections())
    return Form(
        of_call="\n".join(_section(one, "h3") for one in of_call),
        of_sweep="\n".join(_section(one, "h2") for one in of_sweep),
        of_history="\n".join(_section(one, "h2") for one in of_history),
        specs=_specs(of_call, [*of_sweep, *of_history]),
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
