"""What a call takes on a CUDA device: PyTorch's allocator, the device, and what lies between them.

A meter asks two things of the machine: the allocator's statistics and the device's used bytes. The
difference, used minus reserved, is what lies outside PyTorch.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from jobs.meter.sampler import INTERVAL_S, Sampler

POOLS = ("allocated", "active", "reserved")
"""Bytes in use; in use or waited for by another stream; taken from CUDA."""


@dataclass(frozen=True, slots=True)
class Probes:
    """How a device is asked.

    Parameters
    ----------
    statistics
        The allocator's, as `torch.cuda.memory_stats` returns them.
    reserved
        Bytes that the allocator has reserved; asked for often, by a thread of its own.
    used
        Bytes of the device in use, by all processes and the driver.
    reset
        Start the allocator's peaks again.
    settle
        Wait until the device's work is done.
    source
        Who says what is used: ``nvml`` or ``cudaMemGetInfo``.
    settings
        The allocator's, as snapshots state them (``allocator_settings``).
    """

    statistics: Callable[[], Mapping[str, int]]
    reserved: Callable[[], int]
    used: Callable[[], int]
    reset: Callable[[], None]
    settle: Callable[[], None]
    source: str
    settings: Callable[[], Mapping[str, object]] = dict


@dataclass(frozen=True, kw_only=True, slots=True)
class SetUp:
    """Bytes on the device before any call, outside PyTorch.

    Parameters
    ----------
    foreign_bytes
        In use before this process took a context: other processes, and the driver's own.
    context_bytes
        Of the CUDA context and the kernels loaded with it.
    nccl_bytes
        Of each communicator, by its group: what its first collective took.
    workspace_bytes
        Of libraries, inside the allocator and part of no tensor.
    """

    foreign_bytes: int = 0
    context_bytes: int = 0
    nccl_bytes: dict[str, int] = field(default_factory=dict)
    workspace_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class DeviceCall:
    """One call on one device. All figures are bytes, but for counts.

    Parameters
    ----------
    allocated_before_bytes, …_peak_bytes, …_end_bytes
        Bytes in use as the allocator rounds them; likewise ``active`` and ``reserved``.
    used_before_bytes, used_peak_bytes, used_end_bytes
        Of the whole device; the peak is the highest of ``readings``, taken every so many
        milliseconds by a thread.
    outside_before_bytes, outside_peak_bytes, outside_growth_bytes
        Used minus reserved: before the call, at most in one reading, and what it grew by.
    buffers_bytes, nccl_bytes, context_bytes, foreign_bytes, libraries_bytes
        What lies outside PyTorch after the call: HybridEP's buffers by their own configuration,
        communicators, context, what is not this process's, and what remains: workspace of
        libraries, kernels loaded since, and errors of the others.
    workspace_bytes
        What libraries keep inside the allocator, in use before the call as well.
    retries, ooms
        Requests of this call for which the allocator gave its cache back, and which it refused.
    fragments_bytes
        Of the room before the call, what was set aside for fragments (`planner.fragments`).
    replayed_reserved_bytes
        Reserved at most by the allocator's rules, from the ledger's timeline (`jobs.allocator`).
    snapshot
        File of the call's history, where one was kept; or why it was not.
    """

    allocated_before_bytes: int = 0
    allocated_peak_bytes: int = 0
    allocated_end_bytes: int = 0
    active_before_bytes: int = 0
    active_peak_bytes: int = 0
    active_end_bytes: int = 0
    reserved_before_bytes: int = 0
    reserved_peak_bytes: int = 0
    reserved_end_bytes: int = 0
    used_before_bytes: int = 0
    used_peak_bytes: int = 0
    used_end_bytes: int = 0
    used_source: str = ""
    readings: int = 0
    reading_every_s: float = INTERVAL_S
    outside_before_bytes: int = 0
    outside_peak_bytes: int = 0
    outside_growth_bytes: int = 0
    buffers_bytes: int = 0
    nccl_bytes: dict[str, int] = field(default_factory=dict)
    context_bytes: int = 0
    foreign_bytes: int = 0
    libraries_bytes: int = 0
    workspace_bytes: int = 0
    retries: int = 0
    ooms: int = 0
    fragments_bytes: int = 0
    replayed_reserved_bytes: int = 0
    snapshot: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)


class DeviceMeter:
    """Follows calls on one device.

    Parameters
    ----------
    buffers
        Bytes that communication buffers hold by their own configuration.
    """

    def __init__(self, probes: Probes, set_up: SetUp, buffers: Callable[[], int]) -> None:
        self._probes, self._set_up, self._buffers = probes, set_up, buffers

    def settings(self) -> Mapping[str, object]:
        """Return the allocator's settings, as snapshots state them."""
        return self._probes.settings()

    @contextmanager
    def call(self) -> Iterator[DeviceCall]:
        """Follow one call; its figures are complete once the block is left, by an error as well."""
        probes, seen = self._probes, DeviceCall(used_source=self._probes.source)
        probes.settle()
        probes.reset()
        before = probes.statistics()
        for pool in POOLS:
            setattr(seen, f"{pool}_before_bytes", before[f"{pool}_bytes.all.current"])
        seen.used_before_bytes = probes.used()
        seen.outside_before_bytes = seen.used_before_bytes - seen.reserved_before_bytes
        sampler = Sampler(self._reading)
        failed = True
        try:
            with sampler:
                yield seen
                probes.settle()
            failed = False
        finally:
            seen.used_peak_bytes, seen.outside_peak_bytes = sampler.highest
            seen.readings = sampler.readings
            self._finish(seen, before, settled=not failed)

    def _reading(self) -> tuple[int, int]:
        """Return used bytes, and those outside PyTorch."""
        used = self._probes.used()
        return used, used - self._probes.reserved()

    def _finish(self, seen: DeviceCall, before: Mapping[str, int], settled: bool) -> None:
        after = self._probes.statistics()
        for pool in POOLS:
            setattr(seen, f"{pool}_peak_bytes", after[f"{pool}_bytes.all.peak"])
            setattr(seen, f"{pool}_end_bytes", after[f"{pool}_bytes.all.current"])
        seen.retries = after["num_alloc_retries"] - before["num_alloc_retries"]
        seen.ooms = after["num_ooms"] - before["num_ooms"]
        seen.used_end_bytes = self._probes.used() if settled else seen.used_peak_bytes
        outside = seen.used_end_bytes - seen.reserved_end_bytes
        seen.outside_growth_bytes = outside - seen.outside_before_bytes
        seen.buffers_bytes = self._buffers()
        seen.nccl_bytes = dict(self._set_up.nccl_bytes)
        seen.context_bytes = self._set_up.context_bytes
        seen.foreign_bytes = self._set_up.foreign_bytes
        seen.workspace_bytes = self._set_up.workspace_bytes
        known = seen.buffers_bytes + sum(seen.nccl_bytes.values())
        known += seen.context_bytes + seen.foreign_bytes
        seen.libraries_bytes = outside - known
