"""Outcomes of failed ranks, on the words that PyTorch, NCCL, CUDA libraries and Linux use."""

import errno
import os

import pytest
import torch

from jobs import outcome
from jobs.record import OUTCOMES

CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.81 GiB of "
    "which 12.19 MiB is free. Including non-PyTorch memory, this process has 139.79 GiB memory in "
    "use. Of the allocated memory 138.05 GiB is allocated by PyTorch"
)
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to "
    "CUDA function failed.\nLast error:\n"
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 1099511627776 bytes. Error code 12 (Cannot allocate memory)"
)
GLOO = (
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer "
    "[127.0.0.1]:41523"
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(CUDA), "oom-device"),
        (torch.OutOfMemoryError("HIP out of memory."), "oom-device"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), "oom-device"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "oom-device"),
        (RuntimeError("CUDA driver error: out of memory"), "oom-device"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "oom-device"),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), "error"),
        (RuntimeError("Failed: CUDA error csrc/deep_ep.cpp:120 'out of memory'"), "oom-device"),
        (RuntimeError("Failed: CUDA error csrc/deep_ep.cpp:120 'invalid value'"), "error"),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
            "oom-device",
        ),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
            "oom-host",
        ),
        (torch.distributed.DistBackendError(NCCL + "Failed to CUDA host alloc 4096"), "oom-nccl"),
        (torch.distributed.DistBackendError(NCCL + "Cuda failure 'out of memory'"), "oom-nccl"),
        (torch.distributed.DistBackendError(NCCL + "Cuda failure 2 'out of memory'"), "oom-nccl"),
        (RuntimeError(NCCL + "Failed to CUDA calloc async 24 bytes"), "oom-nccl"),
        (torch.distributed.DistBackendError(NCCL + "Failed to CUDA calloc 4194304"), "oom-nccl"),
        (torch.distributed.DistBackendError(NCCL + "Cuda failure 'an illegal memory'"), "error"),
        (torch.distributed.DistBackendError("remote process exited"), "error"),
        (MemoryError(), "oom-host"),
        (RuntimeError(CPU), "oom-host"),
        (RuntimeError("std::bad_alloc"), "oom-host"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "oom-host"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "error"),
        (RuntimeError(GLOO), "error"),
        (ValueError("the checkpoint lacks model.memory"), "error"),
    ],
)
def test_each_memory_is_told_from_the_others(error: BaseException, expected: str) -> None:
    """Reference: messages as the named sources print them."""
    assert outcome.of_error(error) == expected
    assert expected in OUTCOMES


def test_what_torch_really_raises_on_this_host() -> None:
    """Reference: torch's own error at a size no host has (2^62 bytes)."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.float32)
    assert outcome.of_error(caught.value) == "oom-host"


def test_an_error_raised_on_the_way_out_does_not_hide_the_first() -> None:
    """Reference: Python's exception chaining; a barrier fails while memory has run out."""
    with pytest.raises(RuntimeError) as caught:  # noqa: PT012 - the chain is what is tested
        try:
            raise torch.OutOfMemoryError(CUDA)
        except RuntimeError:
            raise RuntimeError(GLOO)  # noqa: B904 - as code on the way out does
    assert outcome.of_error(caught.value) == "oom-device"


def test_a_cause_that_was_set_aside_does_not_count() -> None:
    """Reference: ``raise … from None`` says that the first error is no part of the second."""
    with pytest.raises(ValueError, match="no such file") as caught:  # noqa: PT012
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("no such file") from None
    assert outcome.of_error(caught.value) == "error"


@pytest.mark.parametrize(
    ("code", "text", "killed", "expected"),
    [
        (-9, None, True, "oom-host"),
        (-9, None, False, "error"),
        (1, f"Traceback …\ntorch.OutOfMemoryError: {CUDA}", False, "oom-device"),
        (-9, f"Traceback …\ntorch.OutOfMemoryError: {CUDA}", True, "oom-device"),
        (1, f"in init_process_group('nccl')\nOutOfMemoryError: {CUDA}", False, "oom-device"),
        (
            1,
            f"in all_to_all\nDistBackendError: {NCCL}Cuda failure 'out of memory'",
            False,
            "oom-nccl",
        ),
        (1, "MemoryError: unable to allocate 8 GiB", False, "oom-host"),
        (1, "ValueError: no", False, "error"),
        (0, None, True, "error"),
    ],
)
def test_what_a_dead_process_has_left(
    code: int, text: str | None, killed: bool, expected: str
) -> None:
    """Reference: exit codes of subprocess (minus the signal), and the words above."""
    assert outcome.of_exit(code, text, killed_for_memory=killed) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("OUT_OF_MEMORY", "oom-host"),
        ("TIMEOUT", "timeout"),
        ("PREEMPTED", "preempted"),
        ("CANCELLED by 1000", "error"),
        ("CANCELLED+", "error"),
        ("NODE_FAIL", "error"),
    ],
)
def test_states_of_slurm(state: str, expected: str) -> None:
    """Reference: sacct(1), JOB STATE CODES."""
    assert outcome.of_slurm_state(state) == expected
