"""What a device's allocator holds: sums of its blocks, and groups of equal ones."""

from collections.abc import Iterator
from dataclasses import dataclass

from jobs.allocator.history import stated_settings
from jobs.allocator.rules import round_request
from jobs.snapshot.tables import ALLOCATED, INACTIVE, Snapshot


@dataclass(frozen=True, slots=True)
class Group:
    """Live allocations of one stack and size.

    Parameters
    ----------
    stack
        Number of the stack; 0: none was recorded.
    requested
        Bytes that each of them asked for.
    count
        How many.
    block_bytes
        Bytes of the block that each of them takes.
    """

    stack: int
    requested: int
    count: int
    block_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of them all, in whole blocks."""
        return self.block_bytes * self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What the allocator of a device held as the snapshot was taken.

    Parameters
    ----------
    reserved_bytes, segments
        Taken from CUDA, and in how many pieces.
    allocated_bytes, requested_bytes
        Blocks in use, and what was asked for them.
    pending_bytes
        Given back, and waited for by another stream.
    """

    reserved_bytes: int
    segments: int
    allocated_bytes: int
    requested_bytes: int
    pending_bytes: int


def held(snapshot: Snapshot, device: int) -> Held:
    """Return what ``device``'s allocator held as the snapshot was taken."""
    blocks = snapshot.blocks
    segments = [segment for segment in snapshot.segments if segment.device == device]
    mine = [row for segment in segments for row in segment.blocks]
    used = [row for row in mine if blocks.state[row] == ALLOCATED]
    waited = [row for row in mine if blocks.state[row] not in (ALLOCATED, INACTIVE)]
    return Held(
        reserved_bytes=sum(segment.size for segment in segments),
        segments=len(segments),
        allocated_bytes=sum(blocks.size[row] for row in used),
        requested_bytes=sum(blocks.requested[row] for row in used),
        pending_bytes=sum(blocks.size[row] for row in waited),
    )


def live_groups(snapshot: Snapshot, device: int) -> tuple[Group, ...]:
    """Return the blocks in use as the snapshot was taken, largest first."""
    blocks = snapshot.blocks
    rows = (
        (blocks.stack[row], blocks.requested[row])
        for segment in snapshot.segments
        if segment.device == device
        for row in segment.blocks
        if blocks.state[row] == ALLOCATED
    )
    return grouped(rows, divisions_of(snapshot))


def divisions_of(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the steps that requests are rounded up to (``roundup_power2_divisions``)."""
    return stated_settings(snapshot.settings).divisions


def grouped(pairs: Iterator[tuple[int, int]], divisions: tuple[int, ...]) -> tuple[Group, ...]:
    """Group (stack, bytes asked for)."""
    counts: dict[tuple[int, int], int] = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    groups = (
        Group(stack, size, count, round_request(size, divisions))
        for (stack, size), count in counts.items()
    )
    return tuple(sorted(groups, key=lambda group: group.nbytes, reverse=True))
