"""The probes of a real CUDA device, and what its context takes."""

from collections.abc import Callable

import torch

from jobs.meter.cuda import Probes, SetUp
from jobs.meter.nvml import NvmlError, used_reader


def open_device(device: torch.device) -> tuple[Probes, SetUp]:
    """Take a context on ``device``; return how to ask it, and what lay there before.

    Where NVIDIA's management library cannot be had, CUDA itself is asked, which is possible in a
    context only: what was there before it, and the context, are then 0, and part of what remains.
    """
    try:
        used, source = used_reader(f"GPU-{uuid_of(device)}"), "nvml"
        foreign = used()
    except NvmlError:
        used, source, foreign = _from_cuda(device), "cudaMemGetInfo", None
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    set_up = SetUp()
    if foreign is not None:
        reserved = torch.cuda.memory_reserved(device)
        set_up = SetUp(foreign_bytes=foreign, context_bytes=used() - foreign - reserved)
    probes = Probes(
        statistics=lambda: torch.cuda.memory_stats(device),
        reserved=lambda: _reserved(device),
        used=used,
        reset=lambda: torch.cuda.reset_peak_memory_stats(device),
        settle=lambda: torch.cuda.synchronize(device),
        source=source,
        settings=lambda: torch.cuda.memory._snapshot(device)["allocator_settings"],
    )
    return probes, set_up


def _reserved(device: torch.device) -> int:
    """Return reserved bytes, without the hundred other figures that `memory_stats` lays out."""
    found = torch._C._cuda_memoryStats(device.index)
    return int(found["reserved_bytes"]["all"]["current"])


def uuid_of(device: torch.device) -> str:
    """Return a device's UUID without its prefix, which asks the driver and makes no context."""
    return str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")


def _from_cuda(device: torch.device) -> Callable[[], int]:
    def used() -> int:
        free, total = torch.cuda.mem_get_info(device)
        return total - free

    return used
