"""Outcome of a rank that failed: which memory ran out, if one did. Standard library only.

PyTorch, NCCL, CUDA libraries and the host each have words of their own for it. They are read from
the exception itself (class and message, and those that it was raised from), from a traceback that a
dead process has left, from an exit status, or from the state that Slurm gives a job.

The words, and who says them:

======================================================  ==========================================
``CUDA out of memory. Tried to allocate``               PyTorch, c10/cuda/CUDACachingAllocator.cpp
``CUDA error: out of memory``                           cudaErrorMemoryAllocation, anywhere in CUDA
``CUBLAS_STATUS_ALLOC_FAILED``                          cuBLAS, and its siblings of other libraries
``…_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED``           cuDNN 9
``Triton Error [CUDA]: out of memory``                  Triton, as of flash-linear-attention
``Failed: CUDA error FILE:12 'out of memory'``          DeepEP (``EPException``)
``Failed to CUDA calloc [async] 24 bytes``              NCCL, src/include/alloc.h
``Failed to CUDA host alloc 24 bytes``                  the same, of pinned memory
``Cuda failure [2] 'out of memory'``                    NCCL, src/include/checks.h
``DefaultCPUAllocator: can't allocate memory``          PyTorch, c10/core/impl/alloc_cpu.cpp
``std::bad_alloc``, ``Cannot allocate memory``          C++, and errno ENOMEM
======================================================  ==========================================
"""

import errno
import re
from collections.abc import Iterator

ERROR = "error"
DEVICE, HOST, NCCL = "oom-device", "oom-host", "oom-nccl"
TIMEOUT, PREEMPTED = "timeout", "preempted"

_ALLOCATOR = re.compile(r"(?:CUDA|HIP) out of memory")
"""Said by PyTorch's own allocator alone, also where a traceback names NCCL."""

_OF_NCCL = re.compile(r"NCCL error|NCCL WARN|DistBackendError|\bnccl\w*Error")
_NCCL_STARVED = re.compile(
    r"failed to cuda (?:host )?[mc]?alloc|cuda failure (?:\d+ )?'?out of memory|"
    r"cuda error: out of memory|failed to malloc|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
_DEVICE_STARVED = re.compile(
    r"(?:cuda|hip|driver)[ _]?error:? '?(?:\d+ )?'?out of memory|"
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|"
    r"\bCU[A-Z]+_STATUS_(?:ALLOC|INTERNAL_ERROR_DEVICE_ALLOCATION)_FAILED|"
    r"triton error \[(?:cuda|hip)\]: out of memory|cuda error \S+:\d+ 'out of memory|"
    r"cuda failure (?:\d+ )?'?out of memory",
    re.IGNORECASE,
)
_HOST_STARVED = re.compile(
    r"\b(?:_Array)?MemoryError\b|_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED|"
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|"
    r"cannot allocate memory",
    re.IGNORECASE,
)

_SLURM_STATES = {
    "OUT_OF_MEMORY": HOST,
    "TIMEOUT": TIMEOUT,
    "DEADLINE": TIMEOUT,
    "PREEMPTED": PREEMPTED,
}


def of_error(error: BaseException) -> str:
    """Return the outcome of a rank that ``error`` ended.

    The exceptions that it was raised from, or while handling, count as well: a rank that runs out
    of memory often raises something else on its way out.
    """
    found = [_of_one(link) for link in _chain(error)]
    return next((outcome for outcome in found if outcome != ERROR), ERROR)


def of_text(text: str) -> str:
    """Return the outcome that an error's message, or a printed traceback, tells of."""
    if _ALLOCATOR.search(text):
        return DEVICE
    if _OF_NCCL.search(text) and _NCCL_STARVED.search(text):
        return NCCL
    if _DEVICE_STARVED.search(text):
        return DEVICE
    return HOST if _HOST_STARVED.search(text) else ERROR


def of_exit(code: int, text: str | None = None, *, killed_for_memory: bool = False) -> str:
    """Return the outcome of a process that failed, from what is left of it.

    Parameters
    ----------
    code
        Exit code; negative: minus the signal that ended it.
    text
        Traceback that it left, if it left one; its words win.
    killed_for_memory
        Whether the kernel, or a control group, killed it for want of host memory.
    """
    if text and (told := of_text(text)) != ERROR:
        return told
    return HOST if killed_for_memory and code else ERROR


def of_slurm_state(state: str) -> str:
    """Return the outcome of a job that Slurm says ended in ``state`` (sacct's, squeue's).

    What follows the state's first word, as in ``CANCELLED by 1000``, is left out of account.
    """
    return _SLURM_STATES.get(state.partition(" ")[0].rstrip("+"), ERROR)


def _of_one(error: BaseException) -> str:
    """Classify one exception by class, then by message."""
    names = {kind.__name__ for kind in type(error).__mro__}
    told = of_text(f"{type(error).__name__}: {error}")
    if "OutOfMemoryError" in names:  # torch's, whatever its message; NCCL raises another class
        return DEVICE
    if isinstance(error, MemoryError):
        return HOST
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return HOST
    return told


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error``, then what it was raised from or while handling, each once."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
