"""Faults, each injected into a cell that runs on a real Slurm, and how the cell must end.

`tests.slurm.fault_table` injects them one by one, the tests inject them side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.slurm.lab import Running, attempts_of, cell, outcomes, records, slurm


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
    timeout_min: float = 1.5

    @property
    def ending(self) -> str:
        """The outcome in words."""
        wrong = sorted({call for rank in self.outcomes for call in rank} - {"ok"}, key=_plain)
        if not wrong:
            return "requeued, resumed at the next call; ok"
        tried = "not tried again" if "failed" in self.kinds else "tried again, ok"
        return f"{wrong[-1]}; {tried}"

    def check(self, running: Running) -> None:
        """See that a launch in which the fault was injected ended as it must."""
        spec, out = cell(self.behaviour), running.out
        assert running.told.kinds(spec) == ["queued", *self.kinds]
        first = outcomes(spec, out, 0)
        assert tuple(tuple(first[rank]) for rank in spec.ranks) == self.outcomes
        wrong = [r for of_rank in records(spec, out, 0).values() for r in of_rank if r.error]
        assert bool(wrong) == bool(self.words)
        assert not self.words or any(self.words in (record.error or "") for record in wrong)
        if "failed" in self.kinds:
            return
        last = records(spec, out, attempts_of(spec, out)[-1])
        for rank in spec.ranks:
            assert [record.outcome for record in last[rank]] == ["ok"] * 3
            assert last[rank][-1].environment["resumed"] == self.resumed
            assert last[rank][0].environment["resumed"] == 0, "what stands is not run again"


def _plain(outcome: str) -> bool:
    return outcome != "error"


WHOLE = ("ok", "ok", "ok")
AGAIN = ("started", "retried", "queued", "started", "ok")
GOES_ON = ("started", "resumed", "started", "ok")


def _requeue(_running: Running, job: str) -> None:
    slurm("scontrol", "requeue", job)


def _warn(_running: Running, job: str) -> None:
    slurm("scancel", "--signal=USR2", job)  # what Slurm sends before a time limit


def _cancel(_running: Running, job: str) -> None:
    slurm("scancel", job)


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
        inject=_cancel,
        kinds=("started", "failed"),
        outcomes=(("ok", "error"), ("ok", "error")),
        words="was cancelled (scancel)",
    ),
)
"""Those that touch no cell but their own, so that they may be injected side by side."""

OUT_OF_TIME = Fault(
    behaviour="out-of-time",
    what="a job reaches its time limit, a call finished since it began (from the call on)",
    kinds=GOES_ON,
    outcomes=(WHOLE, WHOLE),
    resumed=1,
    timeout_min=1.0,
)
"""The time limit itself, which Slurm counts in minutes."""
