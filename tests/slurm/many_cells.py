"""A driver of very many cells on a recorded scheduler; prints what it took, as JSON.

Run with OUT and the number of cells; needs `recorded_scheduler.install` in its PATH.
"""

import json
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from jobs.launch import Event
from jobs.slurm.launch import launch_on_slurm
from jobs.slurm.queue import Scheduler
from jobs.spec import Calls
from pipeline.store import read_store, rows
from tests.slurm.lab import cell, limits

CALLS = 5


def main(out: Path, number: int) -> None:
    """Launch the cells, then collect them as a later driver would."""
    first = replace(cell("many", 1), calls=Calls(name="five", measured=CALLS))
    cells = [replace(first, workload=replace(first.workload, seed=n)) for n in range(number)]
    told: Counter[str] = Counter()

    def tell(event: Event) -> None:
        told[event.kind] += 1

    scheduler, wanted = Scheduler(), limits(poll_s=0.05, max_ranks=number)
    launch_on_slurm(cells, out, wanted, tell, collect=False, scheduler=scheduler)
    began = time.monotonic()
    later = Scheduler()
    launch_on_slurm(cells, out, wanted, tell, collect=True, scheduler=later)
    read = rows(read_store(out))
    sys.stdout.write(
        json.dumps(
            {
                "told": told,
                "asked": scheduler.asked,
                "asked_later": later.asked,
                "records": len(read),
                "collect_s": time.monotonic() - began,
                "peak_mb": peak_mb(),
            }
        )
    )


def peak_mb() -> float:
    """Most memory that this process has had; its ``ru_maxrss`` may be that of who started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
