"""Call, as the ledger follows it, and CallLedger: what was seen, frozen when it ends."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jobs.meter.allocation import Allocation


class LedgerError(RuntimeError):
    """The ledger was asked for what it cannot give at this moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallLedger:
    """Live bytes of one call. Bytes are whole 512-byte blocks.

    Parameters
    ----------
    index
        Place of the call in its process: 0 is cold.
    baseline_bytes
        Live when the call began: what was registered as resident, and what was held over.
    peak_bytes
        Highest live bytes above the baseline; what the call frees of the baseline lowers it.
    working_set_bytes
        Highest sum of live bytes that the call itself allocated: what cold and warm calls share.
    retained_bytes
        Allocated by the call and alive at `Call.forward_done` (the highest, when a call runs
        several forwards); ``None`` when forward was never done.
    held_over_bytes
        Allocated by earlier calls and alive when this one began.
    left_over_bytes
        Allocated by this call and alive at its end.
    unregistered_bytes
        Storages that the call met but that were neither registered nor allocated under the ledger,
        such as what gloo stages inside a reduce-scatter; counted nowhere else.
    peak_number, retained_number, last_number
        Number of the allocation that made the working set's peak, of the last one before the end of
        forward, and of the last one in all: moments to ask `live_at` for.
    held_over
        What `held_over_bytes` consists of.
    allocations
        Everything the call allocated, in order, dead or alive: its timeline.
    ledger_s
        Seconds spent in the ledger's own code; torch's cost of calling it is not in this.
    """

    index: int
    baseline_bytes: int
    peak_bytes: int
    working_set_bytes: int
    retained_bytes: int | None
    held_over_bytes: int
    left_over_bytes: int
    unregistered_bytes: int
    peak_number: int
    retained_number: int | None
    last_number: int
    held_over: tuple[Allocation, ...]
    allocations: tuple[Allocation, ...]
    ledger_s: float

    def live_at(self, number: int) -> tuple[Allocation, ...]:
        """Return what the call had allocated and not yet freed just after allocation ``number``.

        The moment must lie in the call: `last_number` is its end.
        """
        return tuple(a for a in self.allocations if a.alive_at(number))

    def live_bytes(self) -> Iterator[tuple[Allocation, int]]:
        """Yield each allocation with what the call had live just after it, in order."""
        deaths: dict[int, int] = {}
        for allocation in self.allocations:
            if allocation.died is not None:
                deaths[allocation.died] = deaths.get(allocation.died, 0) + allocation.nbytes
        dying = sorted(deaths.items())
        live = dead = 0
        for allocation in self.allocations:
            while dead < len(dying) and dying[dead][0] < allocation.number:
                live -= dying[dead][1]
                dead += 1
            live += allocation.nbytes
            yield allocation, live

    @property
    def at_peak(self) -> tuple[Allocation, ...]:
        """The live storages that make up `working_set_bytes`."""
        return self.live_at(self.peak_number)

    @property
    def peak_at(self) -> dict[str, str]:
        """Phase, module and op of the allocation that made the working set's peak."""
        for allocation in reversed(self.allocations):
            if allocation.number == self.peak_number:
                return {
                    "phase": allocation.phase,
                    "module": allocation.module,
                    "op": allocation.op,
                }
        return {"phase": "", "module": "", "op": ""}  # the call allocated nothing


class Call:
    """One call as it runs; `result` holds its `CallLedger` afterwards."""

    def __init__(
        self,
        index: int,
        baseline: int,
        held_over: tuple[Allocation, ...],
        mark_forward_done: Callable[[], int],
    ) -> None:
        self.index = index
        self.own_bytes = 0
        self.unregistered_bytes = 0
        self.seconds = 0.0
        self._mark_forward_done = mark_forward_done
        self._baseline = baseline
        self._held_over = held_over
        self._allocations: list[Allocation] = []
        self._highest = baseline
        self._working_set = 0
        self._peak_number = 0
        self._retained: int | None = None
        self._retained_number: int | None = None
        self._result: CallLedger | None = None

    def forward_done(self) -> None:
        """Say that forward has ended: what the call holds now is what it retains.

        A call that runs several forwards says it after each; the highest is kept.

        Raises
        ------
        LedgerError
            When the call is over.
        """
        if self._result is not None:
            raise LedgerError(f"call {self.index} is over; forward_done belongs inside its block")
        number = self._mark_forward_done()
        if self._retained is None or self.own_bytes > self._retained:
            self._retained, self._retained_number = self.own_bytes, number

    @property
    def result(self) -> CallLedger:
        """What the ledger saw; raises `LedgerError` while the call still runs."""
        if self._result is None:
            raise LedgerError(f"call {self.index} still runs; its ledger is ready when it is left")
        return self._result

    def add(self, allocation: Allocation, live_bytes: int) -> None:
        """Enter an allocation of this call, and the process's live bytes with it."""
        self._allocations.append(allocation)
        self.own_bytes += allocation.nbytes
        if self.own_bytes > self._working_set:
            self._working_set, self._peak_number = self.own_bytes, allocation.number
        self._highest = max(self._highest, live_bytes)

    def close(self, number: int) -> None:
        """Freeze the call at moment ``number``."""
        self._result = CallLedger(
            index=self.index,
            baseline_bytes=self._baseline,
            peak_bytes=self._highest - self._baseline,
            working_set_bytes=self._working_set,
            retained_bytes=self._retained,
            held_over_bytes=total(self._held_over),
            left_over_bytes=self.own_bytes,
            unregistered_bytes=self.unregistered_bytes,
            peak_number=self._peak_number,
            retained_number=self._retained_number,
            last_number=number,
            held_over=self._held_over,
            allocations=tuple(self._allocations),
            ledger_s=self.seconds,
        )


def total(allocations: Iterable[Allocation]) -> int:
    """Sum the bytes of ``allocations``."""
    return sum(a.nbytes for a in allocations)
