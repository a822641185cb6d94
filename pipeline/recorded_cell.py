"""One cell's records as sightings; what cells share is worked out once in each process."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from jobs.spec import CellSpec
from pipeline.measured import sighting_of_row
from pipeline.record_view import RecordView, read_views
from pipeline.regress.sighting import Sighting
from planner.batch import Batch
from planner.coefficients import Coefficients
from planner.compiled import TermCompiler
from planner.errors import ConfigError, PlannerError, TableError
from planner.local import Local
from planner.moments import Moment, Phase
from planner.pricer import Pricer, compile_pricer
from planner.work import Work

PASSED = "cut short above its bound"
"""How a reason to leave a call out ends where the call had proved its bound wrong."""
LAID_OUT_BY = "megatron-local"
"""For cells whose own table is not here: only the buffers outside PyTorch depend on it."""


class RankKind(NamedTuple):
    """What the records of one rank share.

    Parameters
    ----------
    work
        Counts of a call, with an even share of routed rows.
    buffer_bytes
        What the communication buffers hold once a call has run.
    facts
        Of cold and of warm calls.
    """

    local: Local
    work: Work
    buffer_bytes: int
    facts: Mapping[str, Mapping[str, str]]


class SpecKind(NamedTuple):
    """What cells with the same specification, seeds apart, share."""

    spec: CellSpec
    ranks: tuple[RankKind, ...]


@dataclass(slots=True)
class CellPart:
    """What some cells hold: sightings, tables that priced them, and what was left out."""

    sightings: list[Sighting] = field(default_factory=list)
    tables: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    identities: set[str] = field(default_factory=set)


def read_cell(key: str, spec_path: Path, files: Sequence[Path], part: CellPart) -> None:
    """Read one cell's newest attempt into a part; what cannot be used is said there."""
    identity, fault = read_identity(spec_path)
    if fault:
        part.faults.append(fault)
    readable = 0
    for path in files:
        records, torn = read_views(path)
        part.faults += torn
        mine = [record for record in records if record.key == key]
        if len(mine) < len(records):
            part.faults.append(f"{path.name}: holds a record of another cell; left out")
        readable += len(mine)
        if not identity:
            part.reasons[f"{key}: its spec is missing or unreadable"] += len(mine)
            continue
        kind = spec_kind(identity)
        part.identities.add(identity)
        _read_rank(kind, sorted(mine, key=lambda record: record.call), part)
    if not readable:
        part.faults.append(f"{key}: its newest attempt left no readable record")


def read_identity(path: Path) -> tuple[str, str]:
    """Return the text of a spec without what no price depends on, or else what is wrong with it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        for name in ("workload", "weights"):
            values[name].pop("seed", None)
        identity = json.dumps(values, sort_keys=True)
        spec_kind(identity)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, PlannerError) as error:
        return "", f"{path.name} is no cell spec: {type(error).__name__}: {error}"
    return identity, ""


@lru_cache(maxsize=1024)
def spec_kind(identity: str) -> SpecKind:
    """Return what cells of one specification share; raises as `jobs.spec.CellSpec` does."""
    spec = CellSpec.from_dict(json.loads(identity))
    if spec.topology.tp > 1:
        return SpecKind(spec, ())
    pricer = pricer_of(spec)
    return SpecKind(spec, rank_kinds(spec, pricer, spec.workload.batch()))


def pricer_of(spec: CellSpec) -> Pricer:
    """Return a pricer that lays a cell's tokens out."""
    compiler = _compiler(spec.coefficients)
    return compile_pricer(spec.model, spec.topology, spec.step, coefficients=compiler)


@cache
def _compiler(name: str) -> TermCompiler:
    try:
        return TermCompiler(Coefficients.load(name))
    except TableError:
        return TermCompiler(Coefficients.load(LAID_OUT_BY))


def rank_kinds(spec: CellSpec, pricer: Pricer, batch: Batch) -> tuple[RankKind, ...]:
    """Return what each rank's records share."""
    facts = {
        temperature: {
            "model": spec.model.name,
            "size": f"{sum(spec.workload.requests or spec.workload.rank_tokens)} tokens",
            "topology": spec.topology_name,
            "lora rank": str(spec.step.lora_rank),
            "class": f"{spec.weights.name} {temperature}",
            "call": temperature,
            "dispatcher": pricer.local.dispatcher,
            "table": spec.coefficients_digest,
        }
        for temperature in ("cold", "warm")
    }
    return tuple(
        RankKind(figures.compiled.local, figures.work, int(figures.growth.expected), facts)
        for figures in pricer.figures(pricer.lay_out(batch))
    )


def _read_rank(kind: SpecKind, records: Sequence[RecordView], part: CellPart) -> None:
    """Read one rank's calls, in order."""
    for place, record in enumerate(records):
        reason = _unusable(record)
        if reason:
            part.reasons[f"{record.label}: {reason}"] += 1
            continue
        assert record.observed is not None
        fault = record.observed.wrong
        if fault:
            part.faults.append(f"{record.key} rank {record.rank} call {record.call}: {fault}")
            continue
        try:
            part.sightings.append(_sighting(kind, record, records[place + 1 : place + 2]))
        except (PlannerError, ValueError, IndexError) as error:
            part.faults.append(f"{record.key} rank {record.rank} call {record.call}: {error}")
            continue
        part.tables[kind.spec.coefficients] += 1


def _unusable(record: RecordView) -> str:
    """Return why a record says nothing of copies; empty where it does."""
    if record.outcome != "ok":
        return f"outcome {record.outcome}{_passed(record)}"
    if record.observed is None or record.planned is None:
        return "not planned or not observed"
    if record.planned.decision.children != 1:
        return "split: terms of several children lie together"
    return ""


def _passed(record: RecordView) -> str:
    """Say so where a call that was cut short had passed its bound: that much is certain of it."""
    planned, reached = record.planned, record.observed
    if planned is None or reached is None or reached.working_set_bytes <= planned.bound_bytes:
        return ""
    return f", {PASSED}"


def _sighting(kind: SpecKind, record: RecordView, after: Sequence[RecordView]) -> Sighting:
    """Return one call; ``after`` is the rank's next one, which found what this one left."""
    if record.environment.published is not None:
        return sighting_of_row(record.environment.published)
    observed, planned, spec = record.observed, record.planned, kind.spec
    assert observed is not None
    assert planned is not None
    rank = kind.ranks[record.rank]
    rows = observed.routed_rows
    if rows and len(rows) != rank.work.layers:
        raise ConfigError(f"rows of {len(rows)} layers; the rank has {rank.work.layers}")
    seen: dict[Phase | None, int] = {
        None: observed.working_set_bytes,
        Phase.RETAINED: observed.retained_bytes,
    }
    for following in after:
        if following.observed is not None and following.call == record.call + 1:
            seen[Phase.BETWEEN] = following.observed.held_over_bytes
    at = observed.peak_at
    moment = _seen_at(planned.peak_moment, at.get("phase", ""), at.get("module", ""))
    counted = rank.local.ep > 1 and spec.backend != "fake"  # there rows are planned
    return Sighting(
        label=f"{record.label} rank {record.rank} call {record.call}",
        facts=rank.facts[record.temperature],
        cell=record.key,
        local=rank.local,
        work=rank.work,
        rows=rows or rank.work.rows,
        seen=seen,
        at=moment,
        terms=observed.terms if moment is not None else {},
        beside={
            "bound": (planned.bound_bytes, observed.working_set_bytes),
            "growth": (planned.growth_bytes, observed.growth_bytes),
            "outside": (rank.buffer_bytes, observed.outside_bytes),
            "net peak": (observed.held_over_bytes, observed.peak_bytes),
        },
        arrived=_arrived(rank.work.rows, planned.routed_rows, rows) if counted else None,
    )


def _arrived(
    even: int | tuple[int, ...], expected: Sequence[int], rows: Sequence[int]
) -> tuple[float, float] | None:
    """Return most rows that arrived at a layer, over those expected and over an even share."""
    each = (even,) * len(rows) if isinstance(even, int) else even
    known = [seen / wanted for seen, wanted in zip(rows, expected, strict=False) if wanted]
    shares = [seen / share for seen, share in zip(rows, each, strict=True) if share]
    return (max(known), max(shares)) if known and shares else None


@lru_cache(maxsize=4096)
def _seen_at(planned: str, phase: str, module: str) -> Moment | None:
    """Return the moment of the expected peak, where the meter saw the peak in its phase."""
    moment = Moment(planned)
    if (phase in ("recompute", "backward")) != (moment.phase is Phase.BACKWARD):
        return None
    if planned.startswith("recompute_") and not module.endswith(planned[len("recompute_") :]):
        return None
    return moment


def candidates(identities: Iterable[str]) -> dict[str, Sighting]:
    """Return cells that a next sweep could add: another LoRA rank, longer requests, fewer."""
    found: dict[str, Sighting] = {}
    for identity in sorted(identities):
        spec = spec_kind(identity).spec
        lengths = spec.workload.requests
        half = lengths[: len(lengths) // 2]
        ranked = replace(spec.step, lora_rank=2 * spec.step.lora_rank)
        for words, requests, step in (
            (f"step.lora_rank={ranked.lora_rank}", lengths, ranked),
            ("requests twice as long", tuple(2 * n for n in lengths), spec.step),
            ("half the requests, twice as long", tuple(2 * n for n in half), spec.step),
        ):
            kind = "" if spec.workload.gradients else " forward-only"
            label = f"{spec.topology_name}{kind} with {words}"
            if requests and step.lora_rank and label not in found and spec.topology.tp == 1:
                batch = Batch(requests=requests, gradients=spec.workload.gradients)
                one = _candidate(label, replace(spec, step=step), batch)
                found |= {label: one} if one else {}
    return found


def _candidate(label: str, spec: CellSpec, batch: Batch) -> Sighting | None:
    try:
        kind = rank_kinds(spec, pricer_of(spec), batch)[0]
    except PlannerError:  # such a batch does not fit this topology: nothing to propose
        return None
    seen: dict[Phase | None, int] = {None: 1, Phase.RETAINED: 1}
    return Sighting(
        label=label,
        facts={},
        local=kind.local,
        work=kind.work,
        rows=kind.work.rows,
        seen=seen,
    )
