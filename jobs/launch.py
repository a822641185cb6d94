"""From cell specs to records on disk, on this machine or a Slurm cluster: the door to submitit.

Under ``out`` a launch leaves ``specs/<key>.json``, what the ranks record in ``records/`` and print
in ``logs/``, and in ``jobs/`` one folder an attempt, ``<key>.a<attempt>``, and submitit's files.
Whatever befalls a cell is recorded as its failure and costs no other cell.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from jobs.event import Event
from jobs.limits import Limits
from jobs.local_launch import launch_here
from jobs.slurm.launch import launch_on_slurm
from jobs.slurm.limits import SlurmLimits
from jobs.spec import CellSpec
from jobs.supervise import die_with_parent
from jobs.unwinding import Interrupted, unwinding_on_signals
from planner.errors import ConfigError

__all__ = [
    "Event",
    "Interrupted",
    "Limits",
    "SlurmLimits",
    "launch",
    "require_room",
    "run_module",
]


def require_room(cells: Sequence[CellSpec], limits: Limits) -> None:
    """Check that each cell fits in ``limits.max_ranks``.

    Raises
    ------
    ConfigError
        Naming the cells that do not, and the value that would do.
    """
    wide = [cell for cell in cells if len(cell.ranks) > limits.max_ranks]
    if wide:
        most = max(len(cell.ranks) for cell in wide)
        names = ", ".join(sorted({f"{c.topology_name} ({len(c.ranks)} ranks)" for c in wide}))
        raise ConfigError(
            f"launcher.max_ranks = {limits.max_ranks} is too few for {names}; "
            f"set launcher.max_ranks={most}, or leave those topologies out"
        )


def launch(
    cells: Sequence[CellSpec],
    out: Path,
    limits: Limits,
    notify: Callable[[Event], None] = lambda _: None,
    *,
    collect: bool = False,
) -> list[Event]:
    """Run every cell that is not recorded yet; return how each cell ended, in order.

    A cell that fails is tried again ``limits.retries`` times. All jobs are stopped before this
    returns, also when it is interrupted, unless ``limits`` says to leave them on the cluster.

    Parameters
    ----------
    collect
        On a cluster: start nothing, judge what earlier launches have left there.

    Raises
    ------
    ConfigError
        When a cell asks for more ranks than ``limits.max_ranks``, when there is no cluster, when it
        takes none of the jobs, or when there is nothing to collect from; nothing has started then.
    """
    require_room(cells, limits)
    if isinstance(limits, SlurmLimits):
        return launch_on_slurm(cells, out, limits, notify, collect=collect)
    if collect:
        raise ConfigError(
            "collect=true gathers what launcher=slurm has left on a cluster; launcher=local leaves "
            "nothing behind: run the same command without it"
        )
    return launch_here(cells, out, limits, notify)


def run_module(module: str, *arguments: str) -> int:
    """Run ``python -m module`` to its end, output shown, and return its exit code.

    The process ends with us, however we end.
    """
    with unwinding_on_signals():
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            check=False,
            preexec_fn=partial(die_with_parent, os.getpid()),
        ).returncode
