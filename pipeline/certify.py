"""Certify: fit a table on sightings, or confirm one as it stands, and say what that rests on."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from typing import Any

from scipy.stats import beta

from pipeline.certificate import SCHEMA, code_digest, sightings_digest
from pipeline.regress.allowance import fit_allowance
from pipeline.regress.bound import fit_bound
from pipeline.regress.copies import Arguments, Fitted, fit_copies
from pipeline.regress.effects import figures
from pipeline.regress.held_out import HeldOut, errors, hold_out
from pipeline.regress.rows import Floats, Ints
from pipeline.regress.sighting import Sightings
from pipeline.regress.table_text import table_text
from planner.coefficients import MILLI, Coefficients, table_digest

NEAR = 0.01
"""Copies that differ by less than this part are one count: rounding, tensors without a term."""


def certify(
    sightings: Sightings,
    prior_name: str,
    *,
    name: str,
    fitted_on: date,
    arguments: Arguments,
    excluded: Sequence[str],
    faults: Sequence[str],
    sources: Mapping[str, str],
) -> tuple[str, dict[str, Any]]:
    """Fit a table and return its text and its certificate.

    Parameters
    ----------
    sources
        As `pipeline.regress.table_text.table_text` takes them.

    Raises
    ------
    FitError
        As `pipeline.regress.copies.fit_copies`.
    """
    prior = Coefficients.load(prior_name)
    fitted = fit_copies(sightings, prior, arguments)
    held = hold_out(sightings, fitted.design, arguments)
    whole = fitted.design.whole
    places = fitted.design.peaks.sighting[whole]
    sizes = fitted.design.peaks.expected(fitted.copies)[whole]
    rows = fit_allowance(sightings)
    bound = fit_bound(sightings, sizes, places, held)
    table = replace(
        bound.on(fitted.table),
        name=name,
        date=fitted_on,
        allowance=rows.on(prior.allowance),
        what=f"{prior.what}; fitted on {len(sightings)} measured calls",
    )
    entries = {key.entry for key in fitted.design.keys}
    text = table_text(
        table, sources=sources, fitted=[i in entries for i in range(len(table.copies))]
    )
    certificate = {
        "schema": SCHEMA,
        "kind": "fitted",
        "table": {"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest()},
        "prior": {"name": prior.name, "sha256": table_digest(prior_name)},
        **_evidence(sightings, fitted, held, arguments, fitted_on, excluded, faults),
        "bound": {**asdict(bound), **_coverage(sightings, places, sizes, table)},
        "rows": {**rows.document(), "table": asdict(table.allowance)},
    }
    return text, certificate


def confirm(
    sightings: Sightings,
    table_name: str,
    *,
    confirmed_on: date,
    arguments: Arguments,
    excluded: Sequence[str],
    faults: Sequence[str],
) -> dict[str, Any]:
    """Return the certificate of a table as it stands: what a fit that begins at it finds.

    Errors under ``table`` are of its own copies. Raises as `certify`.
    """
    table = Coefficients.load(table_name)
    fitted = fit_copies(sightings, table, arguments)
    held = hold_out(sightings, fitted.design, arguments)
    whole = fitted.design.whole
    places = fitted.design.peaks.sighting[whole]
    sizes = fitted.design.peaks.expected(fitted.design.prior)[whole]
    digest = table_digest(table_name)
    document = {
        "schema": SCHEMA,
        "kind": "confirmed",
        "table": {"name": table.name, "sha256": digest},
        "prior": {"name": table.name, "sha256": digest},
        **_evidence(sightings, fitted, held, arguments, confirmed_on, excluded, faults),
        "bound": {
            "margin": table.margin_milli / MILLI,
            "call_bytes": table.call_bytes,
            **_coverage(sightings, places, sizes, table),
        },
        "rows": {**fit_allowance(sightings).document(), "table": asdict(table.allowance)},
    }
    document["errors"]["table"] = errors(sightings, places, sizes)
    return document


def disagreements(certificate: Mapping[str, Any]) -> list[str]:
    """Return each coefficient whose fitted copies are not those that the fit began at."""
    return [
        f"{one['name']}: {one['copies']:g} copies {one['interval']}, the table has {one['prior']:g}"
        for one in certificate["coefficients"]
        if one["agrees"] == "no"
    ]


def _evidence(
    sightings: Sightings,
    fitted: Fitted,
    held: Sequence[HeldOut],
    arguments: Arguments,
    day: date,
    excluded: Sequence[str],
    faults: Sequence[str],
) -> dict[str, Any]:
    """Return what both kinds of certificates hold."""
    whole = fitted.design.whole
    places = fitted.design.peaks.sighting[whole]
    sizes = fitted.design.peaks.expected(fitted.copies)[whole]
    return {
        "code": {"sha256": code_digest()},
        "fit": {**asdict(arguments), "date": day.isoformat()},
        "sightings": {
            "expected": len(sightings) + len(excluded) + len(faults),
            "measured": len(sightings),
            "sha256": sightings_digest(sightings),
            "excluded": list(excluded),
            "faults": list(faults),
        },
        "identifiability": _identifiability(fitted),
        "coefficients": _coefficients(fitted),
        "outliers": list(fitted.outliers),
        "errors": {
            "fitted": errors(sightings, places, sizes),
            **{
                f"without_{one.fact}": {
                    "kinds": one.kinds,
                    **errors(sightings, one.sighting, one.expected),
                }
                for one in held
            },
        },
        "figures": figures(sightings, fitted),
    }


def _identifiability(fitted: Fitted) -> dict[str, Any]:
    found = fitted.identified
    return {
        "columns": len(fitted.design.keys),
        "rank": found.rank,
        "condition": None if found.condition == float("inf") else float(f"{found.condition:.3g}"),
        "collinear": [list(group) for group in found.groups],
        "unseen": list(found.unseen),
        "at_prior": list(fitted.at_prior),
    }


def _coefficients(fitted: Fitted) -> list[dict[str, Any]]:
    design = fitted.design
    rows = zip(
        design.names,
        design.prior,
        fitted.copies,
        fitted.low,
        fitted.high,
        fitted.resolution,
        strict=True,
    )
    return [
        {
            "name": name,
            "prior": round(float(prior), 3),
            "copies": round(float(value), 3),
            "interval": [round(float(low), 3), round(float(high), 3)],
            "resolution": float(f"{resolution:.2g}"),
            "from": "prior" if name in fitted.at_prior else "data",
            "agrees": _agrees(prior, value, (low - resolution, high + resolution)),
        }
        for name, prior, value, low, high, resolution in rows
    ]


def _agrees(prior: float, value: float, interval: tuple[float, float]) -> str:
    """Say whether fitted copies are those of the prior: by their interval, nearly, or not."""
    low, high = interval
    rounding = 0.5 / MILLI
    if low - rounding <= prior <= high + rounding:
        return "within its interval"
    return "within 1 %" if abs(value - prior) <= NEAR * max(prior, value) else "no"


def _coverage(
    sightings: Sightings, places: Ints, sizes: Floats, table: Coefficients
) -> dict[str, Any]:
    bounds = sizes * table.margin_milli / MILLI + table.call_bytes
    covered = int((sightings.observed[places] <= bounds).sum())
    low, high = coverage_interval(covered, len(places))
    return {
        "covered": covered,
        "of": len(places),
        "coverage_interval": [round(low, 5), round(high, 5)],
    }


def coverage_interval(covered: int, count: int, miss: float = 0.05) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a coverage."""
    low = float(beta.ppf(miss / 2, covered, count - covered + 1)) if covered else 0.0
    high = float(beta.ppf(1 - miss / 2, covered + 1, count - covered)) if covered < count else 1.0
    return low, high
