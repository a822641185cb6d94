"""Which calls of a cell are recorded, and the record of a rank that could not write its own.

A rank is complete when each recorded call of its cell has an ``ok`` or ``refused`` record; a
refusal also ends a rank, since what does not fit does not fit the next time either.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from jobs.record import RankRecord, read_records, record_path, write_records
from jobs.spec import CellSpec

GOOD = ("ok", "refused")
JOB_NAME = re.compile(r"(?P<key>[0-9a-f]{16})\.a(?P<attempt>\d+)")
RECORD_NAME = re.compile(r"(?P<key>[0-9a-f]{16})\.a(?P<attempt>\d+)\.r(?P<rank>\d+)\.jsonl")


def attempts(out: Path, key: str) -> list[int]:
    """Return the numbers of the attempts at ``key`` that left a trace, oldest first."""
    numbers = {int(p.name.rpartition(".a")[2]) for p in (out / "jobs").glob(f"{key}.a[0-9]*")}
    for path in (out / "records").glob(f"{key}.a*.r*.jsonl"):
        if name := RECORD_NAME.fullmatch(path.name):
            numbers.add(int(name["attempt"]))
    return sorted(numbers)


def every_attempt(out: Path) -> dict[str, list[int]]:
    """Return `attempts` of every cell under ``out``, by key, from one look at its folders."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for folder, name_of in (("jobs", JOB_NAME), ("records", RECORD_NAME)):
        for path in (out / folder).glob("*.a[0-9]*"):
            if name := name_of.fullmatch(path.name):
                numbers[name["key"]].add(int(name["attempt"]))
    return {key: sorted(found) for key, found in numbers.items()}


def rank_is_complete(spec: CellSpec, records: Sequence[RankRecord]) -> bool:
    """Whether one rank's ``records`` hold all that its cell asks for."""
    good = {r.call: r.outcome for r in records if r.outcome in GOOD}
    if len(good) < len({r.call for r in records}):
        return False  # some call went wrong
    return "refused" in good.values() or all(call in good for call in spec.calls.recorded)


def rank_records(out: Path, spec: CellSpec, attempt: int, rank: int) -> list[RankRecord]:
    """Read what ``rank`` recorded in ``attempt`` (torn lines left out; the store reports them)."""
    path = record_path(out, spec.key, attempt, rank)
    return read_records(path)[0] if path.exists() else []


def outcome_of(spec: CellSpec, out: Path, attempt: int) -> str:
    """Return how an attempt ended by its records: ``ok``, ``refused`` or ``failed``."""
    every = [rank_records(out, spec, attempt, rank) for rank in spec.ranks]
    if not all(rank_is_complete(spec, records) for records in every):
        return "failed"
    refused = any(r.outcome == "refused" for records in every for r in records)
    return "refused" if refused else "ok"


def is_recorded(spec: CellSpec, out: Path) -> bool:
    """Whether the newest attempt at a cell is complete on every rank, so that it need not run."""
    numbers = attempts(out, spec.key)
    return bool(numbers) and outcome_of(spec, out, numbers[-1]) != "failed"


def record_failure(
    spec: CellSpec,
    out: Path,
    attempt: int,
    rank: int,
    outcome: str,
    error: str,
    *,
    overrule: bool = False,
) -> None:
    """Add ``error`` to what ``rank`` recorded, as the record of the first call it did not finish.

    A rank that is complete is left as it is, and one that recorded its own failure as well, unless
    that is to be overruled: a rank whose peers are taken away says no more than that.
    """
    records = rank_records(out, spec, attempt, rank)
    own = [r.error for r in records if r.outcome not in GOOD]
    if rank_is_complete(spec, records) or (own and not overrule):
        return
    if own:
        records = [r for r in records if r.outcome in GOOD]
        error = f"{error}; its own words: {own[-1]}"
    done = {r.call for r in records}
    call = next(call for call in spec.calls.recorded if call not in done)
    records.append(
        RankRecord(
            key=spec.key,
            label=spec.label,
            attempt=attempt,
            rank=rank,
            call=call,
            temperature="warm" if call else "cold",
            outcome=outcome,
            error=error,
        )
    )
    write_records(record_path(out, spec.key, attempt, rank), records)
