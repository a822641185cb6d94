"""Real ranks of which the last one fails in a named way, in the forward of a call."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import torch

WORDS = {
    "device": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0"),
    "host": MemoryError("unable to allocate 8 GiB"),
    "nccl": torch.distributed.DistBackendError(
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\nncclUnhandledCudaError: Call to "
        "CUDA function failed.\nLast error:\nFailed to CUDA calloc async 24 bytes"
    ),
}


def main(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Fail as the workload's name says, ``KIND CALL``; the other ranks wait in a collective."""
    from jobs import rank
    from jobs.live import LiveLoop
    from jobs.spec import CellSpec

    kind, call = CellSpec.read(spec_path).workload.name.split()
    run = LiveLoop._run

    def failing(self: Any, index: int, decision: Any) -> Any:
        if kind == "device" and index == 0:
            _connect(out / f"connected.{self.rank}.json")
        if index == int(call) and self.rank == int(os.environ["WORLD_SIZE"]) - 1:
            last = self.model.decoder.layers[-1]
            last.register_forward_pre_hook(lambda *_: _fail(kind))
        return run(self, index, decision)

    LiveLoop._run = failing
    rank.main(spec_path, out, attempt, rendezvous)


def _connect(path: Path) -> None:
    """Make the communicators as a CUDA rank does, each reading of the device 10 bytes more."""
    from jobs.backend import cuda

    used = itertools.count(0, 10)
    torch.cuda.synchronize = lambda *_: None
    path.write_text(json.dumps(cuda.connect(torch.device("cpu"), lambda: next(used))))


def _fail(kind: str) -> None:
    raise WORDS[kind]
