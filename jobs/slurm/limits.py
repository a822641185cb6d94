"""SlurmLimits: what a launch may take of a Slurm cluster, and how its jobs are asked for."""

import math
from dataclasses import dataclass, field
from typing import Any

from jobs.limits import Limits
from planner.errors import ConfigError, require_int

LEAST_MIN = 1.0
"""Slurm counts time limits in whole minutes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmLimits(Limits):
    """What a launch may take of a Slurm cluster. ``timeout_min`` is each job's time limit.

    Parameters
    ----------
    partition, account, qos
        As sbatch has them; ``None``: the user's default.
    gres
        Of each rank, such as ``gpu:1`` or ``gpu:h200:1``.
    nodes
        Nodes that a cell is spread over; a cell whose ranks do not divide evenly takes fewer.
    cpus_per_rank, memory_gib
        Of each rank; memory ``None``: the partition's default.
    setup
        Lines of the batch script before the ranks start: ``module load …``, ``source …``.
    python
        What starts Python instead of this interpreter, such as ``apptainer exec IMAGE python3``.
    srun, sbatch
        More arguments: of srun as a list, of sbatch as a mapping of long options, where ``True``
        is an option without a value and ``False`` none at all.
    array_size
        Most cells in one job array; ``None``: what the cluster allows.
    wait
        Whether to stay until every cell has ended, rather than leave once all are queued.
    requeues
        Interruptions (preempted, out of time with calls finished since, node lost) that a cell
        survives; it goes on at the call that it had reached.
    poll_s
        Seconds between looks at the queue.
    queue_min
        Minutes that a cell may wait in the queue.
    patience_min
        Minutes that the scheduler may be silent.
    """

    max_ranks: int = 64
    timeout_min: float = 60.0
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gres: str | None = None
    nodes: int = 1
    cpus_per_rank: int = 1
    memory_gib: float | None = None
    setup: tuple[str, ...] = ()
    python: str | None = None
    srun: tuple[str, ...] = ()
    sbatch: dict[str, Any] = field(default_factory=dict)
    array_size: int | None = None
    wait: bool = True
    requeues: int = 3
    poll_s: float = 5.0
    queue_min: float = 1440.0
    patience_min: float = 30.0

    def __post_init__(self) -> None:
        Limits.__post_init__(self)
        for name in ("nodes", "cpus_per_rank"):
            require_int("launcher", name, getattr(self, name))
        if self.array_size is not None:
            require_int("launcher", "array_size", self.array_size)
        require_int("launcher", "requeues", self.requeues, least=0)
        for name in ("poll_s", "queue_min", "patience_min"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"launcher.{name} must be above 0; got {getattr(self, name)}")
        if self.timeout_min < LEAST_MIN:
            raise ConfigError(
                f"launcher.timeout_min = {self.timeout_min:g} is under a minute, the least that "
                "Slurm's time limits know"
            )
        self.gres_of(1)

    def nodes_of(self, ranks: int) -> int:
        """Return the number of nodes for a cell: each runs as many of its ranks."""
        return max(n for n in range(1, min(self.nodes, ranks) + 1) if ranks % n == 0)

    def gres_of(self, ranks: int) -> str | None:
        """Return what a node with so many ranks is asked for.

        Raises
        ------
        ConfigError
            When ``gres`` does not end in a count.
        """
        if self.gres is None:
            return None
        kind, _, count = self.gres.rpartition(":")
        if not kind or not count.isdigit():
            raise ConfigError(
                f"launcher.gres is what each rank needs, kind and count, such as gpu:1; "
                f"got {self.gres!r}"
            )
        return f"{kind}:{int(count) * ranks}"

    @property
    def warning_s(self) -> int:
        """Seconds before a time limit at which a job is told to save itself.

        Slurm may tell it a minute early, and must not do so right at the start.
        """
        return min(60, math.ceil(15 * self.timeout_min))

    def parameters(self, ranks: int) -> dict[str, Any]:
        """Return submitit's parameters for the jobs of cells with so many ranks."""
        nodes = self.nodes_of(ranks)
        there = ranks // nodes
        wanted: dict[str, Any] = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "gres": self.gres_of(there),
            "nodes": nodes,
            "ntasks_per_node": there,
            "cpus_per_task": self.cpus_per_rank,
            "time": math.ceil(self.timeout_min),
            "mem": None
            if self.memory_gib is None
            else f"{math.ceil(1024 * self.memory_gib * there)}M",
            "signal_delay_s": self.warning_s,
            "setup": list(self.setup),
            # srun of Slurm 22.05 to 23.02 does not take cpus-per-task from the batch script; a task
            # that fails ends the others, which would wait for it.
            "srun_args": [
                f"--cpus-per-task={self.cpus_per_rank}",
                "--kill-on-bad-exit=1",
                *self.srun,
            ],
            "additional_parameters": {
                name: value
                for name, value in {"requeue": True, **self.sbatch}.items()
                if value is not False and value is not None
            },
        }
        return {name: value for name, value in wanted.items() if value is not None}
