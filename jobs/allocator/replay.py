"""Reserved bytes from a timeline, such as a ledger's allocations: it is served again."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from jobs.allocator.rules import Settings
from jobs.allocator.simulator import CachingAllocator
from jobs.allocator.steps import Ask, End, Player, Step


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
        When a request does not fit in the settings' limits.
    KeyError
        When something is given back that was not asked for.
    """
    allocator = CachingAllocator(settings)
    player = Player(allocator)
    for step in steps:
        player.play(step)
    return Reserved(
        peak_bytes=allocator.memory.peak_bytes,
        end_bytes=allocator.memory.reserved_bytes,
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
            yield Ask(("resident", number), nbytes)
    deaths: dict[int, list[int]] = {}
    last = -1
    for allocation in allocations:
        yield from _deaths(deaths, last, allocation.number)
        last = allocation.number
        if not allocation.nbytes:
            continue  # takes no block
        yield Ask(allocation.number, allocation.nbytes)
        if allocation.died is not None:
            deaths.setdefault(allocation.died, []).append(allocation.number)
    for number in sorted(deaths):
        yield from (End(key) for key in deaths[number])


def _deaths(deaths: dict[int, list[int]], last: int, number: int) -> Iterator[Step]:
    """Yield what died after ``last`` and before ``number`` was allocated."""
    for moment in range(last, number):
        yield from (End(key) for key in deaths.pop(moment, ()))
