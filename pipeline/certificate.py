"""Certificate: what a fitted table rests on, as JSON beside it, so that anyone can fit it again.

It holds the sightings by hash, what was left out and why, the arguments of the fit, coefficients
with intervals, what the data cannot separate, errors held out, coverage with its interval, and the
hashes of the table, the prior and the code that fitted.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pipeline.regress
from pipeline.regress.sighting import Sightings
from planner.errors import PlannerError

SCHEMA = 1


class CertificateError(PlannerError):
    """A certificate that cannot be read, or that is not of the table beside it."""


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
        whole.update(column.tobytes())
    return whole.hexdigest()


def code_digest() -> str:
    """Hash the modules that fit."""
    whole = hashlib.sha256()
    for file in sorted(Path(pipeline.regress.__file__).parent.glob("*.py")):
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
        why = error.strerror if isinstance(error, OSError) else error
        raise CertificateError(f"cannot read the certificate {path}: {why}") from error
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
