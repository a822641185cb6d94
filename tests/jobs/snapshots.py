"""Memory snapshots made by hand in the documented format (torch/cuda/memory.py, ``_snapshot``)."""

import pickle
import traceback
from pathlib import Path
from typing import Any

from jobs.snapshot.read import read_snapshot
from jobs.snapshot.tables import Snapshot

MIB = 2**20
HERE = [
    {"filename": frame.filename, "line": frame.lineno, "name": frame.name}
    for frame in reversed(traceback.extract_stack())
]
"""A real stack, innermost frame first: the import of this module."""

EVENT_KEYS = {
    "2.1": {},
    "2.3": {"time_us": 1_700_000_000_000_000},
    "2.6": {"time_us": 1_700_000_000_000_000, "compile_context": "N/A"},
    "2.13": {
        "time_us": 1_700_000_000_000_000,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (0, 0),
    },
}
"""What an event holds beside action, address, size, stream and frames, by torch version."""


def frame(filename: str, line: int = 1, name: str = "forward") -> dict[str, Any]:
    """Return a frame."""
    return {"filename": filename, "line": line, "name": name}


def event(
    action: str,
    address: int,
    size: int,
    frames: list[dict[str, Any]] | None = None,
    torch: str = "2.13",
    step: int = 0,
) -> dict[str, Any]:
    """Return one event of a trace; ``frames=None``: without the key, as if none were recorded."""
    more = dict(EVENT_KEYS[torch])
    if step and "time_us" in more:
        more["time_us"] += step
    where = "device_free" if action == "oom" else "addr"
    found = {"action": action, where: address, "size": size, "stream": 0, **more}
    return found if frames is None else {"frames": frames, **found}


def block(
    address: int,
    size: int,
    requested: int,
    state: str = "active_allocated",
    frames: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return one block of a segment."""
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": frames or [],
    }


def segment(address: int, blocks: list[dict[str, Any]], device: int = 0) -> dict[str, Any]:
    """Return a segment of consecutive blocks."""
    total = sum(one["size"] for one in blocks)
    used = sum(one["size"] for one in blocks if one["state"] == "active_allocated")
    return {
        "device": device,
        "address": address,
        "total_size": total,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def snapshot(
    segments: list[dict[str, Any]], *traces: list[dict[str, Any]], torch: str = "2.13"
) -> dict[str, Any]:
    """Return a snapshot as that version of torch makes it."""
    found: dict[str, Any] = {"segments": segments, "device_traces": list(traces)}
    if torch != "2.1":
        found["allocator_settings"] = {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "roundup_power2_divisions": {"1": 0, "2": 0},
        }
        found["external_annotations"] = [
            {"name": "step", "stage": "START", "device": 0, "time_us": 1_700_000_000_000_000}
        ]
    return found


def read(value: object, folder: Path, protocol: int = 4) -> Snapshot:
    """Write a snapshot and read it back."""
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    return read_snapshot(path)
