"""Event: something that happened to a cell, as a launch tells of it."""

from dataclasses import dataclass

from jobs.spec import CellSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened to a cell.

    Parameters
    ----------
    kind
        ``skipped`` (recorded already), ``queued`` (handed to a cluster), ``started``, ``retried``
        (failed, tried again), ``resumed`` (interrupted, goes on where it was), or how the cell
        ended: ``ok``, ``refused``, ``failed``; ``left`` (on the cluster, to be collected later),
        ``absent`` (to be collected, but never handed over).
    attempt, seconds
        Number of the attempt, and how long it took.
    why
        Of a failure: what went wrong and where the log lies. Of a job on a cluster: its number.
    """

    kind: str
    spec: CellSpec
    attempt: int
    seconds: float = 0.0
    why: str = ""
