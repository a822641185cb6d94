"""Recorded: a sweep's records as sightings: peaks, what is retained, and each term at the peak.

Routed rows are those that arrived, not those that were expected, so that copies are fitted and not
routing. A record that says nothing of copies is left out, with the reason. Cells are read a few at
a time, on every core where there are many, so that memory holds figures and never the records.
"""

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jobs.completion import RECORD_NAME
from pipeline.recorded_cell import CellPart, candidates, read_cell
from pipeline.regress.sighting import Sighting, Sightings, gather, join
from planner.errors import PlannerError

AT_ONCE = 256
"""Cells that one process reads before it hands on what they hold."""
MANY = 2048
"""Files from which on several processes read."""


class RecordedError(PlannerError):
    """A folder of records that nothing can be fitted on."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recorded:
    """Sightings of a sweep, the table that most were priced with, and what was left out."""

    sightings: Sightings
    coefficients: str
    candidates: Mapping[str, Sighting]
    excluded: tuple[str, ...]
    faults: tuple[str, ...]


class _Part(NamedTuple):
    """A `CellPart` whose sightings are laid out in columns, to be sent from one process."""

    sightings: Sightings
    rest: CellPart


def read_recorded(out: Path) -> Recorded:
    """Read the records under ``out`` as sightings.

    Raises
    ------
    RecordedError
        Where there are none, or none of them was observed to its end.
    """
    cells, faults = _newest(out)
    if not cells:
        torn = f"; {len(faults)} faults, first: {faults[0]}" if faults else ""
        raise RecordedError(f"{out} holds no records; a sweep writes them{torn}")
    parts = list(_read(out, cells))
    reasons: Counter[str] = Counter()
    tables: Counter[str] = Counter()
    for part in parts:
        reasons += part.rest.reasons
        tables += part.rest.tables
        faults += part.rest.faults
    excluded = tuple(f"{reason} ({count} records)" for reason, count in sorted(reasons.items()))
    if not tables:
        why = "; ".join((*excluded, *faults)[:3])
        raise RecordedError(f"no record under {out} was observed to its end: {why}")
    return Recorded(
        sightings=join([part.sightings for part in parts]),
        coefficients=tables.most_common(1)[0][0],
        candidates=candidates({i for part in parts for i in part.rest.identities}),
        excluded=excluded,
        faults=tuple(faults),
    )


def _newest(out: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the files of every cell's newest attempt, and files that are none of a record."""
    cells: dict[str, tuple[int, list[Path]]] = {}
    faults: list[str] = []
    for path in sorted((out / "records").glob("*.jsonl")):
        name = RECORD_NAME.fullmatch(path.name)
        if name is None:
            faults.append(f"{path.name}: no record file is named like this; it was left out")
            continue
        attempt = int(name["attempt"])
        newest, files = cells.get(name["key"], (-1, []))
        if attempt > newest:
            cells[name["key"]] = (attempt, [path])
        elif attempt == newest:
            files.append(path)
    return {key: files for key, (_, files) in cells.items()}, faults


def _read(out: Path, cells: Mapping[str, Sequence[Path]]) -> Iterator[_Part]:
    """Read cells, `AT_ONCE` at a time, in the order given."""
    keys = list(cells)
    chunks = [
        (out, {key: cells[key] for key in keys[start : start + AT_ONCE]})
        for start in range(0, len(keys), AT_ONCE)
    ]
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or sum(map(len, cells.values())) < MANY:
        yield from map(_read_some, chunks)
        return
    # forked: nothing runs here yet that a child must not inherit, and modules are not loaded again
    with ProcessPoolExecutor(cores, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_read_some, chunks)


def _read_some(chunk: tuple[Path, Mapping[str, Sequence[Path]]]) -> _Part:
    out, cells = chunk
    part = CellPart()
    for key, files in cells.items():
        read_cell(key, out / "specs" / f"{key}.json", files, part)
    sightings, part.sightings = gather(part.sightings), []
    return _Part(sightings, part)
