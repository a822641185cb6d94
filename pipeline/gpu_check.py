"""Hold prices against a CUDA device: ``python -m pipeline.gpu_check [OVERRIDES | --read OUT]``.

Runs ``study=h200_single``, or reads what it has left in OUT, and compares, call by call, the
planner's expected bytes and its bound with what the ledger and PyTorch's allocator saw. Exit code:
0 all calls within the limits, 1 one is not or a cell failed, 2 bad input, 3 no CUDA device.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jobs.record import Observed, Planned
from pipeline.store import Store, read_store
from planner.units import gib

PASSED, MISSED, BAD_INPUT, NO_DEVICE = 0, 1, 2, 3
STUDY = "h200_single"
NEAR = 0.10
"""Most that an observation may be off its expected bytes, as a part of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One call on one rank, planned and seen.

    Parameters
    ----------
    device_peak_bytes
        Highest bytes that PyTorch's allocator had in use, above those before the call.
    """

    cell: str
    call: int
    temperature: str
    planned: Planned
    observed: Observed

    @property
    def device_peak_bytes(self) -> int:
        """Peak of the call by the allocator, above what was in use before it."""
        device = self.observed.device
        return int(device["allocated_peak_bytes"] - device["allocated_before_bytes"])

    @property
    def reserved_peak_bytes(self) -> int:
        """Highest bytes that the allocator had taken from CUDA."""
        return int(self.observed.device["reserved_peak_bytes"])

    @property
    def misses(self) -> tuple[str, ...]:
        """What is outside the limits."""
        expected, bound = self.planned.expected_bytes, self.planned.bound_bytes
        seen = self.observed.working_set_bytes
        found = []
        if abs(seen - expected) > NEAR * expected:
            found.append(f"working set {seen / expected - 1:+.1%} of expected")
        if abs(self.device_peak_bytes - self.observed.peak_bytes) > NEAR * expected:
            off = (self.device_peak_bytes - self.observed.peak_bytes) / expected
            found.append(f"allocator's peak {off:+.1%} of expected from the ledger's")
        if max(seen, self.device_peak_bytes) > bound:
            found.append("above the bound")
        return tuple(found)


def rows(store: Store) -> Iterator[Row]:
    """Yield every call that ran on a CUDA device."""
    for cell in store.cells:
        spec = cell.spec
        name = f"{spec.model.num_layers} layers {spec.workload.name}" if spec else cell.label
        for record in cell.records:
            if not (record.planned and record.observed):
                continue
            if "allocated_peak_bytes" in record.observed.device:
                yield Row(
                    name,
                    record.call,
                    record.temperature,
                    record.planned,
                    record.observed,
                )


def show(console: Console, found: Sequence[Row]) -> None:
    """Print the table."""
    table = Table(
        *("cell", "call", "expected", "bound", "working set", "off", "allocator's peak"),
        *("reserved", "replayed", "outside grew", "misses"),
        box=None,
    )
    for row in found:
        device = row.observed.device
        off = row.observed.working_set_bytes / row.planned.expected_bytes - 1
        table.add_row(
            row.cell,
            row.temperature,
            gib(row.planned.expected_bytes),
            gib(row.planned.bound_bytes),
            gib(row.observed.working_set_bytes),
            f"{off:+.1%}",
            gib(row.device_peak_bytes),
            gib(row.reserved_peak_bytes),
            gib(device["replayed_reserved_bytes"]),
            gib(device["outside_growth_bytes"]),
            "; ".join(row.misses) or "none",
        )
    console.print(table)


def verdict(store: Store, found: Sequence[Row]) -> tuple[int, str]:
    """Return the exit code and the sentence that goes with it."""
    failed = [f"{cell.label}: {cell.error}" for cell in store.cells if cell.outcome != "ok"]
    missed = [row for row in found if row.misses]
    if failed or not found:
        return MISSED, "; ".join(failed) or "no call left a record of a CUDA device"
    if missed:
        return MISSED, f"{len(missed)} of {len(found)} calls are outside the limits"
    return PASSED, f"{len(found)} calls: within {NEAR:.0%} of expected, none above its bound"


def main(overrides: Sequence[str]) -> int:
    """Look for a device, run the study, compare; return the exit code."""
    console = Console(soft_wrap=True)
    if overrides[:1] == ["--read"]:
        return compare(console, Path(overrides[1]))
    device = subprocess.run(
        [sys.executable, "-m", "jobs.gpu"], capture_output=True, text=True, check=False
    )
    if device.returncode == NO_DEVICE:
        console.print(f"no CUDA device here: {device.stdout.strip()}", markup=False)
        return NO_DEVICE
    if device.returncode:
        console.print(device.stderr.strip(), style="red", markup=False)
        return BAD_INPUT
    console.print(device.stdout.strip(), markup=False)
    out = Path("outputs") / STUDY
    sweep = [sys.executable, "-m", "pipeline", f"study={STUDY}", *overrides, f"out={out}"]
    if subprocess.run(sweep, check=False).returncode == BAD_INPUT:
        return BAD_INPUT
    return compare(console, out)


def compare(console: Console, out: Path) -> int:
    """Print the table of the records under ``out``; return the exit code."""
    store = read_store(out)
    found = list(rows(store))
    show(console, found)
    code, words = verdict(store, found)
    console.print(words, markup=False)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
