"""RankRecord: what one rank planned and saw in one call, as a line of JSON. Standard library only.

A rank's lines lie in ``<out>/records/<key>.a<attempt>.r<rank>.jsonl``, rewritten whole after each
call (scratch file, fsync, rename), so that a reader never meets half a line and a killed rank keeps
every call that it had finished. Records on disk are the truth; all else is derived from them.
"""

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA = 1

OUTCOMES = (
    "ok",
    "refused",
    "oom-device",
    "oom-host",
    "oom-nccl",
    "error",
    "preempted",
    "timeout",
)


class RecordError(ValueError):
    """A line that is not a record of a schema this version reads."""


@dataclass(kw_only=True, slots=True)
class Planned:
    """The planner's side of one call on this rank.

    Parameters
    ----------
    expected_bytes, bound_bytes
        Peak of the call's working set inside PyTorch: accurate, and never under.
    growth_bytes
        What the communication buffers outside PyTorch will grow by.
    retained_bytes
        What the call still holds when forward ends.
    held_over_bytes
        What an earlier call of this process left alive.
    demand_bytes
        What admission compared with the room.
    decision
        ``verdict`` (admit, split, refuse), ``children`` and the verdict's numbers.
    peak_moment, terms, moments
        The moment of the expected peak, each term's bytes there, and expected and bound of every
        moment.
    unpriced
        What the coefficient table does not price here, each with the reason.
    copies
        Live copies of each term at the expected peak.
    """

    expected_bytes: int
    bound_bytes: int
    growth_bytes: int
    retained_bytes: int
    held_over_bytes: int
    demand_bytes: int
    decision: dict[str, Any]
    peak_moment: str
    terms: dict[str, int]
    moments: dict[str, dict[str, int]]
    unpriced: list[str]
    coefficients: str
    local_tokens: int
    routed_rows: list[int]
    copies: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Observed:
    """The meters' side of one call on this rank; all bytes inside PyTorch unless said otherwise.

    Of a call that was cut short: up to where it was (`RankRecord.reached`).

    Parameters
    ----------
    baseline_bytes
        Live when the call began (weights, and what earlier calls left).
    peak_bytes
        Highest live bytes of the call above the baseline.
    working_set_bytes
        Highest sum of live bytes that the call itself allocated: what cold and warm calls share.
    retained_bytes
        Allocated by the call and alive when forward ended.
    held_over_bytes
        Left by earlier calls and alive when this one began, weights aside.
    growth_bytes, outside_bytes
        Growth of the communication buffers in this call, and what they hold after it, both outside
        the tensors that the ledger counts.
    terms, unattributed_bytes, unattributed
        Bytes of each planner term at the working set's peak, and of what matched none; of the
        latter the largest storages: ``bytes``, ``shape``, ``module``, ``op``.
    peak_at
        Phase, module and operator of the allocation that made the peak.
    routed_rows
        Rows that arrived at this rank's experts, per layer (of the last child in a split call).
    garbage_bytes
        Left by the call and freed by nothing but the cyclic collector, which ran once the call was
        over: neither referenced nor held over, and part of no price.
    timeline
        Bytes that the call had live, in its order: some ``[bytes, "phase module"]``, each the
        fullest moment of its stretch; the highest is the working set.
    device
        What the meters of a CUDA rank saw besides (`jobs.meter.cuda.DeviceCall`); of a fake rank
        ``replayed_reserved_bytes`` alone: what a CUDA device's allocator would reserve for the
        process so far, by its rules (`jobs.allocator.simulator`). Of CPU ranks empty.
    call_s, ledger_s
        Wall time of the call, and the part of it spent in the ledger's own code.
    """

    baseline_bytes: int
    peak_bytes: int
    working_set_bytes: int
    retained_bytes: int
    held_over_bytes: int
    growth_bytes: int
    outside_bytes: int
    terms: dict[str, int]
    unattributed_bytes: int
    peak_at: dict[str, str]
    routed_rows: list[int]
    call_s: float
    ledger_s: float
    garbage_bytes: int = 0
    unattributed: list[dict[str, Any]] = field(default_factory=list)
    timeline: list[tuple[int, str]] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class RankRecord:
    """One call on one rank; ``planned`` or ``observed`` is absent where it did not get so far."""

    key: str
    label: str
    attempt: int
    rank: int
    call: int
    temperature: str
    outcome: str
    planned: Planned | None = None
    observed: Observed | None = None
    loss: float | None = None
    error: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise RecordError(f"outcome {self.outcome!r} is none of {', '.join(OUTCOMES)}")
        if self.temperature not in ("cold", "warm"):
            raise RecordError(f"temperature {self.temperature!r} is neither cold nor warm")
        for name in ("attempt", "rank", "call"):  # what records are put in order by
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise RecordError(f"{name} {number!r} is no whole number of at least 0")
        for name in ("key", "label"):
            if not isinstance(getattr(self, name), str):
                raise RecordError(f"{name} {getattr(self, name)!r} is no text")

    @property
    def measured(self) -> Observed | None:
        """What was observed of a call that ran to its end; ``None`` of any other.

        A call that was cut short has ``observed`` too: what it had reached, which may lie anywhere
        below its peak, so that no error, coverage or fit may take it for one.
        """
        return self.observed if self.outcome == "ok" else None

    @property
    def reached(self) -> Observed | None:
        """What a call that was cut short had held until then; ``None`` of any other."""
        return None if self.outcome == "ok" else self.observed

    def to_line(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> "RankRecord":
        """Read one line.

        Raises
        ------
        RecordError
            When the line is torn, of a later schema, or lacks a field; says which.
        """
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise RecordError(f"torn or not JSON: {error}") from error
        if not isinstance(data, dict):
            raise RecordError(f"a record is a JSON object, not {type(data).__name__}")
        if data.get("schema") != SCHEMA:
            raise RecordError(f"schema {data.get('schema')!r}; this version reads {SCHEMA}")
        try:
            for name, kind in (("planned", Planned), ("observed", Observed)):
                if data.get(name) is not None:
                    data[name] = kind(**data[name])
            return cls(**data)
        except TypeError as error:
            known = ", ".join(f.name for f in fields(cls))
            raise RecordError(f"{error}; a record has {known}") from error


def record_path(out: Path, key: str, attempt: int, rank: int) -> Path:
    """Where a rank's records lie under ``out``."""
    return out / "records" / f"{key}.a{attempt}.r{rank}.jsonl"


def write_records(path: Path, records: list[RankRecord]) -> None:
    """Replace a rank's file with ``records``, atomically: scratch file, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with scratch.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(record.to_line() + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def read_records(path: Path) -> tuple[list[RankRecord], list[str]]:
    """Read a rank's file; return the records and, for each line that is none, what is wrong."""
    records: list[RankRecord] = []
    faults: list[str] = []
    for number, line in enumerate(
        path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
    ):
        if not line.strip():
            continue
        try:
            records.append(RankRecord.from_line(line))
        except RecordError as error:
            faults.append(f"{path.name}:{number}: {error}")
    return records, faults
