"""What a snapshot that torch has written must be read as, given what torch said of the memory."""

from typing import Any

from jobs.allocator.history import snapshot_steps, stated_settings
from jobs.allocator.replay import replay
from jobs.allocator.rules import round_request
from jobs.snapshot.held import held
from jobs.snapshot.history import history
from jobs.snapshot.tables import Snapshot

MIB = 2**20


def check(snapshot: Snapshot, told: dict[str, Any]) -> None:
    """Compare with the figures of tests/emulated/snapshot_real.py."""
    began, ended = told["began"], told["ended"]
    now = held(snapshot, 0)
    assert now.allocated_bytes == ended["allocated"]
    assert now.reserved_bytes == ended["reserved"]
    used = round_request(70 * MIB, stated_settings(snapshot.settings).divisions)
    assert now.pending_bytes == ended["active"] - ended["allocated"] == used
    past = history(snapshot, 0)
    if past is None:
        return
    assert past.reserved_peak_bytes == ended["reserved_peak"]
    if past.whole is not False:
        _check_whole(snapshot, began, ended)


def _check_whole(snapshot: Snapshot, began: dict[str, int], ended: dict[str, int]) -> None:
    past = history(snapshot, 0)
    assert past is not None
    assert past.baseline_bytes == began["allocated"]
    settings = stated_settings(snapshot.settings)
    assert [asked for asked, _ in past.ooms] == [round_request(200 * 2**30, settings.divisions)]
    largest = past.at_peak[0]
    assert (largest.requested, largest.count) == (300 * MIB, 1)
    replayed = replay(snapshot_steps(snapshot, 0), settings)
    assert replayed.allocated_peak_bytes == ended["allocated_peak"]
    assert replayed.peak_bytes == ended["reserved_peak"]
    assert replayed.end_bytes == ended["reserved"]
    # What a segment of fixed size keeps beyond a request of 1 MiB or more is allocated with it.
    slack = 0 if settings.expandable else MIB * len(past.at_peak)
    assert 0 <= ended["allocated_peak"] - past.peak_bytes <= slack
