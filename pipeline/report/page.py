"""The report as one self-contained HTML page: no network, no second file."""

import html
import json
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import altair as alt
import vl_convert

from pipeline.logs import log_of
from pipeline.report import charts
from pipeline.report.table import calls_of, mib, percent
from pipeline.store import Cell, Row, Store, labels, rows, term_rows
from pipeline.summary import Summary, summarise

SNIPPET = "window.vegaEmbed = vegaEmbed;"  # all that the page calls of the bundle
PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def write_page(store: Store, path: Path) -> None:
    """Write the report of ``store`` to ``path``, atomically."""
    table = rows(store)
    seen = [row for row in table if row["observed_working_set_bytes"] is not None]
    drawn = list(_charts(seen, term_rows(store)))
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    text = PAGE.substitute(
        title=html.escape(f"Peakcast: {store.out.name}"),
        figures=_figures(store, seen),
        troubles=_troubles(store),
        table=_table(summarise(table)),
        charts="\n".join(_section(number, *chart[:2]) for number, chart in enumerate(drawn)),
        cells=_cells(store),
        machine=html.escape(_machine(store)),
        bundle=vl_convert.javascript_bundle(SNIPPET, vl_version=version) if drawn else "",
        specs=json.dumps([chart.to_dict() for _, _, chart in drawn]).replace("</", "<\\/"),
    )
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def _charts(seen: list[Row], terms: list[Row]) -> Iterator[tuple[str, str, Any]]:
    """Title, explanation and chart of each section that has something to show."""
    if not seen:
        return
    yield (
        "Predicted against observed",
        "Each point is one call on one rank. On the dashed line the expected working set is exact; "
        "the tick above a point is the bound, which it must not pass.",
        charts.styled(charts.predicted_against_observed(seen)),
    )
    yield (
        "Error by cell",
        f"The band is ±{charts.TOLERANCE_PERCENT:g} %; a point right of its ticks passed a bound.",
        charts.styled(charts.error_by_cell(seen)),
    )
    inexact = {row["term"] for row in terms if row["residual_bytes"]}
    if inexact:
        exact = sorted({row["term"] for row in terms} - inexact)
        yield (
            "Residual by term",
            "Bytes at the peak that a term was observed to hold beyond what it was priced at. "
            + (f"Exact to the byte in every call: {', '.join(exact)}." if exact else ""),
            charts.styled(
                charts.residual_by_term([row for row in terms if row["term"] in inexact])
            ),
        )
    if any(row["planned_growth_bytes"] or row["observed_growth_bytes"] for row in seen):
        yield (
            "Buffer growth",
            "What the communication buffers outside PyTorch grew by in a call. No line: nothing, "
            "as predicted.",
            charts.styled(charts.both_sides(seen, "growth", "growth")),
        )
    if any(row["planned_held_over_bytes"] or row["observed_held_over_bytes"] for row in seen):
        yield (
            "Held over",
            "What an earlier call of the process left alive when the call began. No line: nothing, "
            "as predicted.",
            charts.styled(charts.both_sides(seen, "held_over", "held over")),
        )
    if len({row["temperature"] for row in seen}) > 1:
        yield (
            "Cold against warm",
            "The same cell in its first call and in later ones.",
            charts.styled(charts.pairs(seen, "temperature", ["topology", "weights"])),
        )
    if len({row["weights"] for row in seen}) > 1:
        yield (
            "Random against pretrained",
            "Trained routing sends more rows to the busiest rank; the fullest rank of each.",
            charts.styled(charts.pairs(seen, "weights", ["topology", "temperature"])),
        )
    if any(row["ledger_s"] for row in seen):
        yield (
            "Ledger overhead",
            "Following every storage takes time; none of it is memory.",
            charts.styled(charts.ledger_overhead(seen)),
        )


def _section(number: int, title: str, text: str) -> str:
    return (
        f"<section><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>"
        f'<div class="chart" id="chart{number}"></div></section>'
    )


def _figures(store: Store, seen: list[Row]) -> str:
    """Return the headline figures."""
    outcomes = [cell.outcome for cell in store.cells]
    worst = max((row["error_percent"] for row in seen), key=abs, default=None)
    growth = sum(row["planned_growth_bytes"] == row["observed_growth_bytes"] for row in seen)
    figures = {
        "cells": f"{len(outcomes)}",
        "failed": f"{sum(o in ('failed', 'incomplete') for o in outcomes)}",
        "refused": f"{outcomes.count('refused')}",
        "calls observed": f"{len(seen)}",
        "largest error": "none" if worst is None else f"{worst:+.2f} %",
        "within the bound": f"{sum(row['covered'] for row in seen)} of {len(seen)}",
        "growth exact": f"{growth} of {len(seen)}",
    }
    return "".join(f"<div><b>{value}</b>{name}</div>" for name, value in figures.items())


def _table(summaries: list[Summary]) -> str:
    head = (
        "cell",
        "calls",
        "expected",
        "bound",
        "observed",
        "error",
        "worst error",
        "in bound",
        "growth predicted",
        "observed",
        "held over predicted",
        "observed",
    )
    lines = ["<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for summary in summaries:
        row = summary.fullest
        bad = "" if summary.covered == summary.observed else ' class="bad"'
        cells = [
            html.escape(row["label"]),
            calls_of(row),
            mib(row["planned_expected_bytes"]),
            mib(row["planned_bound_bytes"]),
            mib(row["observed_working_set_bytes"]) or row["outcome"],
            percent(row["error_percent"]),
            percent(summary.worst_percent if summary.observed else None),
            f"{summary.covered}/{summary.observed}" if summary.observed else "",
            mib(row["planned_growth_bytes"]),
            mib(row["observed_growth_bytes"]),
            mib(row["planned_held_over_bytes"]),
            mib(row["observed_held_over_bytes"]),
        ]
        lines.append(f"<tr{bad}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join(lines)


def _troubles(store: Store) -> str:
    """List each cell that is not ok, and each fault."""
    named = labels(store)
    lines = [
        f'<li class="{cell.outcome}"><b>{cell.outcome}</b> {html.escape(named[cell.key])}: '
        f"{html.escape(cell.error)} {_log_link(store, cell)}</li>"
        for cell in store.cells
        if cell.outcome != "ok"
    ]
    lines += [f'<li class="fault"><b>fault</b> {html.escape(fault)}</li>' for fault in store.faults]
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _cells(store: Store) -> str:
    """List every cell with its spec and logs."""
    named = labels(store)
    return "".join(
        f"<tr><td>{html.escape(named[cell.key])}</td><td>{cell.outcome}</td>"
        f"<td>{cell.attempt + 1}</td><td><a href='specs/{cell.key}.json'>{cell.key}</a></td>"
        f"<td>{_log_link(store, cell)}</td></tr>"
        for cell in store.cells
    )


def _machine(store: Store) -> str:
    """Say where and with what the newest records were made."""
    known = [r.environment for cell in store.cells for r in cell.records if r.environment]
    return ", ".join(f"{name} {value}" for name, value in known[-1].items()) if known else ""


def _log_link(store: Store, cell: Cell) -> str:
    """Link the log of each rank that has one."""
    logs = {record.rank: log_of(store.out, record) for record in cell.records}
    return " ".join(
        f"<a href='{log.relative_to(store.out)}'>rank {rank}</a>"
        for rank, log in sorted(logs.items())
        if log is not None
    )
