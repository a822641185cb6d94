"""Certificate: what a fitted table rests on, as JSON beside it, so that anyone can fit it again.

It holds the sightings by hash, what was left out and why, the arguments of the fit, coefficients
with intervals, what the data cannot separate, errors held out, coverage with its interval, and the
hashes of the table, the prior and the code that fitted.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

from pipeline.regress import copies as fit_module
from pipeline.regress.allowance import fit_allowance
from pipeline.regress.bound import Bound, fit_bound
from pipeline.regress.copies import Arguments, Fitted, fit_copies
from pipeline.regress.effects import figures
from pipeline.regress.held_out import errors, hold_out
from pipeline.regress.rows import Floats, Ints
from pipeline.regress.sighting import Sightings
from pipeline.regress.table_text import table_text
from planner.coefficients import Coefficients, table_digest
from planner.errors import PlannerError

SCHEMA = 1


class CertificateError(PlannerError):
    """A certificate that cannot be read, or that is not of the table beside it."""


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
        "table": {"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest()},
        "prior": {"name": prior.name, "sha256": table_digest(prior_name)},
        "code": {"sha256": code_digest()},
        "fit": {**asdict(arguments), "date": fitted_on.isoformat()},
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
        "bound": _bound(sightings, places, sizes, bound),
        "rows": rows.document(),
        "figures": figures(sightings, fitted),
    }
    return text, certificate


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
    rows = zip(design.names, design.prior, fitted.copies, fitted.low, fitted.high, strict=True)
    return [
        {
            "name": name,
            "prior": round(float(prior), 3),
            "copies": round(float(value), 3),
            "interval": [round(float(low), 3), round(float(high), 3)],
            "from": "prior" if name in fitted.at_prior else "data",
        }
        for name, prior, value, low, high in rows
    ]


def _bound(sightings: Sightings, places: Ints, sizes: Floats, bound: Bound) -> dict[str, Any]:
    held = sightings.observed[places] <= bound.margin * sizes + bound.call_bytes
    covered = int(held.sum())
    low, high = coverage_interval(covered, len(places))
    return {
        **asdict(bound),
        "covered": covered,
        "of": len(places),
        "coverage_interval": [round(low, 5), round(high, 5)],
    }


def coverage_interval(covered: int, count: int, miss: float = 0.05) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a coverage."""
    low = float(beta.ppf(miss / 2, covered, count - covered + 1)) if covered else 0.0
    high = float(beta.ppf(1 - miss / 2, covered + 1, count - covered)) if covered < count else 1.0
    return low, high


def sightings_digest(sightings: Sightings) -> str:
    """Hash what was seen and of what: labels, counts on the rank, and bytes."""
    whole = hashlib.sha256()
    whole.update("\n".join(sightings.labels).encode())
    for kind in sightings.kinds:
        counts = kind.local.layers, kind.local.tp, tuple(kind.work)[:7]
        whole.update(repr((counts, kind.facts)).encode())
    for phase, seen in sorted(sightings.seen.items(), key=lambda item: str(item[0])):
        whole.update(str(phase).encode() + seen.tobytes())
    terms = sightings.terms
    whole.update(repr([(moment.value, name) for moment, name in terms.kinds]).encode())
    for column in (sightings.kind, sightings.rows, terms.sighting, terms.kind, terms.observed):
        whole.update(np.ascontiguousarray(column).tobytes())
    return whole.hexdigest()


def code_digest() -> str:
    """Hash the modules that fit."""
    whole = hashlib.sha256()
    for file in sorted(Path(fit_module.__file__).parent.glob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()


def certificate_path(table: Path) -> Path:
    """Return where the certificate of a table lies: beside it, as ``.certificate.json``."""
    return table.with_suffix(".certificate.json")


def read_certificate(path: Path) -> dict[str, Any]:
    """Read a certificate.

    Raises
    ------
    CertificateError
        Where it cannot be read or is of a later schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read the certificate {path}: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        given = data.get("schema") if isinstance(data, dict) else None
        raise CertificateError(f"{path} has schema {given!r}; this version reads {SCHEMA}")
    return data


def require_certified(table: Path) -> dict[str, Any]:
    """Return the certificate beside a table.

    Raises
    ------
    CertificateError
        Where there is none, or it is of another table.
    """
    certificate = read_certificate(certificate_path(table))
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    if certificate["table"]["sha256"] != digest:
        raise CertificateError(
            f"{table} is not the table that its certificate speaks of "
            f"({digest[:12]} against {certificate['table']['sha256'][:12]}); fit it again"
        )
    return certificate
