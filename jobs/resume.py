"""An attempt that was interrupted goes on: where, and how a rank comes to know. Standard library.

Records are the only state. Ranks may have come to different calls; all go on at the first that any
of them lacks. Calls are cold or warm by those that ran before them in the same process, so that the
one before the first runs once more, unrecorded.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.completion import GOOD, rank_records
from jobs.record import RankRecord
from jobs.spec import CellSpec

VARIABLE = "PEAKCAST_RESUMED"
"""Says to a rank how often its attempt was interrupted before this process was started."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a rank has behind it.

    Parameters
    ----------
    times
        Interruptions of the attempt so far.
    done
        What the rank recorded, by call; failures, which belong to the interruption, left out.
    first
        The first call that is left to this rank; past the last where none is.
    """

    times: int
    done: Mapping[int, RankRecord]
    first: int

    @classmethod
    def of(cls, spec: CellSpec, out: Path, attempt: int, rank: int) -> "Resumed":
        """Read it from the environment and the records."""
        times = int(os.environ.get(VARIABLE, "0"))
        if not times:
            return cls(0, {}, 0)
        records = rank_records(out, spec, attempt, rank)
        done = {record.call: record for record in records if record.outcome in GOOD}
        return cls(times, done, _first(spec, done))

    def calls(self, spec: CellSpec, first: int) -> tuple[range, range]:
        """Return the calls that only warm up, and those that count, if all go on at ``first``."""
        every = range(spec.calls.warmup + spec.calls.measured)
        again = range(max(0, first - 1), first) if first in every else range(0)
        return again, every[first:]


def _first(spec: CellSpec, done: Mapping[int, RankRecord]) -> int:
    calls = spec.calls.warmup + spec.calls.measured
    if any(record.outcome == "refused" for record in done.values()):
        return calls
    first = next((call for call in spec.calls.recorded if call not in done), calls)
    return 0 if first == spec.calls.warmup else first
