"""Plays lists of steps on PyTorch's own caching allocator and tells what it says after each.

Run under `tests/emulated/run` with the settings in ``PYTORCH_ALLOC_CONF``; ``EMULATED_LAG=1`` keeps
streams behind until they are waited for. Standard input and output are JSON::

    {"fraction": 1.0, "lists": [[["ask", key, bytes, stream, pool], ["end", key], …], …]}
    {"torch": …, "settings": {…}, "capacity": …, "answers": [{"figures": [[…], …], …}, …]}
"""

import contextlib
import json
import sys
from typing import Any

import torch

STREAMS = 4
"""Streams that a list may name; 0 is the default stream."""


def figures() -> list[int]:
    """Return reserved, allocated and active bytes, retries and failures."""
    stats = torch.cuda.memory_stats_as_nested_dict()
    return [
        *(stats[f"{name}_bytes"]["all"]["current"] for name in ("reserved", "allocated", "active")),
        stats["num_alloc_retries"],
        stats["num_ooms"],
    ]


class Real:
    """One list's state."""

    def __init__(self, streams: list[torch.cuda.Stream]) -> None:
        self.streams = streams
        self.numbers = {stream.cuda_stream: number for number, stream in enumerate(streams)}
        self.live: dict[int, torch.Tensor] = {}
        self.pools: dict[int, torch.cuda.MemPool] = {}
        self.names: dict[Any, int] = {}  # of pools, by the number that torch gives them

    def play(self, step: list[Any]) -> None:
        """Play a step; a full device is an answer as any other."""
        kind, *values = step
        match kind:
            case "ask":
                self._ask(*values)
            case "end":
                self.live.pop(values[0], None)
            case "use":
                if values[0] in self.live:
                    self.live[values[0]].record_stream(self.streams[values[1]])
            case "finish":
                if values[0] is None:
                    torch.cuda.synchronize()
                else:
                    self.streams[values[0]].synchronize()
            case "empty":
                torch.cuda.empty_cache()
            case "abandon":
                del self.pools[values[0]]

    def _ask(self, key: int, nbytes: int, stream: int, pool: int | None) -> None:
        if pool is not None and pool not in self.pools:
            self.pools[pool] = torch.cuda.MemPool()
            self.names[self.pools[pool].id] = pool
        inside = (
            contextlib.nullcontext() if pool is None else torch.cuda.use_mem_pool(self.pools[pool])
        )
        full = contextlib.suppress(torch.OutOfMemoryError)
        with torch.cuda.stream(self.streams[stream]), inside, full:
            self.live[key] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def layout(self) -> list[Any]:
        """Return every segment: stream, kind, pool, and its blocks' bytes, asked and states."""
        found = []
        for segment in torch.cuda.memory._snapshot()["segments"]:
            blocks = [
                [block["size"], block["requested_size"], block["state"]]
                for block in segment["blocks"]
            ]
            pool = self.names.get(tuple(segment["segment_pool_id"]))
            stream = self.numbers[segment["stream"]]
            found.append([stream, segment["segment_type"], pool, blocks])
        return found


def play(steps: list[Any], streams: list[torch.cuda.Stream]) -> dict[str, Any]:
    """Play one list on an allocator that holds nothing."""
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
    real = Real(streams)
    told = []
    for step in steps:
        real.play(step)
        told.append(figures())
    peak = torch.cuda.max_memory_reserved()
    answer = {"figures": told, "peak": peak, "layout": real.layout()}
    real.live.clear()
    real.pools.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert not torch.cuda.memory_reserved(), "the list has left something behind"
    return answer


def main() -> None:
    """Play what standard input holds."""
    asked = json.load(sys.stdin)
    torch.cuda.init()
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(STREAMS - 1))]
    free, total = torch.cuda.mem_get_info()
    if asked.get("fraction", 1.0) < 1:
        torch.cuda.set_per_process_memory_fraction(asked["fraction"])
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    answers = [play(steps, streams) for steps in asked["lists"]]
    json.dump(
        {
            "torch": torch.__version__,
            "settings": settings,
            "capacity": free,
            "total": total,
            "answers": answers,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
