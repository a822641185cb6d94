"""A snapshot as columns of numbers: what is kept of its events, blocks, segments and frames."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
)
"""What the allocator's trace records (``TraceEntry``, c10/core/CachingDeviceAllocator.h of torch
2.14); a later torch may write more."""

OTHER = len(ACTIONS)

HOST = -1
"""Device that pinned host memory is of."""

ENTRIES = "history_entries"
"""Key of a snapshot of ours: most events that its histories keep. PyTorch does not tell it."""

ALLOCATED, PENDING, INACTIVE = range(3)
STATES = {
    "active_allocated": ALLOCATED,
    "active_pending_free": PENDING,
    "active_awaiting_free": PENDING,
    "inactive": INACTIVE,
}
"""States of a block: in use; given back, and waited for by another stream; free."""


class Frame(NamedTuple):
    """One frame of a stack."""

    filename: str
    line: int
    name: str


@dataclass(slots=True)
class Stacks:
    """Stacks of frames, each kept once, as numbers of frames that are kept once. Stack 0 is empty.

    A stack's frames run from the innermost outward, as in a snapshot.
    """

    frames: list[Frame] = field(default_factory=list)
    packed: list[bytes] = field(default_factory=lambda: [b""])

    def frames_of(self, stack: int) -> list[Frame]:
        """Return a stack's frames, innermost first."""
        return [self.frames[number] for number in array("I", self.packed[stack])]


@dataclass(slots=True)
class Events:
    """The allocator's trace, one row an event; bytes, addresses and microseconds.

    Of an ``oom`` event, ``address`` is what CUDA reported free and ``size`` what was asked for.
    ``size`` of an allocation is what was asked for, before rounding. ``pool`` is a place in
    ``pools``, the private pools named by their two numbers (torch 2.13 tells them).
    """

    action: "array[int]" = field(default_factory=lambda: array("B"))
    address: "array[int]" = field(default_factory=lambda: array("Q"))
    size: "array[int]" = field(default_factory=lambda: array("Q"))
    stream: "array[int]" = field(default_factory=lambda: array("Q"))
    time: "array[int]" = field(default_factory=lambda: array("Q"))
    stack: "array[int]" = field(default_factory=lambda: array("I"))
    pool: "array[int]" = field(default_factory=lambda: array("I"))
    pools: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    def __len__(self) -> int:
        return len(self.action)

    def pool_of(self, row: int) -> tuple[int, int] | None:
        """Return the private pool of a row; ``None``: everybody's."""
        return self.pools[self.pool[row]] if self.pool[row] else None


@dataclass(slots=True)
class Blocks:
    """Pieces of segments as the snapshot was taken."""

    address: "array[int]" = field(default_factory=lambda: array("Q"))
    size: "array[int]" = field(default_factory=lambda: array("Q"))
    requested: "array[int]" = field(default_factory=lambda: array("Q"))
    state: "array[int]" = field(default_factory=lambda: array("B"))
    stack: "array[int]" = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.address)


class Segment(NamedTuple):
    """Memory that one cudaMalloc has given, or the mapped part of an expandable segment."""

    device: int
    address: int
    size: int
    stream: int
    pool: str
    expandable: bool
    blocks: range


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot file's content.

    Parameters
    ----------
    segments, blocks
        What the allocator held.
    events, traces
        The history, and of each device the rows that are its own, oldest first.
    stacks
        What the rows' stacks are.
    settings
        The allocator's settings (torch 2.2 and later).
    host_trace
        Rows of pinned host memory's history (torch 2.14 tells it, on request).
    history_entries
        Most events that a history keeps, before it overwrites the oldest; ``None``: not told.
    """

    segments: tuple[Segment, ...]
    blocks: Blocks
    events: Events
    traces: tuple[range, ...]
    stacks: Stacks
    settings: dict[str, object]
    host_trace: range = range(0)
    history_entries: int | None = None

    def rows_of(self, device: int) -> range:
        """Return the events of a device, or of the `HOST`, oldest first."""
        if device == HOST:
            return self.host_trace
        return self.traces[device] if device < len(self.traces) else range(0)

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices that hold segments or have a history, the `HOST` among them."""
        traced = {device for device in range(HOST, len(self.traces)) if self.rows_of(device)}
        return tuple(sorted(traced | {segment.device for segment in self.segments}))
