"""One call on a CUDA device, held against its price: how far it may be off, and what it missed."""

from collections.abc import Iterator
from dataclasses import dataclass

from jobs.record import Observed, Planned
from jobs.spec import CellSpec
from pipeline.store import Cell, Store

NEAR = 0.10
"""Most that an observation may be off its expected bytes, as a part of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One call on one rank that ran to its end, planned and seen."""

    cell: str
    temperature: str
    planned: Planned
    observed: Observed

    @property
    def off(self) -> float:
        """Working set over what was expected, less one."""
        return self.observed.working_set_bytes / self.planned.expected_bytes - 1

    @property
    def device_peak_bytes(self) -> int:
        """Highest bytes that PyTorch's allocator had in use, above those before the call."""
        device = self.observed.device
        return int(device["allocated_peak_bytes"] - device["allocated_before_bytes"])

    @property
    def reserved_peak_bytes(self) -> int:
        """Highest bytes that the allocator had taken from CUDA."""
        return int(self.observed.device["reserved_peak_bytes"])

    @property
    def replayed_bytes(self) -> int:
        """What its rules say that it would take for the call's storages, as the ledger saw them."""
        return int(self.observed.device["replayed_reserved_bytes"])

    @property
    def outside_growth_bytes(self) -> int:
        """Growth, in the call, of what the process holds on the device outside PyTorch."""
        return int(self.observed.device["outside_growth_bytes"])

    @property
    def misses(self) -> tuple[str, ...]:
        """What is outside the limits."""
        expected, bound = self.planned.expected_bytes, self.planned.bound_bytes
        apart = (self.device_peak_bytes - self.observed.peak_bytes) / expected
        found = []
        if abs(self.off) > NEAR:
            found.append(f"working set {_apart(self.off)} expected")
        if abs(apart) > NEAR:
            found.append(f"allocator's peak, in parts of expected, {_apart(apart)} the ledger's")
        if max(self.observed.working_set_bytes, self.device_peak_bytes) > bound:
            found.append("above the bound")
        return tuple(found)


def _apart(part: float) -> str:
    return f"{100 * abs(part):.1f} % {'under' if part < 0 else 'over'}"


def rows(store: Store) -> Iterator[Row]:
    """Yield every call that ran to its end on a CUDA device, smallest cells first."""
    for cell in sorted(store.cells, key=_size):
        spec = cell.spec
        name = _name(spec) if spec else cell.label
        for record in cell.records:
            seen = record.measured
            if record.planned and seen and "allocated_peak_bytes" in seen.device:
                yield Row(name, record.temperature, record.planned, seen)


def _name(spec: CellSpec) -> str:
    """Return what tells a cell of these studies from the others."""
    kind = "" if spec.workload.gradients else " forward-only"
    return f"{spec.model.num_layers} layers {spec.workload.name}{kind}"


def _size(cell: Cell) -> tuple[int, int]:
    """Return a cell's layers and its tokens."""
    spec = cell.spec
    return (spec.model.num_layers, sum(spec.workload.requests)) if spec else (0, 0)
