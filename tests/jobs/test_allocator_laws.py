"""The simulated caching allocator: laws, and a plain second implementation of its default rules."""

import sys
from itertools import pairwise
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.allocator.blocks import Block
from jobs.allocator.rules import MIB, DeviceFullError, Settings
from jobs.allocator.simulator import CachingAllocator

SIZES = st.one_of(st.integers(0, 4096), st.integers(0, 3 * MIB), st.integers(0, 40 * MIB))
REQUESTS = st.lists(
    st.tuples(SIZES, st.integers(0, 1), st.integers(0, 9), st.sampled_from((None, None, "own"))),
    max_size=60,
)
ALL_SETTINGS = st.builds(
    Settings,
    device_bytes=st.none() | st.integers(60, 400).map(lambda n: n * MIB),
    allowed_bytes=st.none() | st.integers(40, 400).map(lambda n: n * MIB),
    expandable=st.booleans(),
    large_segment_bytes=st.sampled_from((20 * MIB, 32 * MIB)),
    max_split_bytes=st.none() | st.integers(33, 60).map(lambda n: n * MIB),
    collect_above=st.sampled_from((0.0, 0.5)),
    divisions=st.sampled_from(((), (4,) * 16)),
)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, ALL_SETTINGS)
def test_laws(requests: list[tuple[int, int, int, str | None]], limits: Settings) -> None:
    """Reference: blocks in use are disjoint, in memory that is held; all comes back in the end.

    What a stream still uses is neither in use nor free, until the stream is waited for.
    """
    allocator = CachingAllocator(limits)
    live: list[Block] = []
    for size, stream, place, pool in requests:
        try:
            live.append(allocator.malloc(size, stream, pool))
        except DeviceFullError:
            assert allocator.memory.most is not None
        if live and place in (3, 7):
            allocator.record_stream(live[place % len(live)], 1)
        if live and place < 5:
            allocator.free(live.pop(place % len(live)))
        if place == 9:
            allocator.finish(1)
        _check(allocator, live)
    for block in live:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    assert sum(block.size for block in allocator.blocks()) == (
        allocator.memory.reserved_bytes - allocator.active_bytes
    )
    if any(pool for *_, pool in requests):
        allocator.abandon("own")
    allocator.empty_cache()
    assert allocator.memory.reserved_bytes == allocator.active_bytes == 0
    assert not allocator.blocks()


def _check(allocator: CachingAllocator, live: list[Block]) -> None:
    assert allocator.allocated_bytes == sum(block.size for block in live)
    assert allocator.memory.reserved_bytes >= allocator.allocated_bytes
    assert allocator.memory.peak_bytes >= allocator.memory.reserved_bytes
    capacity = allocator.memory.most
    assert capacity is None or allocator.memory.reserved_bytes <= capacity
    placed = sorted(live, key=lambda block: block.address)
    assert all(first.end <= second.address for first, second in pairwise(placed))
    assert all(block.mapped and block.size >= max(block.requested, 512) for block in live)
    waiting = allocator.blocks()
    held = sum(block.size for block in waiting) + allocator.active_bytes
    assert held == allocator.memory.reserved_bytes
    for block in waiting:  # what could join has joined
        for other in (block.before, block.after):
            assert other is None or not other.is_free or other.mapped != block.mapped


class Plain:
    """The default rules over lists of holes: no pools, no links, nothing kept sorted."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, list[list[int]]]] = []  # (small, [size, free?] in order)
        self.reserved = self.peak = 0

    def malloc(self, size: int) -> list[int]:
        size = max(512, -(-size // 512) * 512)
        small = size <= MIB
        holes = [
            (piece[0], number, place)
            for number, (kind, pieces) in enumerate(self.segments)
            for place, piece in enumerate(pieces)
            if kind == small and piece[1] and piece[0] >= size
        ]
        if not holes:
            taken = (
                2 * MIB
                if small
                else 20 * MIB
                if size < 10 * MIB
                else -(-size // (2 * MIB)) * 2 * MIB
            )
            self.segments.append((small, [[taken, 1]]))
            self.reserved += taken
            self.peak = max(self.peak, self.reserved)
            holes = [(taken, len(self.segments) - 1, 0)]
        _, number, place = min(holes)
        pieces = self.segments[number][1]
        piece, beyond = pieces[place], pieces[place][0] - size
        if beyond >= 512 if small else beyond > MIB:
            pieces.insert(place + 1, [beyond, 1])
            piece[0] = size
        piece[1] = 0
        return piece

    def free(self, piece: list[int]) -> None:
        piece[1] = 1
        for _, pieces in self.segments:
            place = 0
            while place + 1 < len(pieces):
                if pieces[place][1] and pieces[place + 1][1]:
                    pieces[place][0] += pieces.pop(place + 1)[0]
                else:
                    place += 1


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(SIZES, st.integers(0, 9)), max_size=60))
def test_default_rules_agree_with_a_plain_implementation(steps: list[tuple[int, int]]) -> None:
    """Reference: `Plain`, which keeps nothing but pieces in order."""
    ours, plain = CachingAllocator(), Plain()
    live = []
    for size, place in steps:
        live.append((ours.malloc(size), plain.malloc(size)))
        if place < 6:
            block, piece = live.pop(place % len(live))
            ours.free(block)
            plain.free(piece)
        assert ours.allocated_bytes == sum(piece[0] for _, piece in live)
        assert ours.memory.reserved_bytes == plain.reserved
    assert ours.memory.peak_bytes == plain.peak


def _lines_to_end(streams: int) -> int:
    """Return the lines that are run while as many streams each use one block and are done."""
    allocator, ran = CachingAllocator(), 0

    def count(frame: FrameType, kind: str, argument: object) -> object:
        nonlocal ran
        ran += kind == "line"
        return count

    sys.settrace(count)
    try:
        for stream in range(1, streams + 1):
            block = allocator.malloc(MIB)
            allocator.record_stream(block, stream)
            allocator.free(block)
            allocator.finish(stream)
    finally:
        sys.settrace(None)
    return ran


def test_streams_that_are_done_cost_nothing_any_more() -> None:
    """Reference: twice the streams, twice the work; a history of 16,000 of them took 14 s once."""
    assert _lines_to_end(400) < 2.2 * _lines_to_end(200)
