"""Reserved bytes from a timeline: a ledger's allocations, or a snapshot's history, served again."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jobs.allocator.blocks import Block
from jobs.allocator.rules import Settings
from jobs.allocator.simulator import CachingAllocator
from jobs.snapshot.tables import ACTIONS, ALLOCATED, Snapshot


class Step(NamedTuple):
    """One step of a timeline: ``nbytes`` are asked for under ``key``, or given back (``None``)."""

    key: Hashable
    nbytes: int | None
    stream: int = 0


class Timed(Protocol):
    """What a ledger's allocation says of itself (`jobs.meter.allocation.Allocation`)."""

    number: int
    nbytes: int
    died: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reserved:
    """What a timeline takes from CUDA, in bytes.

    Parameters
    ----------
    peak_bytes, end_bytes
        Reserved at most, and in the end.
    allocated_peak_bytes
        Blocks in use at most.
    waste_bytes
        Reserved at most beyond blocks in use at most: fragments and rounding of segments.
    retries
        Requests for which all that waited was given back first.
    """

    peak_bytes: int
    end_bytes: int
    allocated_peak_bytes: int
    retries: int

    @property
    def waste_bytes(self) -> int:
        """What is reserved at most beyond what is in use at most."""
        return self.peak_bytes - self.allocated_peak_bytes


def replay(steps: Iterable[Step], settings: Settings | None = None) -> Reserved:
    """Serve a timeline.

    Raises
    ------
    DeviceFullError
        When a request does not fit in the settings' capacity.
    KeyError
        When something is given back that was not asked for.
    """
    allocator = CachingAllocator(settings)
    live: dict[Hashable, Block] = {}
    for step in steps:
        if step.nbytes is None:
            allocator.free(live.pop(step.key))
        else:
            live[step.key] = allocator.malloc(step.nbytes, step.stream)
    return Reserved(
        peak_bytes=allocator.reserved_peak_bytes,
        end_bytes=allocator.reserved_bytes,
        allocated_peak_bytes=allocator.allocated_peak_bytes,
        retries=allocator.retries,
    )


def ledger_steps(allocations: Iterable[Timed], resident: Iterable[int] = ()) -> Iterator[Step]:
    """Yield the timeline of a ledger's allocations, of one call or of several.

    Parameters
    ----------
    allocations
        In the order of their numbers; what dies does so just after the allocation ``died``.
    resident
        Bytes of each tensor that was there before (weights, inputs), which stay.
    """
    for number, nbytes in enumerate(resident):
        if nbytes:
            yield Step(("resident", number), nbytes)
    deaths: dict[int, list[int]] = {}
    last = -1
    for allocation in allocations:
        yield from _deaths(deaths, last, allocation.number)
        last = allocation.number
        if not allocation.nbytes:
            continue  # takes no block
        yield Step(allocation.number, allocation.nbytes)
        if allocation.died is not None:
            deaths.setdefault(allocation.died, []).append(allocation.number)
    for number in sorted(deaths):
        yield from (Step(key, None) for key in deaths[number])


def _deaths(deaths: dict[int, list[int]], last: int, number: int) -> Iterator[Step]:
    """Yield what died after ``last`` and before ``number`` was allocated."""
    for moment in range(last, number):
        yield from (Step(key, None) for key in deaths.pop(moment, ()))


def snapshot_steps(snapshot: Snapshot, device: int) -> Iterator[Step]:
    """Yield the timeline of a device's history; what is older than it comes first."""
    events, blocks = snapshot.events, snapshot.blocks
    rows = snapshot.traces[device] if device < len(snapshot.traces) else range(0)
    born, freed_first = _first_seen(snapshot, rows)
    for segment in snapshot.segments:
        for row in segment.blocks if segment.device == device else ():
            older = blocks.address[row] not in born and blocks.address[row] not in freed_first
            if blocks.state[row] == ALLOCATED and older:
                yield Step(blocks.address[row], blocks.requested[row], segment.stream)
    for address, (size, stream) in freed_first.items():
        yield Step(address, size, stream)
    live = set(freed_first)
    for row in rows:
        address = events.address[row]
        if events.action[row] == ACTIONS.index("alloc"):
            if address in live:
                yield Step(address, None)  # its end was not recorded
            live.add(address)
            yield Step(address, events.size[row], events.stream[row])
        elif events.action[row] in _ENDS and address in live:
            live.discard(address)
            yield Step(address, None)


def snapshot_settings(snapshot: Snapshot) -> Settings:
    """Return the settings that a snapshot states; the defaults before torch 2.2, which states none.

    No memory limit is stated, so that nothing is given back for want of room.
    """
    stated = snapshot.settings
    limit = stated.get("max_split_size")
    return Settings(
        expandable=stated.get("expandable_segments") is True,
        max_split_bytes=limit if isinstance(limit, int) and 0 < limit < 2**62 else None,
    )


_ENDS = (ACTIONS.index("free_requested"), ACTIONS.index("free_completed"))


def _first_seen(snapshot: Snapshot, rows: range) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """Return addresses allocated in the history, and what it first saw given back."""
    events = snapshot.events
    born: set[int] = set()
    freed: dict[int, tuple[int, int]] = {}
    for row in rows:
        address = events.address[row]
        if events.action[row] == ACTIONS.index("alloc"):
            born.add(address)
        elif events.action[row] in _ENDS and address not in born:
            freed.setdefault(address, (events.size[row], events.stream[row]))
    return born, freed
