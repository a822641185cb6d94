"""The CUDA meters on recorded statistics, and on fakes of the two calls they make."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from jobs.cuda.live import held_buffers, keep_within
from jobs.meter import cuda_device
from jobs.meter.cuda import DeviceMeter, Probes, SetUp
from jobs.meter.nvml import NvmlError, used_reader
from jobs.meter.sampler import Sampler

MIB = 2**20


class Device:
    """A device whose figures a test sets: the allocator's counters, and used bytes."""

    def __init__(self) -> None:
        self.allocated = self.reserved = self.peak = self.reserved_peak = 0
        self.outside = 700 * MIB
        self.retries = self.ooms = 0
        self.settled = 0
        self.read = threading.Event()

    def used(self) -> int:
        self.read.set()
        return self.reserved + self.outside

    def wait_for_reading(self) -> None:
        """Wait until a thread has read what is used now: the second reading from here on has."""
        for _ in range(2):
            self.read.clear()
            assert self.read.wait(10)

    def take(self, size: int, reserved: int = 0) -> None:
        self.allocated += size
        self.reserved += reserved
        self.peak = max(self.peak, self.allocated)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def statistics(self) -> dict[str, int]:
        """The keys of ``torch.cuda.memory_stats`` that are read, as torch writes them."""
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
            "active_bytes.all.current": self.allocated + MIB,
            "active_bytes.all.peak": self.peak + MIB,
            "reserved_bytes.all.current": self.reserved,
            "reserved_bytes.all.peak": self.reserved_peak,
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
        }

    def reset(self) -> None:
        self.peak, self.reserved_peak = self.allocated, self.reserved

    def probes(self) -> Probes:
        return Probes(
            statistics=self.statistics,
            reserved=lambda: self.reserved,
            used=self.used,
            reset=self.reset,
            settle=lambda: setattr(self, "settled", self.settled + 1),
            source="nvml",
        )


SET_UP = SetUp(
    foreign_bytes=100 * MIB, context_bytes=500 * MIB, nccl_bytes={"world": 60 * MIB, "ep": 40 * MIB}
)


def test_a_call_s_figures_and_what_lies_outside_pytorch() -> None:
    """Reference: by hand; outside grows by 30 MiB, of which HybridEP's buffers are 25."""
    device, buffers = Device(), [0]
    device.take(10 * MIB, 20 * MIB)
    device.take(500 * MIB)
    device.allocated -= 500 * MIB  # an earlier peak, which the meter starts again
    meter = DeviceMeter(device.probes(), SET_UP, lambda: buffers[0])
    with meter.call() as seen:
        device.take(200 * MIB, 210 * MIB)
        device.outside += 95 * MIB  # a workspace that goes again
        device.wait_for_reading()
        device.outside -= 65 * MIB
        buffers[0] = 25 * MIB
        device.allocated -= 190 * MIB
        device.retries += 2
    assert seen.allocated_before_bytes == 10 * MIB
    assert seen.allocated_peak_bytes == 210 * MIB
    assert seen.allocated_end_bytes == 20 * MIB
    assert seen.active_peak_bytes == 211 * MIB
    assert (seen.reserved_before_bytes, seen.reserved_peak_bytes) == (20 * MIB, 230 * MIB)
    assert seen.used_before_bytes == 720 * MIB
    assert seen.used_peak_bytes == (230 + 795) * MIB
    assert seen.used_end_bytes == (230 + 730) * MIB
    assert seen.outside_peak_bytes == 795 * MIB
    assert seen.outside_growth_bytes == 30 * MIB
    parts = seen.foreign_bytes + seen.context_bytes + sum(seen.nccl_bytes.values())
    assert parts + seen.buffers_bytes + seen.libraries_bytes == 730 * MIB
    assert seen.libraries_bytes == 5 * MIB
    assert (seen.retries, seen.ooms, seen.used_source) == (2, 0, "nvml")
    assert device.settled == 2, "before the peaks start again, and before the end is read"


def test_a_call_that_runs_out_of_memory_keeps_its_peak() -> None:
    """Reference: what was read until then; a failed device is not waited for again."""
    device = Device()
    meter = DeviceMeter(device.probes(), SetUp(), lambda: 0)

    def starve() -> None:
        with meter.call() as call:
            seen.append(call)
            device.take(300 * MIB, 320 * MIB)
            device.ooms += 1
            device.retries += 1
            raise MemoryError

    seen: list = []
    with pytest.raises(MemoryError):
        starve()
    assert seen[0].allocated_peak_bytes == 300 * MIB
    assert seen[0].reserved_peak_bytes == 320 * MIB
    assert (seen[0].ooms, seen[0].retries) == (1, 1)
    assert device.settled == 1


def test_the_sampler_sees_what_has_gone_again() -> None:
    """Reference: a figure that is high between two others and low at both ends."""
    figures, read = [1, 10], threading.Event()

    def take() -> tuple[int, ...]:
        if figures[0] == 9:
            read.set()
        return tuple(figures)

    with Sampler(take, interval=0.001) as sampler:
        figures[0] = 9
        assert read.wait(10)
        figures[:] = [2, 5]
    assert sampler.highest == (9, 10)
    assert sampler.readings >= 3
    assert not any(thread.name == "memory sampler" for thread in threading.enumerate())


def test_what_goes_wrong_in_the_thread_is_raised() -> None:
    """Reference: an error is never lost with its thread."""
    calls: Iterator[int] = iter((1,))
    failed = threading.Event()

    def take() -> tuple[int, ...]:
        found = next(calls, None)
        if found is None:
            failed.set()
            raise NvmlError("the device is lost")
        return (found,)

    with pytest.raises(NvmlError, match="the device is lost"), Sampler(take, interval=0.001):
        assert failed.wait(10)


class Library:
    """Stands for libnvidia-ml: fills the structure it is handed."""

    def __init__(self, used: int, refuse: str = "") -> None:
        self.used, self.refuse, self.asked = used, refuse, b""
        self.nvmlErrorString = lambda code: b"Not Found"

    def nvmlInit_v2(self) -> int:  # noqa: N802 - the library's name
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:  # noqa: N802
        self.asked = uuid
        return 6 if self.refuse == "handle" else 0

    def nvmlDeviceGetMemoryInfo(self, device: object, memory: object) -> int:  # noqa: N802
        found = ctypes.cast(memory, ctypes.POINTER(ctypes.c_ulonglong * 3)).contents
        found[0], found[1], found[2] = 150 * 10**9, 150 * 10**9 - self.used, self.used
        return 0


def test_used_bytes_are_read_from_the_library_s_structure() -> None:
    """Reference: ``nvmlMemory_t`` in nvml.h: total, free, used."""
    library = Library(used=5 * MIB)
    used = used_reader("GPU-1234", library)
    assert (used(), library.asked) == (5 * MIB, b"GPU-1234")
    library.used = 7 * MIB
    assert used() == 7 * MIB


def test_a_library_that_refuses_or_lacks_says_so() -> None:
    """Reference: nvmlReturn_t 6 is NVML_ERROR_NOT_FOUND; this machine has no such library."""
    with pytest.raises(NvmlError, match=r"nvmlDeviceGetHandleByUUID: Not Found \(code 6\)"):
        used_reader("GPU-1", Library(0, refuse="handle"))


@pytest.mark.parametrize("library", [True, False])
def test_a_device_is_asked_through_nvml_or_else_through_cuda(monkeypatch, library: bool) -> None:
    """Reference: played answers; what a context takes is seen from outside it alone."""
    device, asked = torch.device("cuda", 1), []
    used = iter((100 * MIB, 650 * MIB, 700 * MIB))

    def reader(uuid: str) -> Callable[[], int]:
        asked.append(uuid)
        if not library:
            raise NvmlError("libnvidia-ml.so.1 cannot be loaded")
        return lambda: next(used)

    monkeypatch.setattr(cuda_device, "used_reader", reader)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    for name, answer in {
        "get_device_properties": lambda _: SimpleNamespace(uuid="12-34"),
        "set_device": lambda _: None,
        "synchronize": lambda _: None,
        "memory_reserved": lambda _: 2 * MIB,
        "mem_get_info": lambda _: (900 * MIB, 1000 * MIB),
        "memory_stats": lambda _: {"num_ooms": 4},
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    probes, before = cuda_device.open_device(device)
    assert asked == ["GPU-12-34"]
    assert probes.statistics() == {"num_ooms": 4}
    if library:
        assert (before.foreign_bytes, before.context_bytes) == (100 * MIB, 548 * MIB)
        assert (probes.source, probes.used()) == ("nvml", 700 * MIB)
    else:
        assert before == SetUp()
        assert (probes.source, probes.used()) == ("cudaMemGetInfo", 100 * MIB)


def test_hybridep_buffers_are_read_from_their_own_configuration() -> None:
    """Reference: seed 000: 194,753 tokens at EP2 and 256 experts, 2.12 GB."""
    config = SimpleNamespace(
        max_num_of_tokens_per_rank=194_816, hidden_dim=2048, num_of_experts_per_rank=128
    )
    buffer = SimpleNamespace(
        configurer=SimpleNamespace(buffer_config=config), group_size=2, num_of_nodes=1
    )
    held = held_buffers(buffer)
    assert (held.nbytes, held.tokens) == (2_119_598_080, 194_816)
    assert held_buffers(None).nbytes == 0


def test_a_snapshot_above_the_cap_is_not_kept(tmp_path: Path) -> None:
    """Reference: the cap."""
    path = tmp_path / "call0.pickle"
    path.write_bytes(b"x" * 100)
    assert keep_within(path, 100) == str(path)
    assert keep_within(path, 99) == "not kept: 100 bytes are more than 99"
    assert not path.exists()
