"""The page's section on coefficients: those of this sweep's peaks, and their history."""

import html
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pipeline.report.history import (
    Fit,
    Standing,
    read_fits,
    read_history,
    standings,
    write_standings,
)
from pipeline.store import Store
from planner.coefficients import MILLI, Coefficients, Copies, table_digest
from planner.errors import PlannerError

DIGITS = 12  # of a digest, as it is shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What a page tells of tables: those of its sweep, and how they did there and elsewhere.

    Parameters
    ----------
    tables
        Names of the tables that priced the sweep.
    sweeps, fits
        Standings and certificates, this sweep's and those in the folders beside it, oldest first.
    faults
        What of them could not be read.
    """

    tables: tuple[str, ...]
    sweeps: Sequence[Standing]
    fits: Sequence[Fit]
    faults: Sequence[str]


def past_of(store: Store, folder: Path) -> Past:
    """Read the past of a sweep whose page will lie in ``folder``; leaves its standings there."""
    own = standings(store)
    if own:
        write_standings(own, folder)
    tables = tuple(sorted({cell.spec.coefficients for cell in store.cells if cell.spec}))
    sweeps, faults = read_history(folder)
    fits, more = read_fits(folder, [_file_of(name) for name in tables])
    return Past(tables=tables, sweeps=sweeps, fits=fits, faults=(*faults, *more))


def coefficients_section(store: Store, past: Past) -> str:
    """Return the section as HTML; empty for a sweep without any spec."""
    if not past.tables:
        return ""
    parts = [_copies(store, name) for name in past.tables]
    parts += [_history(past.sweeps), _fits(past.fits)]
    parts += [f"<p>{html.escape(fault)}</p>" for fault in past.faults]
    return f'<section id="section-coefficients"><h2>Coefficients</h2>{"".join(parts)}</section>'


def _file_of(name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    return Path(str(resources.files("planner.tables") / f"{name}.toml"))


def _copies(store: Store, name: str) -> str:
    """Return the copies of a table that this sweep's expected peaks are made of."""
    digests = {c.spec.coefficients_digest for c in store.cells if c.spec}
    try:
        table = Coefficients.load(name)
        now = table_digest(name)
    except PlannerError as error:
        return f"<p>Table {html.escape(name)} is not here any more: {html.escape(str(error))}</p>"
    edited = "" if now in digests else " Its text has changed since these cells were priced."
    moments, terms = _priced(store, name)
    chosen = [entry for entry in table.copies if entry.term in terms]
    common = set.intersection(*({*entry.when.facts} for entry in chosen)) if chosen else set()
    rows = [
        (
            *(entry.term, _where(entry, common), moment, f"{milli / MILLI:g}"),
            *(_interval(entry, moment), entry.source),
        )
        for entry in chosen
        for moment, milli in entry.at.items()
        if moment.value in moments
    ]
    return (
        f"<h3>{html.escape(table.name)}, {table.date}</h3><p>{html.escape(table.what)}. Bound: "
        f"× {table.margin_milli / MILLI:g} and {table.call_bytes} B.{edited}</p><details><summary>"
        f"{len(rows)} live copies of terms at the moments where this sweep expects its peaks, with "
        "their intervals of 95 % where they were fitted</summary>"
        + _table(("term", "where", "moment", "copies", "interval", "source"), rows)
        + "</details>"
    )


def _priced(store: Store, name: str) -> tuple[set[str], set[str]]:
    """Return the moments of expected peaks, and the terms there, of the cells of a table."""
    moments: set[str] = set()
    terms: set[str] = set()
    for cell in store.cells:
        if cell.spec is None or cell.spec.coefficients != name:
            continue
        for record in cell.records:
            if record.planned is not None:
                moments.add(record.planned.peak_moment)
                terms |= {*record.planned.terms}
    return moments, terms


def _where(entry: Copies, common: Collection[tuple[str, tuple[object, ...]]]) -> str:
    """Say what an entry holds for, but for what all of them hold for."""
    facts = [one for one in entry.when.facts if one not in common]
    return "; ".join(f"{fact} {' or '.join(map(str, values))}" for fact, values in facts)


def _interval(entry: Copies, moment: object) -> str:
    ends = {str(where): ends for where, ends in entry.interval.items()}.get(str(moment))
    return f"{ends[0]:g} to {ends[1]:g}" if ends else ""


def _history(found: Sequence[Standing]) -> str:
    rows = [
        (
            *(one.sweep, one.date, one.table, one.digest[:DIGITS], str(one.calls)),
            "" if one.worst_percent is None else f"{one.worst_percent:.2f} %",
            f"{one.covered} of {one.calls}",
        )
        for one in found
    ]
    head = ("sweep", "recorded", "table", "digest", "calls", "largest error", "within the bound")
    return (
        "<h3>Across sweeps</h3><p>Tables that priced this sweep and those in the folders beside "
        "it, as their own reports found them.</p>" + _table(head, rows)
    )


def _fits(found: Sequence[Fit]) -> str:
    """Return the fitted copies with their intervals, a column for each certificate."""
    if not found:
        return (
            "<p>No table here was fitted: <code>peakcast fit outputs/SWEEP -o "
            "outputs/SWEEP/fitted.toml</code> fits one, with intervals and a certificate.</p>"
        )
    names = list(dict.fromkeys(name for fit in found for name in fit.copies))
    about = [
        f"{fit.table}, fitted {fit.date} on {fit.measured} calls"
        + ("" if fit.held_out_percent is None else f", held out {fit.held_out_percent:.1f} %")
        for fit in found
    ]
    rows = [(name, *(_fitted(fit, name) for fit in found)) for name in names]
    return (
        "<h3>Fitted copies, oldest fit first</h3><p>Copies and their interval of 95 %; what the "
        "data could not tell apart stayed at its prior. Held out: worst error of large calls that "
        "the fit had not seen.</p>" + _table(("coefficient", *about), rows)
    )


def _fitted(fit: Fit, name: str) -> str:
    if name not in fit.copies:
        return ""
    copies, low, high, source = fit.copies[name]
    return f"{copies:g} [{low:g}, {high:g}]" + (" prior" if source == "prior" else "")


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    def line(tag: str, values: Iterable[object]) -> str:
        return "".join(f"<{tag}>{html.escape(str(value))}</{tag}>" for value in values)

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="words"><thead><tr>{line("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
