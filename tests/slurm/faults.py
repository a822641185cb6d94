"""Faults, each injected into a cell that runs on a real Slurm, and how the cell must end.

`python -m tests.slurm.faults FILE` injects them one by one and writes the table of the README; the
tests inject most of them side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.slurm.lab import Running, slurm


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault and its end.

    Parameters
    ----------
    behaviour
        What the stub ranks do (slurm_rank.MISDEEDS); the fault's name.
    what
        In words.
    inject
        Done once the ranks have come to it.
    kinds
        Events of the cell, from the second on; the first is ``queued``.
    outcomes
        What the first attempt records of each rank, call by call.
    words
        What the record of the failure, or the event, says.
    resumed
        How often the last record's process had been interrupted before.
    """

    behaviour: str
    what: str
    kinds: tuple[str, ...]
    outcomes: tuple[tuple[str, ...], ...]
    inject: Callable[[Running, str], None] = lambda _running, _job: None
    words: str = ""
    resumed: int = 0


WHOLE = ("ok", "ok", "ok")
AGAIN = ("started", "retried", "queued", "started", "ok")
GOES_ON = ("started", "resumed", "started", "ok")


def _tell(*command: str) -> Callable[[Running, str], None]:
    return lambda _running, job: (slurm(*command, job), None)[1]


def _requeue(_running: Running, job: str) -> None:
    slurm("scontrol", "requeue", job)


def _warn(_running: Running, job: str) -> None:
    slurm("scancel", "--signal=USR2", job)  # what Slurm sends before a time limit


FAULTS = (
    Fault(
        behaviour="rank-killed",
        what="a rank is killed (SIGKILL)",
        kinds=AGAIN,
        outcomes=(("ok", "error"), ("ok", "error")),
        words="was killed by SIGKILL",
    ),
    Fault(
        behaviour="rank-raises",
        what="a rank raises, the others wait for it",
        kinds=AGAIN,
        outcomes=(("ok", "error"), ("ok", "error")),
        words="raised ValueError: the checkpoint lacks layers.1.mlp.router.weight",
    ),
    Fault(
        behaviour="rank-leaves",
        what="a rank ends without its records (os._exit)",
        kinds=AGAIN,
        outcomes=(("ok", "error"), ("ok", "error")),
        words="ended without its records",
    ),
    Fault(
        behaviour="host-memory",
        what="host memory runs out in a rank (MemoryError)",
        kinds=AGAIN,
        outcomes=(("ok", "error"), ("ok", "oom-host")),
        words="raised MemoryError: unable to allocate 8 GiB",
    ),
    Fault(
        behaviour="job-memory",
        what="the job exceeds its host memory, Slurm kills it",
        kinds=AGAIN,
        outcomes=(("ok", "oom-host"), ("ok", "oom-host")),
        words="exceeded its host memory (launcher.memory_gib)",
    ),
    Fault(
        behaviour="device-memory",
        what="device memory runs out (PyTorch's exception, injected)",
        kinds=AGAIN,
        outcomes=(("ok", "error"), ("ok", "oom-device")),
        words="CUDA out of memory",
    ),
    Fault(
        behaviour="requeued",
        what="`scontrol requeue` in mid-cell",
        inject=_requeue,
        kinds=GOES_ON,
        outcomes=(WHOLE, WHOLE),
        resumed=1,
    ),
    Fault(
        behaviour="warned",
        what="Slurm warns of the time limit (SIGUSR2) after a finished call",
        inject=_warn,
        kinds=GOES_ON,
        outcomes=(WHOLE, WHOLE),
        resumed=1,
    ),
    Fault(
        behaviour="hangs",
        what="Slurm warns of the time limit, no call has finished",
        inject=_warn,
        kinds=AGAIN,
        outcomes=(("timeout",), ("timeout",)),
        words="was out of time (launcher.timeout_min = 1.5)",
    ),
    Fault(
        behaviour="cancelled",
        what="`scancel`",
        inject=lambda _running, job: (slurm("scancel", job), None)[1],
        kinds=("started", "failed"),
        outcomes=(("ok", "error"), ("ok", "error")),
        words="was cancelled (scancel)",
    ),
)
"""Those that touch no cell but their own, so that they may be injected side by side."""
