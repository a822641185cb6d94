"""Snapshots made by hand, read back: rows, peak, working set, timeline, stacks and terms."""

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import EVENT_KEYS, HERE, MIB, block, event, frame, read, segment, snapshot

from jobs.allocator.rules import round_request as rounded
from jobs.snapshot.attribution import Sizes, attribute, family_of
from jobs.snapshot.held import Group, held, live_groups
from jobs.snapshot.history import history
from jobs.snapshot.stream import SnapshotError
from jobs.snapshot.tables import Frame, Snapshot
from planner.local import localize
from planner.model import Model
from planner.step import Step
from planner.topology import Topology

A, B, C = 0x7F00_0000_0000, 0x7F00_1000_0000, 0x7F00_2000_0000


def story(torch: str) -> dict[str, Any]:
    """C is older than the history; A and B live together; A is gone when the snapshot is taken."""
    kernel = [frame("/site-packages/megatron/core/transformer/moe/experts.py", 88), *HERE]
    trace = [
        event("segment_alloc", A, 20 * MIB, HERE, torch),
        event("alloc", A, 3 * MIB + 1, kernel, torch, 1),
        event("segment_alloc", B, 20 * MIB, None, torch, 2),
        event("alloc", B, 5 * MIB, None, torch, 3),
        event("free_requested", A, 3 * MIB + 1, HERE, torch, 4),
        event("free_completed", A, 3 * MIB + 1, HERE, torch, 5),
        event("segment_free", A, 20 * MIB, None, torch, 6),
        event("alloc", A, 1024, kernel, torch, 7),
        event("oom", 7 * MIB, 90 * MIB, None, torch, 2_000_000),
    ]
    left = block(B + 5 * MIB, 15 * MIB, 0, "inactive")
    segments = [
        segment(B, [block(B, 5 * MIB, 5 * MIB, frames=kernel), left]),
        segment(C, [block(C, 2 * MIB, 2 * MIB - 5)]),
        segment(A, [block(A, 1024, 1024), block(A + 1024, 1024, 9, "active_pending_free")]),
    ]
    return snapshot(segments, trace, [], torch=torch)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("torch", EVENT_KEYS)
def test_peak_and_working_set_of_every_version(torch: str, protocol: int, tmp_path: Path) -> None:
    """Reference: by hand; at the peak A (3 MiB + 1 byte, whole blocks), B 5 MiB and C 2 MiB."""
    taken = read(story(torch), tmp_path, protocol)
    past = history(taken, 0)
    assert past is not None
    a = 3 * MIB + 512
    assert past.working_set_bytes == a + 5 * MIB
    assert past.baseline_bytes == past.older_bytes == 2 * MIB
    assert past.peak_bytes == a + 7 * MIB
    assert past.peak_event == 3
    # C's segment and the two of the history, all three at once before A's goes.
    assert past.reserved_peak_bytes == 42 * MIB + 2048
    assert past.ooms == ((90 * MIB, 7 * MIB),)
    assert past.earlier == 0
    assert past.seconds == (0 if torch == "2.1" else 2.0)
    assert [group.nbytes for group in past.at_peak] == [5 * MIB, a]
    assert taken.stacks.frames_of(past.at_peak[1].stack)[1:] == [Frame(**f) for f in HERE]
    now = held(taken, 0)
    assert now.allocated_bytes == 7 * MIB + 1024
    assert now.requested_bytes == 7 * MIB - 5 + 1024
    assert now.pending_bytes == 1024
    assert now.reserved_bytes == 22 * MIB + 2048
    assert bool(taken.settings) == (torch != "2.1")
    assert taken.devices == (0,)


def test_an_empty_history_is_said_to_be_one(tmp_path: Path) -> None:
    """Reference: without a history nothing tells what was live before."""
    taken = read(snapshot([segment(C, [block(C, 2 * MIB, 2 * MIB)])], [], []), tmp_path)
    assert history(taken, 0) is None
    assert history(taken, 1) is None
    assert [group.nbytes for group in live_groups(taken, 0)] == [2 * MIB]


def test_devices_are_kept_apart(tmp_path: Path) -> None:
    """Reference: traces lie in the order of devices."""
    traces = [[event("alloc", A, MIB)], [event("alloc", A, 2 * MIB), event("alloc", B, MIB)]]
    taken = read(snapshot([segment(C, [block(C, MIB, MIB)], device=1)], *traces), tmp_path)
    assert taken.devices == (0, 1)
    pasts = [history(taken, device) for device in (0, 1)]
    assert [(past.peak_bytes, past.peak_event) for past in pasts] == [(MIB, 0), (4 * MIB, 1)]


Steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 4 * MIB), st.booleans()), min_size=1, max_size=60
)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 5), Steps, st.sampled_from(("both", "requested", "completed")))
def test_replay_agrees_with_a_plain_one(
    older: int, steps: list[tuple[int, int, bool]], recorded: str
) -> None:
    """Reference: a second implementation: live sums after each step, kept in a dict."""
    live = {C + n * 16 * MIB: 1000 * (n + 1) for n in range(older)}
    old, trace, totals, own = set(live), [], [sum(map(rounded, live.values()))], [0]
    for place, size, _ in steps:
        address = C + place * 16 * MIB
        gone = live.pop(address, None)
        if gone is None:
            live[address] = size
            trace.append(event("alloc", address, size))
        else:
            old.discard(address)
            kinds = ("free_requested", "free_completed")
            chosen = {"both": kinds, "requested": kinds[:1], "completed": kinds[1:]}[recorded]
            trace += [event(kind, address, gone) for kind in chosen]
        totals.append(sum(map(rounded, live.values())))
        own.append(sum(rounded(held) for at, held in live.items() if at not in old))
    segments = [segment(at, [block(at, rounded(size), size)]) for at, size in live.items()]
    past = history(_read(snapshot(segments, trace)), 0)
    if not any(one["action"] == "alloc" for one in trace):
        assert past is None
        return
    assert past.baseline_bytes == totals[0]
    assert past.peak_bytes == max(totals)
    assert past.working_set_bytes == max(own)
    assert max(live for _, live, _ in past.timeline) == max(totals[1:])
    assert len(past.timeline) <= 96
    assert past.peak_bytes == past.older_bytes + sum(group.nbytes for group in past.at_peak)


def _read(value: object) -> Snapshot:
    with tempfile.TemporaryDirectory() as folder:
        return read(value, Path(folder))


def test_blocks_without_an_address_lie_one_behind_the_other(tmp_path: Path) -> None:
    """Reference: a segment's blocks are listed in order and fill it."""
    told = [block(A, MIB, MIB), block(A + MIB, 3 * MIB, 9, "inactive"), block(A + 4 * MIB, 512, 5)]
    silent = [{key: one[key] for key in one if key != "address"} for one in told]
    trace = [event("alloc", A + 4 * MIB, 5)]
    both = [
        read(snapshot([segment(A, blocks)], trace), tmp_path).blocks.address
        for blocks in (told, silent)
    ]
    assert both[0] == both[1]
    seen = history(read(snapshot([segment(A, silent)], trace), tmp_path), 0)
    assert (seen.baseline_bytes, seen.working_set_bytes) == (MIB, 512)


LAUGHS: list[object] = ["lol"]
for _ in range(60):
    LAUGHS = [LAUGHS] * 10
"""A few hundred bytes in a pickle, and 10^60 words when it is written out."""

WRONG = {
    "no snapshot": ({"weights": [1, 2]}, "no segments and device_traces"),
    "a list of tensors": ([1], "no segments and device_traces"),
    "torch before 2.1": (
        snapshot([segment(A, [{"size": 5, "state": "inactive", "history": []}])]),
        "before 2.1",
    ),
    "a state that does not exist": (
        snapshot([segment(A, [block(A, 512, 5, "burning")])]),
        "state 'burning'",
    ),
    "a size that is none": (snapshot([], [event("alloc", A, -5)]), "size is -5"),
    "an address that is text": (snapshot([], [event("alloc", "here", 5)]), "addr is 'here'"),
    "frames that are none": (snapshot([], [event("alloc", A, 5, [7])]), "frames"),
    "an event in a segment": (snapshot([event("alloc", A, 5)]), "segments lie outside"),
    "a segment in a trace": (snapshot([], [segment(A, [])]), "segments lie outside"),
    "one event twice": (snapshot([], [event("alloc", A, 5)] * 2), "outside the devices' traces"),
    "text in a trace": (snapshot([], ["alloc"]), "no event"),
    "settings that are text": (
        {**snapshot([], []), "allocator_settings": "abc"},
        "allocator_settings is no dict",
    ),
    "a device before the host": (snapshot([segment(A, [], device=-5)]), "device is -5"),
    "a size of a megabyte of text": (
        snapshot([], [event("alloc", A, "9" * MIB)]),
        r"size is '9+\.\.\.9+', which",
    ),
    "a size that is a list without end": (
        snapshot([], [event("alloc", A, LAUGHS)]),
        "size is a list,",
    ),
    "an action that is one": (snapshot([], [event(LAUGHS, A, 5)]), "action is a list,"),
    "a state that is one": (snapshot([segment(A, [block(A, 5, 5, LAUGHS)])]), "state is a list,"),
    "traces that are no list": ({"segments": [], "device_traces": "none"}, "no list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_snapshot_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    """Reference: the documented layout."""
    value, reason = WRONG[name]
    with pytest.raises(SnapshotError, match=reason):
        read(value, tmp_path)


MEASURE = """
import re, sys
from pathlib import Path
from jobs.snapshot.read import read_snapshot
status = Path("/proc/self/status")  # ru_maxrss may be that of the process that started this one
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024
before = peak()
taken = read_snapshot(Path(sys.argv[1]))
print(len(taken.events), len(taken.stacks.packed), peak() - before)
"""


@pytest.mark.parametrize(("count", "depth"), [(40_000, 60), (240_000, 0)])
def test_memory_stays_within_twice_the_file(count: int, depth: int, tmp_path: Path) -> None:
    """Reference: the aim, twice the file's size; every stack differs, or there are none at all."""
    frames = [frame(f"/site-packages/package/module{i}.py", i) for i in range(2000)]
    trace = []
    for i in range(count):
        stack = [frames[(i + j * (i // 2000 + 1)) % 2000] for j in range(depth)] or None
        trace.append(event("alloc", A + i * MIB, i + 1, stack, step=i))
    path = tmp_path / "big.pickle"
    path.write_bytes(pickle.dumps(snapshot([], trace)))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    events, stacks, grown = map(int, done.stdout.split())
    assert events == count
    assert stacks == (count + 1 if depth else 1)
    assert path.stat().st_size > 10 * MIB
    assert grown < 2 * path.stat().st_size


MODEL = Model(
    name="small",
    num_layers=2,
    hidden=256,
    vocab=512,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    num_experts=8,
    top_k=2,
    expert_hidden=96,
)


def test_terms_are_told_by_frame_and_size() -> None:
    """Reference: shapes of the planner's terms: (R, 2F) and (R, H) bf16, (T, E) fp32."""
    local = localize(MODEL, Topology(), Step(lora_rank=8))
    tokens, rows = 1000, 1990
    stacks_read = _read(
        snapshot(
            [],
            [
                event("alloc", A, rows * 2 * 96 * 2, [frame("/x/jobs/model/experts.py")]),
                event("alloc", B, rows * 256 * 2, [frame("/x/jobs/model/experts.py"), *HERE]),
                event("alloc", C, tokens * 8 * 4, [frame("/m/core/transformer/moe/router.py")]),
                event("alloc", C + MIB, 77, [frame("/m/core/transformer/moe/router.py")]),
                event("alloc", C + 2 * MIB, 12345, [frame("??", 0, "at::empty")]),
            ],
        )
    )
    past = history(stacks_read, 0)
    sizes = Sizes(local, tokens, frozenset({rows}))
    found = attribute(past.at_peak, stacks_read.stacks, sizes)
    assert found == {
        "experts.*": rounded(rows * 256 * 2),  # inputs and FC2 outputs have one shape
        "experts.fc1_outputs": rounded(rows * 192 * 2),
        "router.scores": rounded(tokens * 8 * 4),
        "unattributed": rounded(12345),
        "router.*": rounded(77),
    }


def test_the_innermost_known_frame_gives_the_family() -> None:
    """Reference: a kernel of the experts is called by them; python frames around say nothing."""
    kernel = Frame("/a/jobs/model/kernels/grouped_matmul.py", 30, "forward")
    layer = Frame("/b/megatron/core/transformer/moe/router.py", 3, "forward")
    assert family_of([Frame("/torch/nn/modules/module.py", 1, "_call"), kernel, layer]) == "experts"
    assert family_of([Frame("/torch/nn/modules/module.py", 1, "_call")]) is None
    assert attribute([Group(0, 512, 2, 512)], _read(snapshot([])).stacks, Sizes()) == {
        "unattributed": 1024
    }
