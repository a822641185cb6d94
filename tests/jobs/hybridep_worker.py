"""One of two ranks that use the HybridEP reference directly, with uneven and with no tokens.

``python hybridep_worker.py RANK FOLDER`` writes ``FOLDER/result.RANK.json``.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from jobs.backend import cpu
from jobs.hybridep import HybridEPBuffer
from planner.topology import Topology

HIDDEN, EXPERTS, LOCAL = 256, 8, 4


class Allocated(TorchDispatchMode):
    """Shapes, dtypes and bytes of the storages that a dispatch mode sees being made."""

    def __init__(self):
        super().__init__()
        self.made = []
        self.storages = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.made.append([list(out.shape), str(out.dtype)])
            self.storages.append(out.untyped_storage().data_ptr())
        return out


def draw(tokens, rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * tokens + rank)
    hidden = torch.randn(tokens, HIDDEN, generator=generator).to(dtype)
    scores = torch.randn(tokens, EXPERTS, generator=generator)
    routing_map = torch.zeros(tokens, EXPERTS, dtype=torch.bool)
    routing_map.scatter_(1, scores.topk(3, 1).indices, True)
    return hidden, routing_map, scores.sigmoid() * routing_map


def expected_rows(everyone, rank):
    """Rows of this rank's experts: by expert, then by rank, then by token."""
    rows, row_probs, counts = [], [], []
    for expert in range(rank * LOCAL, (rank + 1) * LOCAL):
        picked = [(h[m[:, expert]], p[m[:, expert], expert]) for h, m, p in everyone]
        rows.extend(h for h, _ in picked)
        row_probs.extend(p for _, p in picked)
        counts.append(sum(len(h) for h, _ in picked))
    return torch.cat(rows), torch.cat(row_probs), counts


def round_trip(buffer, rank, tokens):
    """Dispatch and combine; return how far each result is from its definition."""
    everyone = [draw(count, source) for source, count in enumerate(tokens)]
    hidden, routing_map, probs = everyone[rank]
    with Allocated() as seen:
        rows, row_probs, _, counts, handle = buffer.dispatch_with_permute(
            hidden=hidden, routing_map=routing_map, probs=probs
        )
    wanted = expected_rows(everyone, rank)
    back, back_probs = buffer.combine_with_unpermute(rows, row_probs, handle)
    again = buffer.dispatch_with_permute(hidden=hidden, handle=handle)[0]
    copies = routing_map.sum(1, keepdim=True)
    buffers = (buffer._token, buffer._prob, buffer._scaling_factor, buffer._routing_map)
    return {
        "exact": [
            torch.equal(rows, wanted[0]),
            torch.equal(row_probs, wanted[1]),
            counts.tolist() == wanted[2],
            torch.equal(again, rows),
            torch.equal(back_probs, probs),
        ],
        "sum": bool(torch.allclose(back, hidden * copies, rtol=1e-6)),
        "rows": len(rows),
        "made": seen.made,
        "buffers_seen": any(b.untyped_storage().data_ptr() in seen.storages for b in buffers),
        "capacity": buffer.capacity,
        "held_bytes": buffer.held_bytes,
        "summed": sum(b.nbytes for b in buffers),
        "handle": {
            name: [list(value.shape), str(value.dtype)]
            for name, value in vars(handle).items()
            if isinstance(value, torch.Tensor)
        },
    }


def main(rank, folder):
    torch.set_num_threads(1)
    cpu.start(rank, 2, Topology(dp=2, ep=2), f"file://{folder}/rendezvous")
    buffer = HybridEPBuffer(dist.group.WORLD, HIDDEN, 5, LOCAL)
    results = {"constructed": {"capacity": buffer.capacity, "held_bytes": buffer.held_bytes}}
    for name, tokens in {
        "uneven": (5, 9),
        "none on rank 1": (70, 0),
        "larger": (3, 700),
        "small again": (5, 9),
    }.items():
        results[name] = round_trip(buffer, rank, tokens)
    (folder / f"result.{rank}.json").write_text(json.dumps(results))
    cpu.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
