"""Records on disk as one table: what a report, a tracker or a fit reads.

Reading never fails: a torn line, a record with a value that is none, a file that is no record, a
spec that is missing become faults to be listed. Of several attempts at a cell the newest counts.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.completion import GOOD, RECORD_NAME, rank_is_complete
from jobs.record import Observed, RankRecord, read_records
from jobs.spec import CellSpec
from pipeline.labels import Named, told_apart
from pipeline.sound import fault_of
from planner.errors import ConfigError

Row = dict[str, Any]

PUBLISHED = "published"
"""Where a record's environment holds the row of a published table that it was imported from."""
MOST_RANKS = 8
"""Named one by one where their records are missing."""
PLACE = ("phase", "module", "op")
"""What a record names a place in a call by, from the largest part to the smallest."""
NO_TERM = "unattributed"
"""Observed bytes that matched no term."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell and the records of its newest attempt.

    Parameters
    ----------
    spec
        ``None`` when its file is missing or unreadable (a fault says so).
    attempt
        Number of the newest attempt; earlier ones failed.
    records
        By call, then rank.
    """

    key: str
    spec: CellSpec | None
    attempt: int
    records: tuple[RankRecord, ...]

    @property
    def label(self) -> str:
        """What people call the cell."""
        return self.records[0].label

    @property
    def is_published(self) -> bool:
        """Whether this is a row of a published table: one record of its busiest rank is all."""
        return all(PUBLISHED in record.environment for record in self.records)

    @property
    def lacking(self) -> tuple[int, ...]:
        """Ranks whose records are missing or end early."""
        if self.spec is None or self.is_published:
            return ()
        by_rank: dict[int, list[RankRecord]] = defaultdict(list)
        for record in self.records:
            by_rank[record.rank].append(record)
        spec = self.spec
        return tuple(rank for rank in spec.ranks if not rank_is_complete(spec, by_rank[rank]))

    @property
    def outcome(self) -> str:
        """``ok``, ``refused``, ``failed``, or ``incomplete`` where records are missing."""
        if any(r.outcome not in GOOD for r in self.records):
            return "failed"
        if self.lacking:
            return "incomplete"
        return "refused" if any(r.outcome == "refused" for r in self.records) else "ok"

    @property
    def error(self) -> str:
        """What went wrong first, why the plan refused, or whose records are missing.

        A rank that names what ran out says more than one whose peer was gone, and that more than
        one which was stopped.
        """
        errors = [r for r in self.records if r.error]
        errors.sort(
            key=lambda r: ((r.error or "").startswith("stopped because"), r.outcome == "error")
        )
        if errors:
            return f"rank {errors[0].rank}: {errors[0].error}"
        shown = ", ".join(map(str, self.lacking[:MOST_RANKS]))
        more = len(self.lacking) - MOST_RANKS
        return f"records are missing of rank {shown}{f' and {more} more' * (more > 0)}" * bool(
            shown
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """All cells under ``out``, smallest world first, and what could not be read."""

    out: Path
    cells: tuple[Cell, ...]
    faults: tuple[str, ...] = field(default=())

    def only(self, keys: Iterable[str]) -> "Store":
        """Return the store with those cells alone, faults kept."""
        wanted = set(keys)
        chosen = tuple(cell for cell in self.cells if cell.key in wanted)
        return Store(out=self.out, cells=chosen, faults=self.faults)


def read_store(out: Path, paths: Iterable[Path] | None = None) -> Store:
    """Read every record under ``out``, or those in some files of its alone."""
    faults: list[str] = []
    attempts: dict[str, dict[int, list[RankRecord]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted((out / "records").glob("*.jsonl") if paths is None else paths):
        name = RECORD_NAME.fullmatch(path.name)
        if name is None:
            faults.append(f"{path.name}: no record file is named like this; it was left out")
            continue
        records, torn = read_records(path)
        faults.extend(torn)
        strangers = [r for r in records if r.key != name["key"]]
        if strangers:
            faults.append(f"{path.name}: holds a record of cell {strangers[0].key}; left out")
        own = [record for record in records if record.key == name["key"]]
        attempts[name["key"]][int(name["attempt"])] += _sound(own, faults)
    cells = []
    for key, by_attempt in attempts.items():
        newest = max(by_attempt)
        if not by_attempt[newest]:
            faults.append(f"{key}: attempt {newest} left no readable record; run the sweep again")
            continue
        spec, fault = _read_spec(out / "specs" / f"{key}.json")
        faults.extend(fault)
        records = sorted(by_attempt[newest], key=lambda r: (r.call, r.rank))
        cells.append(Cell(key=key, spec=spec, attempt=newest, records=tuple(records)))
    cells.sort(key=_order)
    return Store(out=out, cells=tuple(cells), faults=tuple(faults))


def _sound(records: Iterable[RankRecord], faults: list[str]) -> list[RankRecord]:
    """Return the records whose values are what a record promises; the others become faults."""
    kept = []
    for record in records:
        wrong = fault_of(record)
        if wrong:
            where = f"{record.key} rank {record.rank} call {record.call}"
            faults.append(f"{where}: {wrong}; the record was left out")
        else:
            kept.append(record)
    return kept


def _read_spec(path: Path) -> tuple[CellSpec | None, list[str]]:
    try:
        return CellSpec.read(path), []
    except (OSError, ConfigError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return None, [f"{path.name}: {why}; names of topology and weights come from its label"]


def _order(cell: Cell) -> tuple[Any, ...]:
    if cell.spec is None:
        return (1, cell.label, cell.key)
    spec = cell.spec
    return (
        0,
        spec.model.name,
        spec.topology.ep,
        spec.topology.cp,
        spec.topology.world,
        spec.weights.kind != "random",
        spec.weights.name,
        spec.calls.name,
        not spec.workload.gradients,
        cell.key,
    )


def labels(store: Store) -> dict[str, str]:
    """Name each cell for people, by its key."""
    return told_apart([Named(cell.key, cell.label, cell.spec) for cell in store.cells])


def rows(store: Store) -> list[Row]:
    """One flat row for each recorded call and rank; bytes as integers, absent sides as ``None``.

    What a call that was cut short had held is no observation of it: its observed side is absent,
    and ``reached_bytes`` is the most that it held, ``reached_at`` where that was.
    """
    named = labels(store)
    return [_row(cell, record, named[cell.key]) for cell in store.cells for record in cell.records]


def _row(cell: Cell, record: RankRecord, label: str) -> Row:
    spec, planned, observed = cell.spec, record.planned, record.measured
    names = [*record.label.split(), "?", "?"]
    row: Row = {
        "key": cell.key,
        "label": label,
        "topology": spec.topology_name if spec else names[0],
        "weights": spec.weights.name if spec else names[1],
        "gradients": spec.workload.gradients if spec else None,
        "attempt": record.attempt,
        "rank": record.rank,
        "call": record.call,
        "temperature": record.temperature,
        "outcome": record.outcome,
        "error": record.error,
        "loss": record.loss,
    }
    for side, source, names_of_side in (
        ("planned", planned, ("expected", "bound", "growth", "retained", "held_over", "demand")),
        ("observed", observed, ("peak", "working_set", "growth", "retained", "held_over")),
    ):
        for name in names_of_side:
            row[f"{side}_{name}_bytes"] = getattr(source, f"{name}_bytes") if source else None
    row["reached_bytes"] = record.reached.working_set_bytes if record.reached else None
    row["reached_at"] = place_of(record.reached) if record.reached else None
    row["verdict"] = planned.decision.get("verdict") if planned else None
    row["children"] = planned.decision.get("children") if planned else None
    row["call_s"] = observed.call_s if observed else None
    row["ledger_s"] = observed.ledger_s if observed else None
    row["planned_routed_rows"] = sum(planned.routed_rows) if planned else None
    row["observed_routed_rows"] = sum(observed.routed_rows) if observed else None
    return row | _compared(row)


def place_of(observed: Observed) -> str:
    """Name where a call held most: phase, module and operator, as far as they are known."""
    return " ".join(str(observed.peak_at[p]) for p in PLACE if observed.peak_at.get(p))


def _compared(row: Row) -> Row:
    """Residual (observed - expected) in bytes and in percent, and whether the bound held."""
    expected, seen = row["planned_expected_bytes"], row["observed_working_set_bytes"]
    if expected is None or seen is None:
        return {"residual_bytes": None, "error_percent": None, "covered": None}
    return {
        "residual_bytes": seen - expected,
        "error_percent": 100 * (seen - expected) / expected if expected else None,
        "covered": seen <= row["planned_bound_bytes"],
    }


def term_rows(store: Store) -> list[Row]:
    """One row for each term of each call and rank that was planned, and observed to its end."""
    named = labels(store)
    table: list[Row] = []
    for cell in store.cells:
        for record in cell.records:
            if record.planned is None or record.measured is None:
                continue
            planned, seen = record.planned.terms, dict(record.measured.terms)
            seen[NO_TERM] = record.measured.unattributed_bytes
            for term in sorted({*planned, *seen}):
                table.append(
                    {
                        "key": cell.key,
                        "label": named[cell.key],
                        "rank": record.rank,
                        "call": record.call,
                        "temperature": record.temperature,
                        "term": term,
                        "planned_bytes": planned.get(term, 0),
                        "observed_bytes": seen.get(term, 0),
                        "residual_bytes": seen.get(term, 0) - planned.get(term, 0),
                    }
                )
    return table


def tracked_mark(out: Path, cell: Cell, mode: str) -> Path:
    """File that says that a cell's newest attempt has its run in the tracker's ``mode``."""
    return out / "wandb" / "tracked" / f"{cell.key}-{cell.attempt}.{mode}"


def untracked(store: Store, mode: str) -> list[Cell]:
    """Cells without a run in ``mode``."""
    return [cell for cell in store.cells if not tracked_mark(store.out, cell, mode).exists()]
