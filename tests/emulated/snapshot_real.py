"""Writes memory snapshots with PyTorch's own `_dump_snapshot`, and what torch says of the memory.

Run under `tests/emulated/run` with a folder and names of `CASES`: NAME.pickle and NAME.json each.
``EMULATED_LAG=1`` keeps streams behind, so that a block is waited for as the snapshot is taken.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

MIB = 2**20
CASES: dict[str, dict[str, Any]] = {
    "python": {"stacks": "python"},
    "cpp": {"stacks": "all"},
    "alloc": {"context": "alloc", "stacks": "python"},
    "state_stacks": {"context": "state", "stacks": "python"},
    "no_stacks": {"context": None},
    "no_history": {"enabled": "state", "stacks": "python"},
    "cut": {"stacks": "python", "max_entries": 40},
    "pinned": {"stacks": "python", "record_pinned_host_memory": True},
    "annotated": {"stacks": "python", "global_record_annotations": True},
}
"""What `_record_memory_history` is told."""


def empty(nbytes: int) -> torch.Tensor:
    """Return a tensor of so many bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def work() -> list[Any]:
    """Use two streams, a private pool, notes and the cache; fail once; return what stays."""
    other = torch.cuda.Stream()
    kept = [empty(3 * MIB * n + 1) for n in range(1, 6)]
    kept += [empty(1000 * n) for n in range(1, 30)]
    del kept[1], kept[2]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool), torch.profiler.record_function("in the pool"):
        kept += [empty(25 * MIB), pool]
        empty(50 * MIB)
    with contextlib.suppress(torch.OutOfMemoryError):
        empty(200 * 2**30)
    with torch.cuda.stream(other):
        kept.append(empty(40 * MIB))
    torch.cuda.memory._set_memory_metadata("the largest")
    empty(300 * MIB)
    torch.cuda.memory._set_memory_metadata("")
    torch.cuda.memory._annotate_tensor(kept[0], "the first")
    torch.cuda.empty_cache()
    used = empty(70 * MIB)
    used.record_stream(other)
    del used
    kept.append(torch.empty(3 * MIB, dtype=torch.uint8).pin_memory())
    return kept


def figures() -> dict[str, int]:
    """Return what torch says is held, and was at most."""
    stats = torch.cuda.memory_stats()
    names = ("allocated", "active", "reserved")
    now = {name: stats[f"{name}_bytes.all.current"] for name in names}
    return now | {f"{name}_peak": stats[f"{name}_bytes.all.peak"] for name in names}


def write(name: str, folder: Path) -> None:
    """Write one case."""
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.empty_cache()
    older = [empty(5 * MIB), empty(700)]
    torch.cuda.memory._record_memory_history(**CASES[name])
    torch.cuda.reset_peak_memory_stats()
    began = figures()
    kept = work()
    told = {"began": began, "ended": figures(), "older": len(older), "kept": len(kept)}
    torch.cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))
    (folder / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    torch.cuda.synchronize()


if __name__ == "__main__":
    for wanted in sys.argv[2:]:
        write(wanted, Path(sys.argv[1]))
