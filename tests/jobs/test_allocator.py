"""The simulated caching allocator: published rules, laws, and a plain second implementation."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import block as snapshot_block
from snapshots import event, read, segment, snapshot

from jobs.allocator import rules
from jobs.allocator.blocks import Block
from jobs.allocator.history import snapshot_steps
from jobs.allocator.replay import ledger_steps, replay
from jobs.allocator.rules import (
    MIB,
    DeviceFullError,
    Settings,
    round_request,
    segment_bytes,
)
from jobs.allocator.simulator import CachingAllocator
from jobs.allocator.steps import Ask, End
from jobs.meter.ledger import Ledger

A, B = 0x7F00_0000_0000, 0x7F10_0000_0000


def test_sizes_are_those_of_the_installed_torch() -> None:
    """Reference: torch's own header, ``c10/core/AllocatorConfig.h``."""
    header = Path(torch.__file__).parent / "include/c10/core/AllocatorConfig.h"
    text = header.read_text()
    sizes = {name: int(size) for name, size in re.findall(r"size_t (k\w+) = (\d+);", text)}
    large = re.search(r"large_segment_size_\{(\d+)\}", text)
    assert sizes["kMinBlockSize"] == rules.BLOCK
    assert sizes["kSmallSize"] == rules.SMALL_REQUEST
    assert sizes["kSmallBuffer"] == rules.SMALL_SEGMENT
    assert sizes["kMinLargeAlloc"] == rules.LARGE_REQUEST
    assert sizes["kRoundLarge"] == rules.SEGMENT_STEP
    assert int(large[1]) == rules.LARGE_SEGMENT


@pytest.mark.parametrize(
    ("size", "block", "taken"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 5, 11 * MIB + 512, 12 * MIB),
        (2**33 + 1, 2**33 + 512, 2**33 + 2 * MIB),
    ],
)
def test_rounding_of_requests_and_segments(size: int, block: int, taken: int) -> None:
    """Reference: PyTorch's notes on memory management and the allocator's constants."""
    assert round_request(size) == block
    assert segment_bytes(block) == taken


def test_small_requests_share_a_segment_and_large_ones_split_theirs() -> None:
    """Reference: ``should_split``: small pool from 512 bytes on, large pool above 1 MiB."""
    allocator = CachingAllocator()
    first, second = allocator.malloc(MIB), allocator.malloc(MIB)
    assert (allocator.memory.reserved_bytes, second.address) == (2 * MIB, first.end)
    large = allocator.malloc(3 * MIB)
    assert allocator.memory.reserved_bytes == 22 * MIB
    assert large.size == 3 * MIB
    rest = allocator.malloc(16 * MIB + 512)  # 17 MiB wait: a remainder of less than 1 MiB stays
    assert (allocator.memory.reserved_bytes, rest.size) == (22 * MIB, 17 * MIB)
    assert allocator.allocated_bytes == 22 * MIB


def test_neighbours_join_and_unsplit_segments_go_back() -> None:
    """Reference: ``try_merge_blocks`` and ``release_cached_blocks``."""
    allocator = CachingAllocator()
    blocks = [allocator.malloc(4 * MIB) for _ in range(5)]
    assert allocator.memory.reserved_bytes == 20 * MIB
    for index in (0, 2, 4):
        allocator.free(blocks[index])
    allocator.empty_cache()
    assert allocator.memory.reserved_bytes == 20 * MIB, "a split segment stays"
    other = allocator.malloc(5 * MIB)
    assert allocator.memory.reserved_bytes == 40 * MIB, "three holes of 4 MiB take no 5"
    allocator.free(blocks[1])
    assert allocator.malloc(12 * MIB).address == blocks[0].address, "the first three are one"
    allocator.free(other)
    allocator.empty_cache()
    assert allocator.memory.reserved_bytes == 20 * MIB


def test_streams_do_not_share() -> None:
    """Reference: pools are searched for the request's stream (``get_free_block``)."""
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MIB, stream=1))
    allocator.malloc(30 * MIB, stream=2)
    assert allocator.memory.reserved_bytes == 60 * MIB
    allocator.malloc(30 * MIB, stream=1)
    assert allocator.memory.reserved_bytes == 60 * MIB


def test_expandable_segments_grow_by_pages_and_give_pages_back() -> None:
    """Reference: ``map_block`` and ``unmap_block``: pages of 20 MiB, 2 MiB for small requests."""
    allocator = CachingAllocator(Settings(expandable=True))
    first = allocator.malloc(12 * MIB)
    assert allocator.memory.reserved_bytes == 20 * MIB
    second = allocator.malloc(12 * MIB)  # 8 MiB wait; one more page makes it
    assert (allocator.memory.reserved_bytes, second.address) == (40 * MIB, first.end)
    allocator.malloc(100)
    assert allocator.memory.reserved_bytes == 42 * MIB
    third = allocator.malloc(61 * MIB)
    assert allocator.memory.reserved_bytes == 102 * MIB
    allocator.free(second)
    allocator.free(third)
    allocator.empty_cache()  # first holds 12 MiB of the first page: four pages can go
    assert allocator.memory.reserved_bytes == 22 * MIB
    allocator.malloc(29 * MIB)
    assert allocator.memory.reserved_bytes == 22 * MIB + 40 * MIB


def test_a_growing_request_fragments_fixed_segments_and_not_expandable_ones() -> None:
    """Reference: what expandable segments are for; each step needs more than any hole has."""
    steps = []
    for i in range(20):
        steps += [Ask(i, (20 + 4 * i) * MIB), End(i)]
    fixed, expandable = replay(steps), replay(steps, Settings(expandable=True))
    assert fixed.peak_bytes == sum((20 + 4 * i) * MIB for i in range(20))
    assert expandable.peak_bytes == 100 * MIB
    assert fixed.allocated_peak_bytes == expandable.allocated_peak_bytes == 96 * MIB


def test_blocks_above_the_split_limit_stay_whole() -> None:
    """Reference: ``max_split_size``: no small request in a large block, none far larger."""
    allocator = CachingAllocator(Settings(max_split_bytes=64 * MIB))
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(30 * MIB)
    assert allocator.memory.reserved_bytes == 130 * MIB
    near = allocator.malloc(81 * MIB)
    assert (near.size, allocator.memory.reserved_bytes) == (100 * MIB, 130 * MIB)
    allocator.free(near)
    allocator.malloc(80 * MIB)  # the block is 20 MiB larger: too much
    assert allocator.memory.reserved_bytes == 210 * MIB


def test_what_waits_is_given_back_before_a_request_fails() -> None:
    """Reference: ``malloc``: a second try after ``release_cached_blocks``, counted as a retry."""
    allocator = CachingAllocator(Settings(device_bytes=110 * MIB, foreign_bytes=10 * MIB))
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    assert (allocator.memory.reserved_bytes, allocator.retries) == (80 * MIB, 1)
    with pytest.raises(DeviceFullError, match=f"{30 * MIB} bytes do not fit: {80 * MIB} of"):
        allocator.malloc(30 * MIB)
    assert allocator.retries == 2


def test_above_the_split_limit_only_as_much_is_given_back_as_is_needed() -> None:
    """Reference: ``release_available_cached_blocks``, largest first, before all is given back."""
    limits = Settings(device_bytes=200 * MIB, max_split_bytes=32 * MIB)
    allocator = CachingAllocator(limits)
    for block in [allocator.malloc(size * MIB) for size in (40, 60, 90)]:
        allocator.free(block)
    allocator.malloc(130 * MIB)
    assert (allocator.memory.reserved_bytes, allocator.retries) == (170 * MIB, 0)


def test_the_oldest_waiting_blocks_are_collected_first() -> None:
    """Reference: ``garbage_collect_cached_blocks``: ages counted in searches, above their mean."""
    limits = Settings(allowed_bytes=1000 * MIB, collect_above=0.5)
    allocator = CachingAllocator(limits)
    old, young = allocator.malloc(300 * MIB), allocator.malloc(290 * MIB)
    allocator.free(old)
    for _ in range(6):
        allocator.free(allocator.malloc(11 * MIB))
    allocator.free(young)
    allocator.malloc(310 * MIB)  # 601 MiB of 500 are held: the old block goes, the young one stays
    allocator.malloc(290 * MIB)
    assert allocator.memory.reserved_bytes in ((310 + 290 + 12) * MIB, (310 + 290) * MIB)
    assert allocator.retries == 0


def test_a_block_is_given_back_once() -> None:
    """Reference: the allocator's own check."""
    allocator = CachingAllocator()
    block = allocator.malloc(5)
    allocator.free(block)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(block)


SIZES = st.one_of(st.integers(0, 4096), st.integers(0, 3 * MIB), st.integers(0, 40 * MIB))
REQUESTS = st.lists(st.tuples(SIZES, st.integers(0, 1), st.integers(0, 7)), max_size=60)
ALL_SETTINGS = st.builds(
    Settings,
    device_bytes=st.none() | st.integers(60, 400).map(lambda n: n * MIB),
    allowed_bytes=st.none() | st.integers(40, 400).map(lambda n: n * MIB),
    expandable=st.booleans(),
    max_split_bytes=st.none() | st.integers(20, 60).map(lambda n: n * MIB),
    collect_above=st.sampled_from((0.0, 0.5)),
)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, ALL_SETTINGS)
def test_laws(requests: list[tuple[int, int, int]], limits: Settings) -> None:
    """Reference: blocks in use are disjoint, in memory that is held; all comes back in the end."""
    allocator = CachingAllocator(limits)
    live: list[Block] = []
    for size, stream, place in requests:
        try:
            live.append(allocator.malloc(size, stream))
        except DeviceFullError:
            assert allocator.memory.most is not None
        if live and place < 5:
            allocator.free(live.pop(place % len(live)))
        _check(allocator, live)
    for block in live:
        allocator.free(block)
    _check(allocator, [])
    allocator.empty_cache()
    assert allocator.memory.reserved_bytes == allocator.allocated_bytes == 0
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


def test_a_ledger_s_timeline_gives_its_own_peak_back() -> None:
    """Reference: small blocks are split to the byte, so that those in use are the working set."""
    ledger = Ledger()
    weight = torch.ones(64, 64)
    ledger.register("weight", weight)
    with ledger.call() as call:
        kept = [weight @ weight for _ in range(5)]
        for _ in range(3):
            kept = [(one + weight).relu() for one in kept]
    seen = call.result
    found = replay(ledger_steps(seen.allocations, [seen.baseline_bytes]))
    assert found.allocated_peak_bytes == seen.working_set_bytes + seen.baseline_bytes
    assert found.peak_bytes == 2 * MIB
    assert found.waste_bytes == 2 * MIB - found.allocated_peak_bytes
    del kept


def test_a_snapshot_s_history_gives_its_reserved_peak_back(tmp_path: Path) -> None:
    """Reference: the trace's own segment events, written by hand after the rules: 20 + 30 MiB."""
    trace = [
        event("segment_alloc", A, 20 * MIB),
        event("alloc", A, 3 * MIB),
        event("alloc", A + 3 * MIB, 4 * MIB),
        event("segment_alloc", B, 30 * MIB),
        event("alloc", B, 29 * MIB),
        event("free_requested", A, 3 * MIB),
        event("free_completed", A, 3 * MIB),
        event("alloc", A, 2 * MIB),
    ]
    segments = [
        segment(A, [snapshot_block(A, 2 * MIB, 2 * MIB), snapshot_block(A + 3 * MIB, 18 * MIB, 5)]),
        segment(B, [snapshot_block(B, 30 * MIB, 29 * MIB)]),
    ]
    found = replay(snapshot_steps(read(snapshot(segments, trace), tmp_path), 0))
    assert found.peak_bytes == found.end_bytes == 50 * MIB
    assert found.allocated_peak_bytes == 37 * MIB  # B's block keeps its last MiB
    assert found.retries == 0
