"""History: which coefficient tables priced a sweep and those beside it, and how well they did.

Each page leaves a small `STANDINGS` beside itself, so that the next page of a sweep under the same
folder (``outputs/*/``) tells of it without reading its records again. Tables that were fitted into
a sweep's folder are told by their certificates, which lie there too.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.record import RankRecord, record_path
from pipeline.sound import wrong_value
from pipeline.store import Cell, Store

STANDINGS = "coefficients.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One table in one sweep.

    Parameters
    ----------
    date
        Day of the newest record, as its file says.
    digest
        SHA-256 of the table's text when the cells were made.
    calls, covered
        Calls of ranks that were planned, and observed to their end, and those within the bound.
    worst_percent
        Largest absolute error of those; ``None`` where there are none.
    """

    sweep: str
    date: str
    table: str
    digest: str
    calls: int
    covered: int
    worst_percent: float | None


def standings(store: Store) -> list[Standing]:
    """Return how each table of a sweep did."""
    tables: dict[tuple[str, str], list[RankRecord]] = defaultdict(list)
    newest: dict[tuple[str, str], float] = defaultdict(float)
    for cell in store.cells:
        if cell.spec is None:
            continue
        table = (cell.spec.coefficients, cell.spec.coefficients_digest)
        tables[table] += cell.records
        newest[table] = max(newest[table], _written(store.out, cell))
    return [
        _standing(store.out, table, records, newest[table]) for table, records in tables.items()
    ]


def _standing(
    out: Path, table: tuple[str, str], records: Sequence[RankRecord], newest: float
) -> Standing:
    errors, covered = [], 0
    for record in records:
        if record.planned is None or record.measured is None or not record.planned.expected_bytes:
            continue
        seen, expected = record.measured.working_set_bytes, record.planned.expected_bytes
        errors.append(100 * abs(seen - expected) / expected)
        covered += seen <= record.planned.bound_bytes
    return Standing(
        sweep=out.absolute().name,
        date=datetime.fromtimestamp(newest, UTC).date().isoformat(),
        table=Path(table[0]).name,
        digest=table[1],
        calls=len(errors),
        covered=covered,
        worst_percent=max(errors, default=None),
    )


def _written(out: Path, cell: Cell) -> float:
    """Return when a cell's newest records were written."""
    ranks = {record.rank for record in cell.records}
    files = (record_path(out, cell.key, cell.attempt, rank) for rank in ranks)
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def write_standings(found: Sequence[Standing], folder: Path) -> None:
    """Leave the standings of a sweep in ``folder``, for the pages of others."""
    scratch = folder / f"{STANDINGS}.tmp"
    values = {"schema": SCHEMA, "standings": [asdict(one) for one in found]}
    scratch.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    scratch.replace(folder / STANDINGS)


def read_history(folder: Path) -> tuple[list[Standing], list[str]]:
    """Read the standings of every sweep beside ``folder`` and its own, oldest first.

    Returns
    -------
    standings, faults
        A file that is none, or of another schema, is a fault.
    """
    found, faults = [], []
    for file in sorted(folder.absolute().parent.glob(f"*/{STANDINGS}")):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']!r}; this version reads {SCHEMA}")
            found += [_standing_of(one) for one in data["standings"]]
        except (OSError, ValueError, TypeError, KeyError) as error:
            faults.append(f"{file.parent.name}/{file.name}: {error!r}; left out of the history")
    return sorted(found, key=lambda one: (one.date, one.sweep, one.table)), faults


def _standing_of(values: dict[str, Any]) -> Standing:
    standing = Standing(**values)
    wrong = wrong_value(Standing, standing)
    if wrong:
        raise ValueError(wrong)
    return standing


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What a certificate says of a fitted table.

    Parameters
    ----------
    measured
        Calls that it was fitted on.
    measured_peaks, covered, coverage_interval
        Calls whose peak the table prices, those of them within its bound, and the 95 % interval of
        their share.
    held_out_percent
        Worst error on what was held out (large calls); ``None`` where nothing was.
    copies
        Of each coefficient: copies, the ends of its interval, and ``data`` or ``prior``.
    """

    table: str
    date: str
    digest: str
    measured: int
    measured_peaks: int
    covered: int
    coverage_interval: tuple[float, float]
    held_out_percent: float | None
    copies: Mapping[str, tuple[float, float, float, str]]


def read_fits(folder: Path, tables: Sequence[Path]) -> tuple[list[Fit], list[str]]:
    """Read the certificates beside ``tables``, and in the folders of sweeps beside ``folder``.

    Returns
    -------
    fits, faults
        Each once, oldest fit first; one that cannot be read is a fault.
    """
    files = [table.with_suffix(".certificate.json") for table in tables]
    files = [file for file in files if file.is_file()]
    files += sorted(folder.absolute().parent.glob("*/*.certificate.json"))
    found: dict[str, Fit] = {}
    faults = []
    for file in files:
        try:
            fit = _fit_of(json.loads(file.read_text(encoding="utf-8")))
            found.setdefault(fit.digest, fit)
        except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
            faults.append(f"{file.name}: {error!r}; left out of the history")
    return sorted(found.values(), key=lambda one: (one.date, one.table)), faults


def _fit_of(certificate: dict[str, Any]) -> Fit:
    bound = certificate["bound"]
    low, high = map(float, bound["coverage_interval"])
    held = {n: f for n, f in certificate["errors"].items() if n.startswith("without_")}
    worst = [f["large_worst_error"] for f in held.values() if f.get("large_worst_error")]
    return Fit(
        table=str(certificate["table"]["name"]),
        date=str(certificate["fit"]["date"]),
        digest=str(certificate["table"]["sha256"]),
        measured=int(certificate["sightings"]["measured"]),
        measured_peaks=int(bound["of"]),
        covered=int(bound["covered"]),
        coverage_interval=(low, high),
        held_out_percent=100 * max(map(float, worst)) if worst else None,
        copies={
            str(one["name"]): (
                float(one["copies"]),
                float(one["interval"][0]),
                float(one["interval"][1]),
                str(one["from"]),
            )
            for one in certificate["coefficients"]
        },
    )
