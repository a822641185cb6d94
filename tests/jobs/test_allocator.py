"""The simulated caching allocator: its published rules, one by one."""

import re
from pathlib import Path

import pytest
import torch

from jobs.allocator import rules
from jobs.allocator.replay import replay
from jobs.allocator.rules import (
    MIB,
    DeviceFullError,
    Settings,
    round_request,
    segment_bytes,
)
from jobs.allocator.simulator import CachingAllocator
from jobs.allocator.steps import Ask, End


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


def test_a_block_that_a_stream_still_uses_waits_for_it() -> None:
    """Reference: ``recordStream``, ``insert_events``, ``process_events``: noticed by a request."""
    allocator = CachingAllocator()
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 0)  # its own: no matter
    allocator.record_stream(block, 7)
    allocator.free(block)
    assert (allocator.allocated_bytes, allocator.active_bytes) == (0, 30 * MIB)
    second = allocator.malloc(30 * MIB)
    assert allocator.memory.reserved_bytes == 60 * MIB
    allocator.finish(3)
    allocator.finish(7)
    assert allocator.active_bytes == 60 * MIB
    allocator.malloc(30 * MIB)
    assert allocator.memory.reserved_bytes == 60 * MIB
    allocator.record_stream(second, 7)
    allocator.free(second)
    allocator.empty_cache()  # waits
    assert allocator.memory.reserved_bytes == allocator.active_bytes == 30 * MIB


def test_a_private_pool_shares_nothing_and_is_kept_until_it_is_given_up() -> None:
    """Reference: ``PrivatePool``; ``release_cached_blocks`` empties pools of which none is left."""
    allocator = CachingAllocator()
    inside = allocator.malloc(30 * MIB, pool="own")
    allocator.free(inside)
    outside = allocator.malloc(30 * MIB)
    assert allocator.memory.reserved_bytes == 60 * MIB
    allocator.free(outside)
    allocator.empty_cache()
    assert allocator.memory.reserved_bytes == 30 * MIB
    kept = allocator.malloc(10, pool="own")
    allocator.abandon("own")
    allocator.abandon("never used")
    assert allocator.memory.reserved_bytes == 2 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.memory.reserved_bytes == 0


def test_requests_are_rounded_to_parts_of_a_power_of_two() -> None:
    """Reference: the example in ``roundup_power2_next_division``: 1200 of four parts is 1280."""
    four = (4,) * rules.DIVISION_STEPS
    assert round_request(1200, four) == 1536, "up to 512 bytes a part, blocks are the rule"
    assert round_request(1200 * 1024, four) == 1280 * 1024
    assert round_request(2**20, four) == 2**20
    assert round_request(2**37 + 1, (0,) * 15 + (2,)) == 2**37 + 2**36
    assert round_request(2**37 + 1, (2,) * 15 + (0,)) == 2**37 + 512


def test_a_block_is_given_back_once() -> None:
    """Reference: the allocator's own check."""
    allocator = CachingAllocator()
    block = allocator.malloc(5)
    allocator.free(block)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(block)


def test_a_request_of_any_size_is_served_where_memory_has_no_end() -> None:
    """Reference: sizes in a snapshot have 63 bits; a hostile one names the largest."""
    largest = 2**63 - 1
    for expandable in (False, True):
        found = replay([Ask(0, largest)], Settings(expandable=expandable))
        assert 0 <= found.peak_bytes - largest < 20 * MIB
