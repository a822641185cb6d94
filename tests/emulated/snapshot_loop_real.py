"""Has the CUDA loop keep the histories of calls: a folder, and how many events each may hold."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from jobs import cuda_live


def main() -> None:
    """Keep two calls' histories; of each call a tensor stays."""
    cuda_live.HISTORY_ENTRIES = int(sys.argv[2])
    loop = object.__new__(cuda_live.CudaLoop)
    loop.spec = SimpleNamespace(meter=SimpleNamespace(snapshot=True))
    loop.snapshots = Path(sys.argv[1])
    kept = []
    for index in range(2):
        loop._begin_history()
        kept.append(torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda"))
        for _ in range(10):
            torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda")
        sys.stdout.write(loop._end_history(index) + "\n")


if __name__ == "__main__":
    main()
