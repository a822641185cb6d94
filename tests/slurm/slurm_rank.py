"""Ranks without a model for tests of Slurm: each behaves as its cell's workload is named.

Call 0 is recorded, then what the name says happens, in the first run of the first attempt alone;
a later run resumes from the records as `jobs.rank` does, and finishes. Standard library only.
"""

import os
import signal
import time
from pathlib import Path

from stub_rank import record

from jobs.record import RankRecord, record_path, write_records
from jobs.resume import Resumed
from jobs.spec import CellSpec


class OutOfMemoryError(RuntimeError):
    """By name and words what PyTorch raises when a device is full."""


def main(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Record call 0, misbehave, or do the rest."""
    assert "WANDB_API_KEY" not in os.environ, "no rank needs it"
    spec, rank = CellSpec.read(spec_path), int(os.environ["RANK"])
    resumed = Resumed.of(spec, out, attempt, rank)
    path, done = record_path(out, spec.key, attempt, rank), dict(resumed.done)
    misbehave = MISDEEDS.get(spec.workload.name) if not attempt and not resumed.times else None
    for call in range(resumed.first, spec.calls.recorded.stop):
        if misbehave is not None and call == (0 if spec.workload.name == "hangs" else 1):
            reached(out, spec, rank)
            misbehave(rank)
            misbehave = None
        done[call] = _record(spec, attempt, rank, call, resumed.times)
        write_records(path, [done[number] for number in sorted(done)])


def reached(out: Path, spec: CellSpec, rank: int) -> None:
    """Tell the test that the rank has come to its misdeed."""
    (out / "reached").mkdir(exist_ok=True)
    (out / "reached" / f"{spec.workload.name}.{rank}").touch()


def _record(spec: CellSpec, attempt: int, rank: int, call: int, resumed: int) -> RankRecord:
    made = record(spec, attempt, rank, call)
    made.environment = {"resumed": resumed, "host": os.environ["SLURMD_NODENAME"]}
    return made


def _die(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _wait(rank)


def _raise(rank: int) -> None:
    if rank == 1:
        raise ValueError("the checkpoint lacks layers.1.mlp.router.weight")
    _wait(rank)


def _starve(rank: int) -> None:
    if rank == 1:
        raise MemoryError("unable to allocate 8 GiB")
    _wait(rank)


def _starve_device(rank: int) -> None:
    if rank == 1:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    _wait(rank)


def _fill_memory(rank: int) -> None:
    held = [bytearray(b"x" * (16 << 20)) for _ in range(40)] if rank == 1 else []
    _wait(len(held))


def _leave(rank: int) -> None:
    if rank == 1:
        os._exit(0)
    _wait(rank)


def _pause(_rank: int) -> None:
    time.sleep(3)


def _fill_disk(rank: int) -> None:
    if rank == 1:
        disk = Path(os.environ["FILLED"])
        while not (disk / "reached" / "disk-full.0").exists():
            time.sleep(0.1)
        with (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
    _wait(rank)


def _wait(_rank: int) -> None:
    time.sleep(600)


MISDEEDS = {
    "rank-killed": _die,
    "rank-raises": _raise,
    "rank-leaves": _leave,
    "host-memory": _starve,
    "job-memory": _fill_memory,
    "device-memory": _starve_device,
    "waits": _wait,
    "pauses": _pause,
    "disk-full": _fill_disk,
    "requeued": _wait,
    "warned": _wait,
    "out-of-time": _wait,
    "hangs": _wait,
    "cancelled": _wait,
    "preempted": _wait,
    "node-lost": _wait,
}
