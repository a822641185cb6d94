"""A snapshot's history as steps, and the settings that a snapshot states."""

import re
from collections.abc import Hashable, Iterator, Mapping

from jobs.allocator.rules import LARGE_REQUEST, LARGE_SEGMENT, MIB, Settings
from jobs.allocator.steps import Abandon, Ask, Empty, End, Finish, Step, Use
from jobs.snapshot.tables import ACTIONS, ALLOCATED, Snapshot

ALLOC, REQUESTED, COMPLETED = (
    ACTIONS.index(name) for name in ("alloc", "free_requested", "free_completed")
)
NO_LIMIT = 2**62
"""Stated limits from here on, and -1, stand for none."""

GIVEN_BACK = tuple(ACTIONS.index(name) for name in ("segment_free", "segment_unmap"))

_MEGABYTES = re.compile(r"(large_segment_size|rounding)_mb\s*:\s*(\d{1,7})")
"""Settings that are stated in the text alone that was given (``max_non_split_rounding_mb``)."""


def stated_settings(stated: Mapping[str, object]) -> Settings:
    """Return the settings that a snapshot states as its ``allocator_settings``.

    Before torch 2.2 it states none: these are the defaults. No memory limit is stated, so that
    nothing is given back for want of room.
    """
    limit, divisions = stated.get("max_split_size"), stated.get("roundup_power2_divisions")
    steps = divisions.values() if isinstance(divisions, dict) else ()
    text = stated.get("PYTORCH_CUDA_ALLOC_CONF")
    given = dict(_MEGABYTES.findall(text if isinstance(text, str) else ""))
    large, slack = (int(given.get(name, 0)) * MIB for name in ("large_segment_size", "rounding"))
    return Settings(
        expandable=stated.get("expandable_segments") is True,
        max_split_bytes=limit if isinstance(limit, int) and 0 < limit < NO_LIMIT else None,
        large_segment_bytes=large if large > LARGE_REQUEST else LARGE_SEGMENT,
        max_slack_bytes=slack or None,
        divisions=tuple(n for n in steps if isinstance(n, int)),
    )


def snapshot_steps(snapshot: Snapshot, device: int) -> Iterator[Step]:
    """Yield the timeline of a device's history; what is older than it comes first.

    Why a segment went back to CUDA is not recorded. Where all that waits goes at once, for want of
    room or by ``empty_cache``, it goes here too; under settings that have single segments go
    (``max_split_size_mb``, ``garbage_collection_threshold``) none does.
    """
    events = snapshot.events
    rows = snapshot.rows_of(device)
    walk = _Walk()
    for address, size, stream in _older(snapshot, device, rows):
        yield from walk.alloc(address, size, stream, None)
    singly = stated_settings(snapshot.settings).max_split_bytes or snapshot.settings.get(
        "garbage_collection_threshold"
    )
    for row in rows:
        action, address, pool = events.action[row], events.address[row], events.pool_of(row)
        if action == ALLOC:
            yield from walk.alloc(address, events.size[row], events.stream[row], pool)
        elif action == REQUESTED:
            following = row + 1 if row + 1 in rows else row
            ends = events.action[following] == COMPLETED and events.address[following] == address
            yield from walk.request(address, ends)
        elif action == COMPLETED:
            yield from walk.complete(address)
        elif action in GIVEN_BACK and not singly:
            yield from walk.give_back(pool)


class _Walk:
    """What is live on the way through a history, by its address."""

    def __init__(self) -> None:
        self._live: set[int] = set()
        self._waited_for: set[int] = set()
        self._given_back: set[Hashable] = set()  # pools, since the last allocation

    def alloc(self, address: int, size: int, stream: int, pool: Hashable) -> Iterator[Step]:
        self._given_back.clear()
        if address in self._live:
            yield End(address)  # which was not recorded
        self._live.add(address)
        yield Ask(address, size, stream, pool)

    def request(self, address: int, ends: bool) -> Iterator[Step]:
        """Give a block back; if it does not end here, a stream of its own still uses it."""
        if address in self._live:
            self._live.discard(address)
            if not ends:
                self._waited_for.add(address)
                yield Use(address, _witness(address))
            yield End(address)

    def complete(self, address: int) -> Iterator[Step]:
        if address in self._waited_for:
            self._waited_for.discard(address)
            yield Finish(_witness(address))
        elif address in self._live:
            self._live.discard(address)
            yield End(address)  # only completed ends were recorded

    def give_back(self, pool: Hashable) -> Iterator[Step]:
        if pool not in self._given_back:
            self._given_back.add(pool)
            yield Empty() if pool is None else Abandon(pool)


def _witness(address: int) -> int:
    """Return a stream that uses the block at an address and nothing else."""
    return -1 - address


def _older(snapshot: Snapshot, device: int, rows: range) -> Iterator[tuple[int, int, int]]:
    """Yield address, bytes and stream of what was live when the history began."""
    events, blocks = snapshot.events, snapshot.blocks
    born: set[int] = set()
    freed: dict[int, tuple[int, int]] = {}
    for row in rows:
        address = events.address[row]
        if events.action[row] == ALLOC:
            born.add(address)
        elif events.action[row] in (REQUESTED, COMPLETED) and address not in born:
            freed.setdefault(address, (events.size[row], events.stream[row]))
    for segment in snapshot.segments:
        for row in segment.blocks if segment.device == device else ():
            address = blocks.address[row]
            if blocks.state[row] == ALLOCATED and address not in born and address not in freed:
                yield address, blocks.requested[row], segment.stream
    for address, (size, stream) in freed.items():
        yield address, size, stream
