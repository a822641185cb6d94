"""Injects every fault by itself and writes how each ended, and how soon.

tests/slurm/up FOLDER; export SLURM_CONF=…
python -m tests.slurm.fault_table docs/experiments/slurm-faults.md
"""

import datetime
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.slurm.disturbances import DISTURBANCES
from tests.slurm.faults import FAULTS, OUT_OF_TIME, Fault
from tests.slurm.lab import PYTHONPATH, Running, cell, limits, missing, slurm

HEAD = """# Faults on Slurm

Each fault was injected into a sweep of stub ranks (three calls, two ranks, call 0 recorded when it
strikes) on {slurm}, two virtual nodes of one machine, and checked as the tests do: the right
outcome in the right records, none lost, none doubled. Settled: from the fault until the failure was
recorded or the cell ran again. {note}

    python -m tests.slurm.fault_table docs/experiments/slurm-faults.md     # {date}, {seconds:.0f} s

| fault | outcome | settled after |
|---|---|---|
"""

NOTE = """Slurm itself keeps a requeued job waiting, here for six seconds or
more, for two minutes where `cred_expire` is left at its default."""


def main(path: Path) -> None:
    """Inject every fault and write the table to ``path``."""
    why = missing()
    if why:
        sys.exit(why)
    os.environ["PYTHONPATH"] = PYTHONPATH
    began = time.monotonic()
    rows = [f"| {what} | {outcome} | {seconds:.1f} s |\n" for what, outcome, seconds in _settled()]
    head = HEAD.format(
        slurm=slurm("sinfo", "--version"),
        note=NOTE,
        date=datetime.date.today().isoformat(),
        seconds=time.monotonic() - began,
    )
    path.write_text(head + "".join(rows))


def _settled() -> Iterator[tuple[str, str, float]]:
    """Inject one fault after the other; yield what it was, how it ended, and how soon."""
    for fault in (*FAULTS, OUT_OF_TIME):
        with tempfile.TemporaryDirectory() as folder:
            seconds = _inject(fault, Path(folder))
        sys.stderr.write(f"{fault.behaviour}: {seconds:.1f} s\n")
        yield fault.what, fault.ending, seconds
    for disturb, outcome in DISTURBANCES.items():
        with tempfile.TemporaryDirectory() as folder:
            seconds = disturb(Path(folder))
        sys.stderr.write(f"{disturb.__name__}: {seconds:.1f} s\n")
        what = (disturb.__doc__ or "").strip().splitlines()[0].partition(":")[0].rstrip(".")
        yield what[0].lower() + what[1:], outcome, seconds


def _inject(fault: Fault, out: Path) -> float:
    """Inject a fault into a cell; return the seconds until its first attempt was settled."""
    spec = cell(fault.behaviour)
    running = Running([spec], out, limits(memory_gib=0.25, timeout_min=fault.timeout_min))
    running.start()
    running.reached(fault.behaviour)
    running.followed(spec, "started")
    began = time.monotonic()
    fault.inject(running, running.told.job(spec))
    running.finish()
    fault.check(running)
    settled = fault.kinds.index("resumed") + 1 if "resumed" in fault.kinds else 1
    at, _ = [told for told in running.told.events if told[1].spec.key == spec.key][settled + 1]
    return at - began


if __name__ == "__main__":
    main(Path(sys.argv[1]))
