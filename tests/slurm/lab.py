"""The Slurm that tests run on: what it is asked and told, and cells of stub ranks to run on it."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.completion import every_attempt
from jobs.launch import Event, SlurmLimits, launch
from jobs.record import RankRecord, read_records, record_path
from jobs.spec import Calls, CellSpec, Weights, Workload
from planner.step import Step
from planner.topology import Topology
from tests.conftest import STUB

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHONPATH = f"{HERE}:{HERE.parent / 'jobs'}:{ROOT}"
"""Where tasks find the stub ranks."""


def missing() -> str:
    """Say why no Slurm can be used here, and what gives one; empty if one can."""
    try:
        done = subprocess.run(
            ["sinfo", "-h"], capture_output=True, text=True, timeout=8, check=False
        )
        said = done.stderr.strip() if done.returncode else ""
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        said = str(error)
    way_out = "tests/slurm/up FOLDER starts one, export what it prints"
    return f"no Slurm answers ({said}); {way_out}" if said else ""


def ours() -> Path:
    """Return the folder of the Slurm that tests/slurm/up started: others are left as they are."""
    folder = Path(os.environ["SLURM_CONF"]).parent
    assert (folder / "key" / "munge.key").exists(), "this Slurm is not ours to disturb"
    return folder


def slurm(*command: str) -> str:
    """Run one of Slurm's commands; return what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert not done.returncode, f"{' '.join(command)}: {done.stderr}"
    return done.stdout.strip()


def stop(daemon: str) -> None:
    """End a daemon of our Slurm, by its pid, and wait until it is gone."""
    pid = int((ours() / "run" / f"{daemon}.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"{daemon} to end")


def start(daemon: str) -> None:
    """Start a daemon of our Slurm again."""
    folder = ours()
    environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    if daemon == "slurmdbd":
        environment |= {"SLURM_CONF": str(folder / "slurmdbd.conf")}
        environment |= {"MYSQL_UNIX_PORT": str(folder / "run" / "sql")}
    subprocess.run([daemon], env=environment, check=True, timeout=30)


def settle() -> None:
    """Wait until a controller that was restarted starts jobs on every node and passes signals on.

    For some seconds it does neither.
    """
    for node in slurm("sinfo", "-h", "-N", "-p", "main", "-o", "%N").split():
        batch = ("sbatch", "--parsable", "-w", node, "--mem=50", "-o", "/dev/null")
        job = slurm(*batch, "--wrap", "srun sleep 60")
        wait_until(
            lambda job=job: slurm("squeue", "-h", "-j", job, "-t", "RUNNING"), "a job to run"
        )
        wait_until(lambda job=job: _is_cancelled(job), "a job to be cancelled")


def _is_cancelled(job: str) -> bool:
    done = subprocess.run(["scontrol", "update", f"JobId={job}", "Comment=x"], check=False)
    if done.returncode:
        return False  # it cannot be altered yet
    slurm("scancel", job)
    return True


def wait_until(condition: Callable[[], object], what: str, seconds: float = 150) -> float:
    """Poll until ``condition`` holds; return how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)
    return time.monotonic() - began


def cell(behaviour: str, ranks: int = 2, seed: int = 7) -> CellSpec:
    """Make a cell of stub ranks that behave as told (see slurm_rank.MISDEEDS)."""
    return CellSpec(
        model=STUB,
        topology=Topology(dp=ranks, ep=ranks),
        topology_name=f"ep{ranks}_cp1",
        step=Step(),
        weights=Weights(name="random"),
        workload=Workload(name=behaviour, requests=(512,) * max(4, ranks), seed=seed),
        calls=Calls(name="both"),
    )


def limits(**changes: object) -> SlurmLimits:
    """Return what a launch of stub ranks may take, looked at often."""
    fixed = {"entry": "slurm_rank:main", "poll_s": 0.3, "timeout_min": 1.5, "max_ranks": 32}
    return SlurmLimits(**{**fixed, **changes})  # type: ignore[arg-type]


@dataclass
class Told:
    """What a launch told of its cells: each event with the time it came at."""

    events: list[tuple[float, Event]] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        self.events.append((time.monotonic(), event))

    def kinds(self, spec: CellSpec) -> list[str]:
        """Return what happened to a cell, in order."""
        return [event.kind for _, event in self.events if event.spec.key == spec.key]

    def last(self, spec: CellSpec) -> Event | None:
        """Return the last event of a cell."""
        return next((e for _, e in reversed(self.events) if e.spec.key == spec.key), None)

    def job(self, spec: CellSpec) -> str:
        """Return the number of a cell's last job."""
        named = [e.why for _, e in self.events if e.spec.key == spec.key and e.kind == "queued"]
        return named[-1].removeprefix("job ").partition(",")[0]


class Running(threading.Thread):
    """A launch in a thread of its own, so that the test can disturb it meanwhile."""

    def __init__(self, cells: Sequence[CellSpec], out: Path, wanted: SlurmLimits) -> None:
        super().__init__(daemon=True)
        self.cells, self.out, self.wanted, self.told = cells, out, wanted, Told()
        self.ended: list[Event] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Launch; a failure is kept for `finish`."""
        try:
            self.ended = launch(self.cells, self.out, self.wanted, self.told)
        except BaseException as error:
            self.error = error

    def followed(self, spec: CellSpec, kind: str, times: int = 1) -> None:
        """Wait until something has happened to a cell so many times."""
        wait_until(
            lambda: self.error or self.told.kinds(spec).count(kind) >= times,
            f"{spec.workload.name}: {kind}",
        )
        assert self.error is None, self.error

    def node(self, spec: CellSpec) -> str:
        """Return where a cell's job runs."""
        return slurm("squeue", "-h", "-j", self.told.job(spec), "-o", "%N")

    def hasten(self, spec: CellSpec) -> None:
        """Let a requeued job start at once: Slurm would keep it waiting for seconds."""
        self.followed(spec, "resumed")
        at_once = ["scontrol", "update", f"JobId={self.told.job(spec)}", "StartTime=now"]
        subprocess.run(at_once, capture_output=True, check=False)  # unless it has begun by itself

    def reached(self, behaviour: str, ranks: int = 2) -> None:
        """Wait until each rank of a cell has come to its misdeed."""
        notes = [self.out / "reached" / f"{behaviour}.{rank}" for rank in range(ranks)]
        wait_until(lambda: self.error or all(n.exists() for n in notes), f"{behaviour} to begin")
        assert self.error is None, self.error

    def finish(self, seconds: float = 200) -> dict[str, Event]:
        """Wait for the launch to end; return how each cell ended, by its behaviour."""
        self.join(seconds)
        assert not self.is_alive(), "the launch waits for ever"
        if self.error is not None:
            raise self.error
        return {event.spec.workload.name: event for event in self.ended}


def records(spec: CellSpec, out: Path, attempt: int) -> dict[int, list[RankRecord]]:
    """Return what an attempt recorded, by rank, every line read."""
    found = {}
    for rank in spec.ranks:
        path = record_path(out, spec.key, attempt, rank)
        lines, faults = read_records(path) if path.exists() else ([], [])
        assert faults == []
        found[rank] = lines
    return found


def outcomes(spec: CellSpec, out: Path, attempt: int) -> dict[int, list[str]]:
    """Return the outcome of each call that an attempt recorded, by rank; none may be twice."""
    found = records(spec, out, attempt)
    for of_rank in found.values():
        calls = [record.call for record in of_rank]
        assert calls == list(range(len(calls))), "a call is lost, or recorded twice"
    return {rank: [record.outcome for record in of_rank] for rank, of_rank in found.items()}


def attempts_of(spec: CellSpec, out: Path) -> list[int]:
    """Return the numbers of the attempts at a cell."""
    return every_attempt(out)[spec.key]
