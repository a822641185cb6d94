"""Peak, working set and timeline of a device, from a snapshot's blocks and its history."""

from dataclasses import dataclass

from jobs.allocator.rules import round_request
from jobs.snapshot.held import Group, divisions_of, grouped, held
from jobs.snapshot.tables import ALLOCATED, Snapshot
from planner.units import ceil_div

POINTS = 96
"""Most points of a timeline."""

ALLOC, REQUESTED, COMPLETED, SEGMENT, FREED, MAPPED, UNMAPPED, OOM = range(8)  # of ACTIONS
_GROWS, _SHRINKS = (SEGMENT, MAPPED), (FREED, UNMAPPED)


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """What the history of a device tells. Bytes are what was asked for, in whole blocks.

    A block is rounded up as the allocator does; what a segment of fixed size keeps beyond a request
    because it splits off no less than 1 MiB is not counted.

    Parameters
    ----------
    events
        Events in the history.
    baseline_bytes
        Live when it began.
    whole
        Whether the history holds all events since recording began; ``None``: that is not known.
    lost_bytes
        Blocks in use that have a stack, so that they were recorded, and no allocation in the
        history: it has been overwritten, or recording has begun anew.
    peak_bytes, peak_event
        Highest live bytes, the baseline included, and the event that made them.
    working_set_bytes
        Highest live bytes of allocations made in the history.
    reserved_peak_bytes
        Highest bytes taken from CUDA.
    seconds
        From first to last event; 0 where times were not recorded.
    earlier
        Allocations from before the history that it saw given back.
    ooms
        Of each failure: bytes asked for, and what CUDA reported free.
    timeline
        (event, live bytes, reserved bytes), each the fullest of its stretch.
    at_peak
        What was live at the peak and allocated in the history, largest first.
    older_bytes
        What was live at the peak and older than the history.
    """

    events: int
    whole: bool | None
    lost_bytes: int
    baseline_bytes: int
    peak_bytes: int
    peak_event: int
    working_set_bytes: int
    reserved_peak_bytes: int
    seconds: float
    earlier: int
    ooms: tuple[tuple[int, int], ...]
    timeline: tuple[tuple[int, int, int], ...]
    at_peak: tuple[Group, ...]
    older_bytes: int


def history(snapshot: Snapshot, device: int) -> History | None:
    """Return what the history of ``device`` tells; ``None`` where no allocation was recorded."""
    rows = snapshot.rows_of(device)
    walk = _Walk(snapshot, rows)
    walk.run()
    if not walk.allocations:
        return None
    older = walk.older_at_end(snapshot, device)
    reserved = held(snapshot, device).reserved_bytes - walk.reserved
    events = snapshot.events
    lost = walk.lost_at_end(snapshot, device)
    alive = _alive_at(snapshot, rows, walk.peak_event)
    pairs = ((events.stack[row], events.size[row]) for row in alive)
    at_peak = grouped(pairs, divisions_of(snapshot))
    peak = walk.peak + older
    return History(
        events=len(rows),
        whole=_is_whole(snapshot, len(rows), lost),
        lost_bytes=lost,
        baseline_bytes=older,
        peak_bytes=peak,
        peak_event=walk.peak_event - rows.start,
        working_set_bytes=walk.working_set,
        reserved_peak_bytes=walk.reserved_peak + reserved,
        seconds=max(0, events.time[rows[-1]] - events.time[rows[0]]) / 1e6,
        earlier=walk.earlier,
        ooms=tuple(walk.ooms),
        timeline=tuple((at, live + older, held + reserved) for at, live, held in walk.points),
        at_peak=at_peak,
        older_bytes=peak - sum(group.nbytes for group in at_peak),
    )


def _is_whole(snapshot: Snapshot, events: int, lost: int) -> bool | None:
    if snapshot.history_entries is not None:
        return events < snapshot.history_entries
    return False if lost else None


class _Walk:
    """One pass over a device's events; live and reserved bytes relative to their start."""

    def __init__(self, snapshot: Snapshot, rows: range) -> None:
        self._events, self._rows = snapshot.events, rows
        self._divisions = divisions_of(snapshot)
        self.alive: dict[int, int] = {}  # address → row that allocated it
        self._given: set[int] = set()  # addresses given back and not completed
        self.allocations = self.earlier = self.own = 0
        self.live = self.peak = self.working_set = self.reserved = self.reserved_peak = 0
        self.freed_older = 0
        self.peak_event = rows.start
        self.ooms: list[tuple[int, int]] = []
        self._stretch = ceil_div(max(1, len(rows)), POINTS)
        self.points: list[list[int]] = []  # of the timeline

    def run(self) -> None:
        """Walk."""
        events = self._events
        for row in self._rows:
            action, address, size = events.action[row], events.address[row], events.size[row]
            if action == ALLOC:
                self._allocate(row, address, size)
            elif action in (REQUESTED, COMPLETED):
                self._free(action, address, size)
            elif action in _GROWS:
                self.reserved += size
                self.reserved_peak = max(self.reserved_peak, self.reserved)
            elif action in _SHRINKS:
                self.reserved -= size
            elif action == OOM:
                self.ooms.append((size, address))
            self._point(row - self._rows.start)

    def older_at_end(self, snapshot: Snapshot, device: int) -> int:
        """Return the bytes that were live when the history began."""
        rows = self._older_rows(snapshot, device)
        return sum(self._block(snapshot.blocks.requested[row]) for row in rows) + self.freed_older

    def lost_at_end(self, snapshot: Snapshot, device: int) -> int:
        """Return the bytes in use that were recorded and are not in the history."""
        blocks = snapshot.blocks
        rows = self._older_rows(snapshot, device)
        return sum(self._block(blocks.requested[row]) for row in rows if blocks.stack[row])

    def _older_rows(self, snapshot: Snapshot, device: int) -> list[int]:
        blocks = snapshot.blocks
        return [
            row
            for segment in snapshot.segments
            if segment.device == device
            for row in segment.blocks
            if blocks.state[row] == ALLOCATED and blocks.address[row] not in self.alive
        ]

    def _block(self, size: int) -> int:
        return round_request(size, self._divisions)

    def _allocate(self, row: int, address: int, size: int) -> None:
        self._given.discard(address)
        lost = self.alive.get(address)
        if lost is not None:  # its end was not recorded
            self._drop(self._events.size[lost])
        self.alive[address] = row
        self.allocations += 1
        self.live += self._block(size)
        self.own += self._block(size)
        self.working_set = max(self.working_set, self.own)
        if self.live > self.peak:
            self.peak, self.peak_event = self.live, row

    def _drop(self, size: int) -> None:
        self.live -= self._block(size)
        self.own -= self._block(size)

    def _free(self, action: int, address: int, size: int) -> None:
        if action == COMPLETED and address in self._given:
            self._given.discard(address)
            return
        if action == REQUESTED:
            self._given.add(address)
        row = self.alive.pop(address, None)
        if row is not None:
            self._drop(self._events.size[row])
            return
        self.earlier += 1
        self.live -= self._block(size)
        self.freed_older += self._block(size)

    def _point(self, at: int) -> None:
        if at % self._stretch == 0:
            self.points.append([at, self.live, self.reserved])
            return
        point = self.points[-1]
        if self.live > point[1]:
            point[0], point[1] = at, self.live
        point[2] = max(point[2], self.reserved)


def _alive_at(snapshot: Snapshot, rows: range, event: int) -> list[int]:
    """Return the rows that allocated what was live just after ``event``."""
    walk = _Walk(snapshot, range(rows.start, event + 1))
    walk.run()
    return list(walk.alive.values())
