"""Calls that were cut short: what they had reached is told in words, and is part of no figure.

Where a call ends early the ledger has seen some of it. That says where it was and what it held; its
peak may have lain anywhere above. Only once it is above the bound does it prove anything: that the
bound did not hold.
"""

from jobs.record import RankRecord
from pipeline.store import Cell, place_of
from pipeline.unit import unit_of_all


def furthest(cell: Cell) -> RankRecord | None:
    """Return the record of the call, of those that were cut short, that held most."""
    return max(
        (record for record in cell.records if record.reached is not None),
        key=lambda record: record.reached.working_set_bytes if record.reached else 0,
        default=None,
    )


def told(cell: Cell) -> str:
    """Return where the calls of a cell were cut short; empty where none was seen until then."""
    record = furthest(cell)
    if record is None or record.reached is None:
        return ""
    size, planned = record.reached.working_set_bytes, record.planned
    unit = unit_of_all([size, *([planned.expected_bytes, planned.bound_bytes] if planned else [])])
    where = place_of(record.reached)
    words = f"rank {record.rank} call {record.call} was cut short at {unit.show(size)} {unit.name}"
    words += f" in {where}" if where else ""
    if planned is not None:
        expected, bound = unit.show(planned.expected_bytes), unit.show(planned.bound_bytes)
        words += f" (expected {expected}, bound {bound}"
        words += ", which it had passed)" if size > planned.bound_bytes else ")"
    others = sum(one.reached is not None for one in cell.records) - 1
    if others:
        so = "was 1 other call" if others == 1 else f"were {others} other calls"
        words += f"; so {so}, at less"
    return words
