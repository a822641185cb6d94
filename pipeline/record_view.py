"""What a fit reads of a record: a part of `jobs.record.RankRecord`, decoded alone.

A record is some ten kilobytes, of which a fit needs one; a hundred thousand of them are decoded in
seconds where only that part becomes objects. A line that this decoder refuses goes to the record's
own reader, which says what is wrong with it.
"""

from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from jobs.record import SCHEMA, RankRecord, RecordError

BYTES = ("working_set", "peak", "retained", "held_over", "growth", "outside")
_FIGURES = attrgetter(*(f"{name}_bytes" for name in BYTES))


class DecisionView(msgspec.Struct):
    """Of the decision: the children that a split ran as."""

    children: int = 1


class PlannedView(msgspec.Struct):
    """Of `jobs.record.Planned`."""

    peak_moment: str
    bound_bytes: int
    growth_bytes: int
    routed_rows: list[int]
    decision: DecisionView


class ObservedView(msgspec.Struct):
    """Of `jobs.record.Observed`."""

    working_set_bytes: int
    peak_bytes: int
    retained_bytes: int
    held_over_bytes: int
    growth_bytes: int
    outside_bytes: int
    terms: dict[str, int]
    peak_at: dict[str, str]
    routed_rows: list[int]

    @property
    def wrong(self) -> str:
        """What is no number of bytes or rows; empty where all are."""
        figures = dict(zip(BYTES, _FIGURES(self), strict=True))
        if min(figures.values()) < 0:
            return f"{min(figures, key=figures.__getitem__)}_bytes is {min(figures.values())}"
        if self.terms and min(self.terms.values()) < 0:
            return f"terms hold {min(self.terms.values())} bytes"
        if self.routed_rows and min(self.routed_rows) < 0:
            return f"routed_rows hold {min(self.routed_rows)}"
        return "" if self.working_set_bytes else "working_set_bytes is 0"


class EnvironmentView(msgspec.Struct):
    """Of the environment: the published row that a record was imported from."""

    published: dict[str, str] | None = None


class RecordView(msgspec.Struct):
    """Of `jobs.record.RankRecord`."""

    schema: int
    key: str
    label: str
    rank: Annotated[int, msgspec.Meta(ge=0)]
    call: int
    temperature: Literal["cold", "warm"]
    outcome: str
    environment: EnvironmentView = msgspec.field(default_factory=EnvironmentView)
    planned: PlannedView | None = None
    observed: ObservedView | None = None


_DECODER = msgspec.json.Decoder(RecordView)


def read_views(path: Path) -> tuple[list[RecordView], list[str]]:
    """Read a rank's file; return the records and, for each line that is none, what is wrong."""
    views: list[RecordView] = []
    faults: list[str] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            view = _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if line.strip():
                faults.append(f"{path.name}:{number}: {_say(line, error)}")
            continue
        if view.schema != SCHEMA:
            faults.append(f"{path.name}:{number}: {_say(line, None)}")
            continue
        views.append(view)
    return views, faults


def _say(line: bytes, error: Exception | None) -> str:
    """Return what the record's own reader finds wrong with a line, or else the decoder."""
    try:
        record = RankRecord.from_line(line.decode(errors="replace"))
    except RecordError as own:
        return str(own)
    for name in BYTES:
        size = getattr(record.observed, f"{name}_bytes", 0)
        if type(size) is not int:
            return f"{name}_bytes = {size!r} is no whole number of bytes"
    return str(error)
