"""Timelines served again: a ledger's allocations, and a snapshot's history."""

from pathlib import Path

import torch
from snapshots import MIB, block, event, read, segment, snapshot

from jobs.allocator.history import snapshot_steps, stated_settings
from jobs.allocator.replay import ledger_steps, replay
from jobs.allocator.steps import Abandon, Ask, Empty, End, Finish, Use
from jobs.meter.ledger import Ledger

A, B = 0x7F00_0000_0000, 0x7F10_0000_0000


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
        segment(A, [block(A, 2 * MIB, 2 * MIB), block(A + 3 * MIB, 18 * MIB, 5)]),
        segment(B, [block(B, 30 * MIB, 29 * MIB)]),
    ]
    found = replay(snapshot_steps(read(snapshot(segments, trace), tmp_path), 0))
    assert found.peak_bytes == found.end_bytes == 50 * MIB
    assert found.allocated_peak_bytes == 37 * MIB  # B's block keeps its last MiB
    assert found.retries == 0


def test_what_a_history_says_of_streams_pools_and_the_cache_becomes_steps(tmp_path: Path) -> None:
    """Reference: by hand: an end that completes later, and segments of two pools given back."""
    private = {"pool_id": (0, 3)}
    trace = [
        event("alloc", A, 5),
        event("alloc", B, 7) | private,
        event("free_requested", A, 5),
        event("free_requested", B, 7) | private,
        event("free_completed", B, 7) | private,
        event("segment_free", B, 2 * MIB) | private,
        event("free_completed", A, 5),
        event("segment_free", A, 2 * MIB),
        event("segment_free", A + 2 * MIB, 2 * MIB),
    ]
    taken = read(snapshot([], trace), tmp_path)
    witness = -1 - A
    assert list(snapshot_steps(taken, 0)) == [
        Ask(A, 5),
        Ask(B, 7, 0, (0, 3)),
        Use(A, witness),
        End(A),
        End(B),
        Abandon((0, 3)),
        Finish(witness),
        Empty(),
    ]


def test_settings_are_read_from_what_a_snapshot_states() -> None:
    """Reference: ``allocator_settings`` as torch 2.14.1 tells them, which heeds no space in them.

    Before 2.2 there are none.
    """
    stated = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:40 , max_non_split_rounding_mb : 60",
        "max_split_size": 64 * MIB,
        "expandable_segments": True,
        "roundup_power2_divisions": {"1": 2, "2": 4},
    }
    found = stated_settings(stated)
    assert (found.large_segment_bytes, found.max_slack_bytes) == (40 * MIB, 60 * MIB)
    assert (found.max_split_bytes, found.expandable) == (64 * MIB, True)
    assert found.divisions == (2, 4)
    plain = stated_settings({})
    senseless = {"PYTORCH_CUDA_ALLOC_CONF": f"large_segment_size_mb:{'9' * 5000}"}
    assert stated_settings(senseless).large_segment_bytes == 9_999_999 * MIB
    assert stated_settings({"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:1"}) == plain
    assert plain == stated_settings({"max_split_size": -1, "PYTORCH_CUDA_ALLOC_CONF": ""})
    assert (plain.large_segment_bytes, plain.max_split_bytes) == (20 * MIB, None)
    laughs: list[object] = ["large_segment_size_mb:40"]
    for _ in range(60):
        laughs = [laughs] * 10
    assert stated_settings({"PYTORCH_CUDA_ALLOC_CONF": laughs}) == plain
