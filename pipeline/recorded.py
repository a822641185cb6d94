"""Recorded: a sweep's records as sightings: peaks, what is retained, and each term at the peak.

Routed rows are those that arrived, not those that were expected, so that copies are fitted and not
routing. A record that says nothing of copies is left out, with the reason.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.record import Observed, RankRecord
from jobs.spec import CellSpec
from pipeline.regress.sighting import Sighting
from pipeline.store import Cell, read_store
from planner.batch import Batch
from planner.errors import PlannerError
from planner.figures import Figures
from planner.local import localize
from planner.moments import Moment, Phase
from planner.pricer import compile_pricer
from planner.step import Step


class RecordedError(PlannerError):
    """A folder of records that nothing can be fitted on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """Sightings of a sweep, the table it was priced with, and what was left out.

    ``imbalance`` has a ratio for each usable record at ep > 1: most rows that arrived at a layer
    over the rows expected there.
    """

    sightings: tuple[Sighting, ...]
    coefficients: str
    imbalance: tuple[float, ...]
    candidates: Mapping[str, Sighting]
    excluded: tuple[str, ...]
    faults: tuple[str, ...]


def read_recorded(out: Path) -> Recorded:
    """Read the records under ``out`` as sightings.

    Raises
    ------
    RecordedError
        Where there are none, or none of them was observed to its end.
    """
    store = read_store(out)
    if not store.cells:
        torn = f"; {len(store.faults)} faults, first: {store.faults[0]}" if store.faults else ""
        raise RecordedError(f"{out} holds no records; a sweep writes them{torn}")
    sightings: list[Sighting] = []
    reasons: Counter[str] = Counter()
    tables: Counter[str] = Counter()
    imbalance: list[float] = []
    candidates: dict[str, Sighting] = {}
    faults = list(store.faults)
    for cell in store.cells:
        if cell.spec is None:
            reasons[f"{cell.label}: its spec is missing"] += len(cell.records)
            continue
        priced = _figures(cell.spec)
        for record in cell.records:
            reason = _unusable(record)
            if reason is not None:
                reasons[f"{cell.label}: {reason}"] += 1
                continue
            assert record.observed is not None
            fault = _wrong(record.observed)
            if fault:
                faults.append(f"{cell.key} rank {record.rank} call {record.call}: {fault}")
                continue
            sightings.append(_sighting(cell, cell.spec, record, priced[record.rank]))
            tables[cell.spec.coefficients] += 1
            imbalance += _imbalance(record, cell.spec)
        candidates |= _candidates(cell.spec)
    excluded = tuple(f"{reason} ({count} records)" for reason, count in sorted(reasons.items()))
    if not sightings:
        why = "; ".join((*excluded, *faults)[:3])
        raise RecordedError(f"no record under {out} was observed to its end: {why}")
    return Recorded(
        sightings=tuple(sightings),
        coefficients=tables.most_common(1)[0][0],
        imbalance=tuple(imbalance),
        candidates=candidates,
        excluded=excluded,
        faults=tuple(faults),
    )


def _figures(spec: CellSpec) -> Mapping[int, Figures]:
    pricer = compile_pricer(spec.model, spec.topology, spec.step, coefficients=spec.coefficients)
    return dict(enumerate(pricer.figures(pricer.lay_out(spec.workload.batch()))))


def _imbalance(record: RankRecord, spec: CellSpec) -> list[float]:
    if spec.topology.ep == 1 or record.planned is None or record.observed is None:
        return []
    pairs = zip(record.observed.routed_rows, record.planned.routed_rows, strict=False)
    ratios = [seen / expected for seen, expected in pairs if expected]
    return [max(ratios)] if ratios else []


def _candidates(spec: CellSpec) -> dict[str, Sighting]:
    """Return cells that a next sweep could add: another LoRA rank, longer requests, fewer."""
    batch = spec.workload.batch()
    longer = Batch(requests=tuple(2 * length for length in batch.requests))
    fewer = Batch(requests=tuple(2 * n for n in batch.requests[: len(batch.requests) // 2]))
    found = {}
    for words, other, step in (
        (f"step.lora_rank={2 * spec.step.lora_rank}", batch, _ranked(spec)),
        ("requests twice as long", longer, spec.step),
        ("half the requests, twice as long", fewer, spec.step),
    ):
        if step is None or not other.requests:
            continue
        pricer = compile_pricer(spec.model, spec.topology, step, coefficients=spec.coefficients)
        try:
            figures = pricer.figures(pricer.lay_out(other))[0]
        except PlannerError:  # such a batch does not fit this topology: nothing to propose
            continue
        label = f"{spec.topology_name} with {words}"
        found[label] = Sighting(
            label=label,
            facts={},
            local=localize(spec.model, spec.topology, step),
            work=figures.work,
            seen={None: 1, Phase.RETAINED: 1},
        )
    return found


def _ranked(spec: CellSpec) -> Step | None:
    rank = spec.step.lora_rank
    return replace(spec.step, lora_rank=2 * rank) if rank else None


def _unusable(record: RankRecord) -> str | None:
    """Return why a record says nothing of copies, or ``None``."""
    if record.outcome != "ok":
        return f"outcome {record.outcome}"
    if record.observed is None or record.planned is None:
        return "not planned or not observed"
    if record.planned.decision.get("children", 1) != 1:
        return "split: terms of several children lie together"
    return None


def _wrong(observed: Observed) -> str:
    """Return what is no number of bytes in a record; empty where all are."""
    figures = {
        "working_set_bytes": observed.working_set_bytes,
        "retained_bytes": observed.retained_bytes,
        **{f"terms of {name}": size for name, size in observed.terms.items()},
    }
    for name, size in figures.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            return f"{name} = {size!r} is no number of bytes"
    return "" if observed.working_set_bytes else "working_set_bytes is 0"


def _sighting(cell: Cell, spec: CellSpec, record: RankRecord, figures: Figures) -> Sighting:
    assert record.observed is not None
    assert record.planned is not None
    rows = tuple(record.observed.routed_rows)
    work = figures.work._replace(rows=rows, more_rows=rows) if rows else figures.work
    seen: dict[Phase | None, int] = {None: record.observed.working_set_bytes}
    if record.observed.retained_bytes:
        seen[Phase.RETAINED] = record.observed.retained_bytes
    terms: dict[tuple[Moment, str], int] = {}
    moment = Moment(record.planned.peak_moment)
    if _same_moment(moment, record.observed.peak_at):
        terms = {(moment, name): size for name, size in record.observed.terms.items()}
    return Sighting(
        label=f"{cell.label} rank {record.rank} call {record.call}",
        facts={
            "model": spec.model.name,
            "size": f"{sum(spec.workload.batch().requests)} tokens",
            "topology": spec.topology_name,
            "lora rank": str(spec.step.lora_rank),
            "class": f"{spec.weights.name} {record.temperature}",
        },
        local=localize(spec.model, spec.topology, spec.step),
        work=work,
        seen=seen,
        terms=terms,
    )


def _same_moment(moment: Moment, peak_at: Mapping[str, str]) -> bool:
    """Whether the meter saw the peak in the phase of the moment where it was expected."""
    phase = peak_at.get("phase", "")
    backward = phase in ("recompute", "backward")
    if backward != (moment.phase is Phase.BACKWARD):
        return False
    module = peak_at.get("module", "")
    return not moment.value.startswith("recompute_") or module.endswith(
        moment.value.removeprefix("recompute_")
    )
