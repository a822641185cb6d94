"""Has the CUDA loop keep the histories of calls: a folder, then how many events each may hold."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from jobs.cuda import live


def keep_histories(folder: Path, entries: int) -> list[str]:
    """Keep two calls' histories; of each call a tensor stays. Return what the loop says of them."""
    live.HISTORY_ENTRIES = entries
    loop = object.__new__(live.CudaLoop)
    loop.spec = SimpleNamespace(meter=SimpleNamespace(snapshot=True))
    loop.snapshots = folder / str(entries)
    kept, told = [], []
    for index in range(2):
        loop._begin_history()
        kept.append(torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda"))
        for _ in range(10):
            torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda")
        told.append(loop._end_history(index))
    return told


if __name__ == "__main__":
    for given in sys.argv[2:]:
        sys.stdout.write("\n".join(keep_histories(Path(sys.argv[1]), int(given))) + "\n")
        torch.cuda.empty_cache()
