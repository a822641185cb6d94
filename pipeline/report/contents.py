"""Contents: all that the page's script is given, as columns, and packed into text.

A column is a list with one value for each call (one recorded call of one rank), cell or group (a
cell's cold or warm calls). Columns of like numbers pack well: 10,000 calls take some megabytes.
"""

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from jobs.record import RankRecord
from pipeline.cut_short import told
from pipeline.logs import log_of
from pipeline.report.details import details
from pipeline.report.savings import Saving, savings
from pipeline.store import NO_TERM, Cell, Row, Store, rows
from pipeline.summary import Summary, summarise
from pipeline.unit import unit_of_all
from planner.terms import TERMS

Columns = dict[str, list[Any]]

MOST_LETTERS = 2000
"""Of a cell's error; its log has the rest."""
FEW_CELLS = 40
"""Up to here a chart has a line for each cell; above, one for each topology and weights."""


def contents(store: Store) -> dict[str, Any]:
    """Return the contents of the page of ``store``: plain JSON values."""
    table = rows(store)
    numbers = {cell.key: number for number, cell in enumerate(store.cells)}
    records = [record for cell in store.cells for record in cell.records]
    groups = summarise(table)
    places = {id(row): place for place, row in enumerate(table)}
    fullest = [places[id(group.fullest)] for group in groups]
    unit = unit_of_all(row["planned_expected_bytes"] for row in table)
    return {
        "unit": {"name": unit.name, "bytes": unit.bytes},
        "cells": _cells(store, table),
        "calls": _calls(table, records, numbers),
        "groups": _groups(groups, fullest, numbers),
        "terms": _terms(records),
        "details": details(records, table, fullest),
        "savings": _savings(savings(store, groups), numbers),
    }


def pack(values: dict[str, Any]) -> str:
    """Return values as base64 of gzip of JSON: safe inside any HTML element.

    Raises
    ------
    ValueError
        For a number that is not finite, which JSON has not.
    """
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def unpack(packed: str) -> dict[str, Any]:
    """Return what `pack` was given."""
    values: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return values


def model_of(cell: Cell) -> str:
    """Name a cell's model, with the layers that were run."""
    return f"{cell.spec.model.name}, {cell.spec.model.num_layers} layers" if cell.spec else "?"


def _cells(store: Store, table: Sequence[Row]) -> Columns:
    few = len(store.cells) <= FEW_CELLS
    columns: Columns = defaultdict(list)
    first = {row["key"]: row for row in reversed(table)}
    for cell in store.cells:
        row = first[cell.key]
        for name, value in (
            ("key", cell.key),
            ("label", row["label"]),
            ("line", row["label"] if few else f"{row['topology']} {row['weights']}"),
            ("topology", row["topology"]),
            ("weights", row["weights"]),
            ("model", model_of(cell)),
            ("outcome", cell.outcome),
            ("attempts", cell.attempt + 1),
            ("error", _reason(cell)),
            ("spec", cell.spec is not None),
            ("logs", _logs(store, cell)),
        ):
            columns[name].append(value)
    return columns


def _reason(cell: Cell) -> str:
    """Return what went wrong, and where that was."""
    return "; ".join(filter(None, (cell.error[:MOST_LETTERS], told(cell))))


def _logs(store: Store, cell: Cell) -> dict[str, str]:
    """Return the log of each rank that has one, relative to the page."""
    found = {record.rank: log_of(store.out, record) for record in cell.records}
    return {
        str(rank): log.relative_to(store.out).as_posix()
        for rank, log in sorted(found.items())
        if log is not None
    }


CALLS = {
    "rank": "rank",
    "call": "call",
    "temperature": "temperature",
    "outcome": "outcome",
    "expected": "planned_expected_bytes",
    "bound": "planned_bound_bytes",
    "observed": "observed_working_set_bytes",
    "reached": "reached_bytes",
    "error": "error_percent",
    "growth_predicted": "planned_growth_bytes",
    "growth_observed": "observed_growth_bytes",
    "held_predicted": "planned_held_over_bytes",
    "held_observed": "observed_held_over_bytes",
    "retained_predicted": "planned_retained_bytes",
    "retained_observed": "observed_retained_bytes",
    "rows_predicted": "planned_routed_rows",
    "rows_observed": "observed_routed_rows",
    "children": "children",
}
"""Columns of the calls, and the columns of `pipeline.store.rows` that they are."""


def _calls(table: Sequence[Row], records: Sequence[RankRecord], numbers: dict[str, int]) -> Columns:
    columns: Columns = {name: [row[source] for row in table] for name, source in CALLS.items()}
    columns["error"] = [None if e is None else round(e, 5) for e in columns["error"]]
    columns["cell"] = [numbers[row["key"]] for row in table]
    columns["garbage"] = [r.measured.garbage_bytes if r.measured else None for r in records]
    columns["ledger_percent"] = [
        round(100 * row["ledger_s"] / row["call_s"], 2) if row["call_s"] else None for row in table
    ]
    return columns


def _groups(groups: Sequence[Summary], fullest: Sequence[int], numbers: dict[str, int]) -> Columns:
    return {
        "cell": [numbers[group.fullest["key"]] for group in groups],
        "temperature": [group.fullest["temperature"] for group in groups],
        "fullest": list(fullest),
        "worst": [round(g.worst_percent, 5) if g.observed else None for g in groups],
        "covered": [group.covered for group in groups],
        "observed": [group.observed for group in groups],
        "failed": [group.failed for group in groups],
    }


def _terms(records: Sequence[RankRecord]) -> dict[str, Any]:
    """Return each term's columns: bytes planned, observed less planned, copies planned.

    Zero stands where a call has no such term, or was not both planned and observed. Of a call that
    was cut short they are those of the most that it had reached.
    """
    names = [term.name for term in TERMS]
    seen: set[str] = set()
    for record in records:
        if record.planned and record.observed:
            seen |= {*record.planned.terms, *record.observed.terms}
    ordered = [name for name in names if name in seen] + sorted(seen - {*names})
    planned: list[list[int]] = [[] for _ in (*ordered, NO_TERM)]
    residual: list[list[int]] = [[] for _ in planned]
    copies: list[list[float]] = [[] for _ in planned]
    for record in records:
        both = record.planned is not None and record.observed is not None
        expected = record.planned.terms if both and record.planned else {}
        counted = record.planned.copies if both and record.planned else {}
        found = dict(record.observed.terms) if both and record.observed else {}
        if both and record.observed:
            found[NO_TERM] = record.observed.unattributed_bytes
        for place, name in enumerate((*ordered, NO_TERM)):
            size = expected.get(name, 0)
            planned[place].append(size)
            residual[place].append(found.get(name, 0) - size)
            copies[place].append(round(counted.get(name, 0), 3))
    return {
        "names": [*ordered, NO_TERM],
        "planned": planned,
        "residual": residual,
        "copies": copies,
    }


def _savings(found: Sequence[Saving], numbers: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "cell": numbers[one.kept["key"]],
            "temperature": one.kept["temperature"],
            "expected": [row["planned_expected_bytes"] for row in (one.kept, one.released)],
            "observed": [row["observed_working_set_bytes"] for row in (one.kept, one.released)],
        }
        for one in found
    ]
