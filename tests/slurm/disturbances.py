"""Faults of what cells run on: nodes, daemons, disks, the driver. Each is a function that injects
its fault into a sweep of its own, checks how that ends, and returns how long it took to settle.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.launch import launch
from jobs.spec import CellSpec
from tests.slurm.lab import (
    Running,
    Told,
    attempts_of,
    cell,
    limits,
    outcomes,
    records,
    settle,
    slurm,
    start,
    stop,
    wait_until,
)

WHOLE = {0: ["ok"] * 3, 1: ["ok"] * 3}

DRIVER = """
import sys
from pathlib import Path
from jobs.launch import launch
from jobs.spec import CellSpec
from tests.slurm.lab import limits
launch([CellSpec.read(Path(sys.argv[1]))], Path(sys.argv[2]), limits())
"""


def node_lost(out: Path) -> float:
    """A node goes down: the cell goes on elsewhere."""
    running, spec = _begin("node-lost", out)
    with _down(running.node(spec)) as bring_down:
        seconds = _timed(running, spec, bring_down, "started", 2)
        assert running.finish()["node-lost"].kind == "ok"
    assert running.told.kinds(spec) == ["queued", "started", "resumed", "started", "ok"]
    assert outcomes(spec, out, 0) == WHOLE
    for of_rank in records(spec, out, 0).values():
        first, *others = [record.environment["host"] for record in of_rank]
        assert first not in others, "what stands is from the node that was lost"
    return seconds


def node_lost_for_good(out: Path) -> float:
    """A node goes down and Slurm requeues nothing: the driver excludes it and submits again."""
    running, spec = _begin("node-lost", out, sbatch={"no-requeue": True, "requeue": False})
    node = running.node(spec)
    with _down(node) as bring_down:
        seconds = _timed(running, spec, bring_down, "started", 2)
        assert running.finish()["node-lost"].kind == "ok"
    kinds = ["queued", "started", "resumed", "queued", "started", "ok"]
    assert running.told.kinds(spec) == kinds
    assert outcomes(spec, out, 0) == WHOLE
    script = next((out / "jobs").glob(f"*/{running.told.job(spec).partition('_')[0]}_*.sh"))
    assert f"--exclude={node}" in script.read_text()
    return seconds


def preempted(out: Path) -> float:
    """A job of a partition with priority takes the nodes: the cell goes on when they are free."""
    running, spec = _begin("preempted", out)
    urgent = (
        "sbatch",
        "-p",
        "urgent",
        "-N2",
        "--exclusive",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 1",
    )
    seconds = _timed(running, spec, lambda: slurm(*urgent), "started", 2)
    assert running.finish()["preempted"].kind == "ok"
    assert running.told.kinds(spec) == ["queued", "started", "resumed", "started", "ok"]
    assert outcomes(spec, out, 0) == WHOLE
    return seconds


def controller_restarted(out: Path) -> float:
    """slurmctld stops and starts again in mid-cell while there is no accounting at all."""
    stop("slurmdbd")
    try:
        running, spec = _begin("pauses", out)
        began = time.monotonic()
        stop("slurmctld")
        time.sleep(1)
        start("slurmctld")
        assert running.finish()["pauses"].kind == "ok"
        seconds = time.monotonic() - began
    finally:
        start("slurmdbd")
        settle()
    assert running.told.kinds(spec) == ["queued", "started", "ok"]
    assert outcomes(spec, out, 0) == WHOLE
    return seconds


def driver_killed(out: Path) -> float:
    """The driver is killed (SIGKILL); started again, it takes up the job that runs."""
    spec = cell("pauses")
    with _driver(spec, out) as driver:
        driver.kill()
        driver.wait()
    began, told = time.monotonic(), Told()
    (event,) = launch([spec], out, limits(), told)
    assert (event.kind, told.kinds(spec)) == ("ok", ["queued", "started", "ok"])
    assert attempts_of(spec, out) == [0]
    assert outcomes(spec, out, 0) == WHOLE
    return time.monotonic() - began


def driver_told_to_end(out: Path) -> float:
    """The driver is told to end (SIGTERM): it cancels its jobs first."""
    spec = cell("waits")
    with _driver(spec, out) as driver:
        began = time.monotonic()
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=30)
        name = next((out / "jobs").glob("peakcast-*")).name
        wait_until(lambda: not slurm("squeue", "-h", "--name", name), "the job to end")
    assert outcomes(spec, out, 0) == {0: ["ok"], 1: ["ok"]}, "what was recorded stays"
    return time.monotonic() - began


def disk_full(out: Path) -> float:
    """The results' disk is full for a while, for the ranks and for the driver (needs root)."""
    out.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(out)], check=True)
    try:
        os.environ["FILLED"] = str(out)
        running, spec = _begin("disk-full", out)
        job = running.told.job(spec)
        wait_until(lambda: slurm("squeue", "-h", "-j", job, "-t", "FAILED"), "the job to fail")
        began = time.monotonic()
        time.sleep(1)
        assert running.told.kinds(spec) == ["queued", "started"], "it cannot be recorded yet"
        (out / "filler").unlink()
        assert running.finish()["disk-full"].kind == "ok"
        assert running.told.kinds(spec).count("retried") == 1
        first = outcomes(spec, out, 0)
        assert first == {0: ["ok", "error"], 1: ["ok", "error"]}
        (error,) = {r.error for r in records(spec, out, 0)[1] if r.error}
        assert error is not None
        assert "No space left on device" in error
        assert outcomes(spec, out, 1) == WHOLE
        return time.monotonic() - began
    finally:
        os.environ.pop("FILLED", None)
        subprocess.run(["umount", "-l", str(out)], check=True)


DISTURBANCES: dict[Callable[[Path], float], str] = {
    node_lost: "resumed on another node; ok",
    node_lost_for_good: "resubmitted without that node, resumed; ok",
    preempted: "requeued, resumed; ok",
    controller_restarted: "followed again; ok",
    driver_killed: "the next driver takes the job up; ok",
    driver_told_to_end: "job cancelled, finished calls kept",
    disk_full: "error, recorded once there is room; tried again, ok",
}

TOGETHER = (
    (node_lost,),
    (node_lost_for_good,),
    (driver_killed, driver_told_to_end, disk_full),
    (preempted,),
    (controller_restarted,),
)
"""Which of them leave each other alone."""


def _begin(behaviour: str, out: Path, **changes: object) -> tuple[Running, CellSpec]:
    """Launch a cell and wait until its ranks have come to their misdeed."""
    spec = cell(behaviour)
    running = Running([spec], out, limits(**changes))
    running.start()
    running.reached(behaviour)
    running.followed(spec, "started")
    return running, spec


def _timed(
    running: Running, spec: CellSpec, inject: Callable[[], object], kind: str, times: int
) -> float:
    """Inject a fault; return how long it took until ``kind`` had happened so many times."""
    began = time.monotonic()
    inject()
    running.followed(spec, kind, times)
    return time.monotonic() - began


@contextmanager
def _down(node: str) -> Iterator[Callable[[], object]]:
    """Hand out what brings a node down; up it comes again at the end."""
    change = ("scontrol", "update", f"nodename={node}")
    try:
        yield lambda: slurm(*change, "state=down", "reason=injected")
    finally:
        slurm(*change, "state=idle")
        wait_until(lambda: slurm("sinfo", "-h", "-n", node, "-t", "idle,mixed"), f"{node} to be up")


@contextmanager
def _driver(spec: CellSpec, out: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a driver of its own and wait until the cell's ranks have come to their misdeed."""
    spec.write(out / "spec.json")
    command = [sys.executable, "-c", DRIVER, str(out / "spec.json"), str(out)]
    driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        notes = [out / "reached" / f"{spec.workload.name}.{rank}" for rank in spec.ranks]
        wait_until(lambda: all(note.exists() for note in notes), "the ranks")
        yield driver
    finally:
        driver.kill()
        driver.wait()
